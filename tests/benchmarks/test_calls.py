"""Each spelling of a call over a socket, and what the check makes of wrong answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmark_error import BenchmarkError
from calls import DIFFERENT, Call, Protocol, check_answer, grpc_message, raw_http_request, read_http_outputs
from client_regions import outputs_of, registered
from compare import MODELS, OUR_COMMAND
from measured_server import MeasuredServer, free_ports
from scenarios import SCENARIOS, SEQUENCES, Scenario

from pytriton_lite.proto import grpc_service_pb

Start = Callable[[str], MeasuredServer]


@pytest.fixture
def start(stand_in_command: str, tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(flags: str) -> MeasuredServer:
            command = f"{stand_in_command} {flags}"
            log = tmp_path / "log"
            server = MeasuredServer.started("peer", command, models=tmp_path, ports=free_ports(), log=log, timeout_s=60)
            return stack.enter_context(server)

        yield started


STAND_INS = ("add_sub", "bls", "decoupled", "bls_decoupled")
"""What the stand-in serves. It knows no regions."""
IN_MESSAGES = [protocol for protocol in Protocol if not protocol.uses_regions]


def spellings() -> Iterator[tuple[Scenario, Protocol]]:
    for name in STAND_INS:
        for protocol in IN_MESSAGES:
            if SCENARIOS[name].can_be_asked_over(protocol):
                yield SCENARIOS[name], protocol


def test_right_answers_pass_over_every_protocol_and_are_counted(start: Start) -> None:
    server = start("")
    for scenario, protocol in spellings():
        assert check_answer(scenario.call, protocol, server.ports) > 0
    for name in STAND_INS:
        asked = [(scenario, protocol) for scenario, protocol in spellings() if name in scenario.models]
        counters = server.counters_with(name, len(asked))
        assert (counters.succeeded, counters.failed) == (len(asked), 0), name


@pytest.mark.parametrize("protocol", [found for found in Protocol if found.is_varied])
def test_requests_differ_in_id_and_numbers_and_not_in_the_length_of_their_answers(protocol: Protocol) -> None:
    call = SCENARIOS["add_sub"].call
    calls = call.over(protocol)
    assert len(calls) == len({found.request_id for found in calls}) == DIFFERENT
    assert len({len(found.request_id) for found in calls}) == 1
    assert len({found.inputs["INPUT0"].tobytes() for found in calls}) == DIFFERENT
    assert np.array_equal(calls[0].inputs["INPUT0"], call.inputs["INPUT0"]), "the one whose answer is known"
    first, last = (raw_http_request(found, protocol, 80) for found in (calls[0], calls[-1]))
    assert b"request-0000" in first and f"request-{DIFFERENT - 1}".encode() in last


@pytest.mark.parametrize(
    "protocol", [Protocol.HTTP_JSON_REPEATED, Protocol.HTTP_BINARY_REPEATED, Protocol.GRPC_REPEATED, Protocol.GRPC_SHM]
)
def test_repeated_requests_are_one(protocol: Protocol) -> None:
    call = SCENARIOS["add_sub"].call
    assert call.over(protocol) == [call]


def test_each_step_of_a_sequence_has_its_number_and_the_ends_are_marked() -> None:
    first, *others = SEQUENCES.call.over(Protocol.GRPC)
    steps = SEQUENCES.call.steps
    assert len(others) == 50 * steps - 1
    assert [int(call.inputs["IN"][0, 0]) for call in (first, *others)] == list(range(steps)) * 50
    assert [call.parameters["sequence_id"] for call in (first, *others)][::steps] == list(range(1, 51))
    message = grpc_service_pb.ModelInferRequest.FromString(grpc_message(first))
    assert {name: value.bool_param for name, value in message.parameters.items() if name != "sequence_id"} == {
        "sequence_start": True,
        "sequence_end": False,
    }
    assert message.parameters["sequence_id"].int64_param == 1
    assert [call.parameters["sequence_end"] for call in others[: steps - 1]] == [False] * (steps - 2) + [True]


def test_large_tensors_do_not_differ() -> None:
    large = Call("large", {"IN": np.zeros(1 << 20, np.float32)}, [{}])
    assert len(large.over(Protocol.HTTP_BINARY)) == 1


def test_wrong_sum_is_noticed_over_every_protocol(start: Start) -> None:
    server = start("--wrong")
    for protocol in IN_MESSAGES:
        with pytest.raises(BenchmarkError) as raised:
            check_answer(SCENARIOS["add_sub"].call, protocol, server.ports)
        told = f"add_sub over {protocol.value}: wrong answer: expected OUTPUT0 [2.0, 1.75, 2.0, 1000.125], got ["
        assert told in str(raised.value)


def test_stream_with_one_wrong_response_is_refused_with_its_number(start: Start) -> None:
    with pytest.raises(BenchmarkError, match=r"expected OUT \[51.5, .* got \[52.5, .* in response 51"):
        check_answer(SCENARIOS["decoupled"].call, Protocol.GRPC_STREAM, start("--wrong").ports)


def test_stream_that_is_too_short_is_refused(start: Start) -> None:
    with pytest.raises(BenchmarkError, match="expected 100 responses, got 50"):
        check_answer(SCENARIOS["decoupled"].call, Protocol.GRPC_STREAM, start("--short-after 0").ports)


def test_output_that_is_missing_is_refused(start: Start) -> None:
    call = SCENARIOS["add_sub"].call
    more = Call(call.model, call.inputs, [{**call.responses[0], "MORE": np.zeros(1, np.float32)}])
    with pytest.raises(BenchmarkError, match=r"expected MORE \[0.0\], got none"):
        check_answer(more, Protocol.HTTP_BINARY, start("").ports)


def test_error_in_place_of_an_answer_is_noticed_over_every_protocol(start: Start) -> None:
    server = start("--fail-after 0")
    for protocol in Protocol:
        with pytest.raises(BenchmarkError, match="told to fail"):
            check_answer(SCENARIOS["add_sub"].call, protocol, server.ports)


@pytest.mark.parametrize("protocol", [Protocol.HTTP_SHM, Protocol.GRPC_SHM])
def test_outputs_in_regions_are_compared_too(tmp_path: Path, protocol: Protocol) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "identity").symlink_to(MODELS / "identity")
    right = SCENARIOS["identity"].call
    wrong = Call(right.model, right.inputs, [{"OUTPUT0": right.inputs["INPUT0"] + np.float32(1)}])
    with MeasuredServer.started(
        "ours", OUR_COMMAND, models=models, ports=free_ports(), log=tmp_path / "log", timeout_s=60
    ) as server:
        with registered(right, [server.ports]):
            assert check_answer(right, protocol, server.ports, outputs_of) > 0
            with pytest.raises(BenchmarkError, match=r"expected OUTPUT0 .* got .* in response 1"):
                check_answer(wrong, protocol, server.ports, outputs_of)
        with pytest.raises(BenchmarkError, match="Unable to find shared memory region"):
            check_answer(right, protocol, server.ports, outputs_of)


def test_output_whose_parameters_are_null_has_its_numbers_in_json() -> None:
    body = b'{"outputs": [{"name": "Y", "parameters": null, "data": [1.5, 2.0]}]}'
    assert read_http_outputs(body, None)["Y"].tolist() == [1.5, 2.0]
