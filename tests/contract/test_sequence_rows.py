"""Sequences end to end: their rows of scheduling.md. What depends on time alone is on a fake clock in tests/scheduling.

Those of instances that come and go and of implicit state are in files of their own, those of single rounds of a rescheduled
request in test_model_api_reschedule.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.wire_models import (
    Traffic,
    grpc_channel,
    infer_message,
    metric,
    pending,
    statistics,
    wait_pending,
)
from tests.harness import Reply, RunningServer, tensor, write_model

# Reports, for each request, the rows of its execution and of all before it. GATE holds an execution as that of
# wire_models.RECORDING does; the parameter "rounds" says how often a request is executed, and "calls" which model such an
# execution calls before it goes on.
CODE = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.instance = args["model_instance_name"]
            self.history = []
            self.rounds = {}

        def execute(self, requests):
            rows = [self.row(request) for request in requests]
            self.history.append(rows)
            paths = [pb_utils.get_input_tensor_by_name(request, "GATE").as_numpy().reshape(-1)[0] for request in requests]
            for path in filter(None, paths):
                with open(path.decode()) as gate:
                    print(f"holding {path.decode()}", flush=True)
                    gate.read()
                self.call_other(requests[paths.index(path)])
            return [self.answer(request, rows) for request in requests]

        def call_other(self, request):
            name = json.loads(request.parameters() or "{}").get("calls")
            if name:
                gate = pb_utils.Tensor("GATE", np.array([[b""]], np.object_))
                call = pb_utils.InferenceRequest(model_name=name, requested_output_names=["REPORT"], inputs=[gate])
                assert not call.exec().has_error()

        def row(self, request):
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            return {
                "id": request.request_id(),
                "sequence": request.correlation_id(),
                "flags": request.flags(),
                "outputs": list(request.requested_output_names()),
                "controls": {
                    name: [list(array.shape), self.plain(array.reshape(-1)[0])]
                    for name, array in tensors.items()
                    if name.isupper() and name not in ("GATE", "X")
                },
                "x": [list(tensors["X"].shape), tensors["X"].reshape(-1).tolist()] if "X" in tensors else None,
            }

        @staticmethod
        def plain(element):
            return element.decode() if isinstance(element, bytes) else element.item()

        def answer(self, request, rows):
            asked = json.loads(request.parameters() or "{}")
            key = request.request_id()
            self.rounds[key] = self.rounds.get(key, 0) + 1
            if self.rounds[key] < int(asked.get("rounds", 1)):
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return None
            report = {"instance": self.instance, "rows": rows, "history": self.history}
            shape = pb_utils.get_input_tensor_by_name(request, "GATE").as_numpy().shape
            out = np.full(shape, json.dumps(report).encode(), np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", out)])
"""

CONFIG = """
    backend: "python"
    input { name: "GATE" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "REPORT" data_type: TYPE_STRING dims: [ 1 ] }
"""
X = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } '

CONTROLS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
    control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
LONG = "max_sequence_idle_microseconds: 3600000000 "
HOUR_US = 3_600_000_000


def corrid(datatype: str) -> str:
    return f'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'


def sequences(more: str = "", *, rows: int = 4, beside: str = "") -> str:
    return f"max_batch_size: {rows} {beside} sequence_batching {{ {more} }}"


def direct(delay_us: int, utilization: float) -> str:
    return f"direct {{ max_queue_delay_microseconds: {delay_us} minimum_slot_utilization: {utilization} }}"


ITERATIVE = "iterative_sequence: true "
MODELS = {
    "plain": sequences(LONG),
    "controls": sequences(LONG + CONTROLS),
    "unbatched": sequences(LONG + CONTROLS, rows=0),
    "two": sequences(LONG + CONTROLS, beside="instance_group { count: 2 }"),
    "conflict": sequences(LONG),
    "narrow": sequences(LONG + corrid("TYPE_INT32")),
    "texts": sequences(LONG + corrid("TYPE_STRING")),
    "numbers": sequences(LONG + corrid("TYPE_UINT64")),
    "nulls": sequences(LONG + CONTROLS, beside=X),
    "counted": sequences(LONG),
    "half": sequences(LONG + direct(HOUR_US, 0.5)),
    "hasty": sequences(LONG + direct(100_000, 0.5)),
    "oldest": sequences(LONG + f"oldest {{ preferred_batch_size: [ 2 ] max_queue_delay_microseconds: {HOUR_US} }}"),
    "candidates": sequences(LONG + "oldest { max_candidate_sequences: 2 }"),
    "ordered_two": sequences(LONG + "oldest { preserve_ordering: true }", beside="instance_group { count: 2 }"),
    "slots": sequences(LONG, rows=2, beside="instance_group { count: 2 }"),
    "single": sequences(LONG, rows=1),
    "single_oldest": sequences(LONG + "oldest { max_candidate_sequences: 1 }", rows=1),
    "impatient": sequences(LONG, rows=1),
    "silent": sequences("max_sequence_idle_microseconds: 1"),
    "idle": sequences("max_sequence_idle_microseconds: 300000"),
    "dying": sequences(LONG, rows=1),
    "calling": sequences(
        LONG + "oldest { max_candidate_sequences: 2 }",
        rows=1,
        beside='instance_group { count: 2 } parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "4" } }',
    ),
    "called": "max_batch_size: 1",
    "again": sequences(ITERATIVE + LONG + CONTROLS),
    "again_direct": sequences(ITERATIVE + LONG, rows=3),
    "again_oldest": sequences(ITERATIVE + LONG + "oldest { preferred_batch_size: [ 1 ] }"),
    "again_single": sequences(ITERATIVE + LONG, rows=1),
    "again_silent": sequences(ITERATIVE + "max_sequence_idle_microseconds: 1"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("sequences") / "models"
    for name, more in MODELS.items():
        write_model(repository, name, CODE, CONFIG + more)
    with RunningServer(repository) as running:
        yield running


class Sequences(Traffic):
    """Requests of sequences: *flags* are S for START and E for END."""

    def begin(self, request_id: str, sequence: int | str, flags: str = "", **fields: Any) -> Future[Reply]:
        """Send one without waiting for anything."""
        return self.send(request_id, **self._fields(sequence, flags, fields))

    def wait(self, request_id: str, sequence: int | str, flags: str = "", **fields: Any) -> Future[Reply]:
        """Send one, and return when it waits."""
        return self.queue(request_id, **self._fields(sequence, flags, fields))

    def ask(self, request_id: str, sequence: int | str, flags: str = "", **fields: Any) -> Reply:
        return self.begin(request_id, sequence, flags, **fields).result(30)

    def hold(self, request_id: str, sequence: int | str, flags: str = "", **fields: Any) -> Future[Reply]:
        """One that is in ``execute`` when this returns, and stays there until `open_gates`."""
        gate = self.gate()
        held = self.begin(request_id, sequence, flags, gate=gate, **fields)
        gate.wait_held(self.server)
        return held

    @staticmethod
    def _fields(sequence: int | str, flags: str, fields: dict[str, Any]) -> dict[str, Any]:
        parameters = {"sequence_id": sequence, "sequence_start": "S" in flags, "sequence_end": "E" in flags}
        return {**fields, "parameters": {**parameters, **fields.pop("parameters", {})}}


Open = Callable[[str], Sequences]


@pytest.fixture
def traffic_to(server: RunningServer, tmp_path: Path) -> Iterator[Open]:
    opened: list[Sequences] = []

    def open_to(model: str) -> Sequences:
        opened.append(Sequences(server, model, tmp_path))
        return opened[-1]

    yield open_to
    for traffic in opened:
        traffic.close()


def report(reply: Reply | Future[Reply]) -> dict[str, Any]:
    answer = reply if isinstance(reply, Reply) else reply.result(30)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = json.loads(answer.json["outputs"][0]["data"][0])
    return found


def ids(rows: list[dict[str, Any]]) -> list[str]:
    """Of a batch, "" for a null request."""
    return [row["id"] for row in rows]


def batch(reply: Reply | Future[Reply]) -> list[str]:
    return ids(report(reply)["rows"])


def own(reply: Reply | Future[Reply]) -> dict[str, Any]:
    """The row of the request that was answered, of batches of one."""
    (row,) = report(reply)["rows"]
    found: dict[str, Any] = row
    return found


def control(reply: Reply | Future[Reply], *names: str) -> tuple[Any, ...]:
    return tuple(own(reply)["controls"][name][1] for name in names)


def refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.error


def start_missing(sequence: int | str, model: str) -> tuple[int, str]:
    return 400, (
        f"inference request for sequence {sequence} to model '{model}' must specify the START flag on the first request of "
        "the sequence"
    )


# ---------------------------------------------------------------------------------------------- rules for requests


@pytest.mark.parametrize("nothing", [{}, {"sequence_id": 0}, {"sequence_id": ""}], ids=["none", "zero", "empty"])
def test_row_61_a_request_needs_a_correlation_id(server: RunningServer, nothing: dict[str, Any]) -> None:
    reply = server.infer("plain", [tensor("GATE", "BYTES", [1, 1], [""])], parameters=nothing)
    assert refusal(reply) == (
        400,
        "inference request to model 'plain' must specify a non-zero or non-empty correlation ID",
    )


@pytest.mark.parametrize("sequence", [77, "abc"])
def test_row_62_an_unknown_sequence_needs_start(traffic_to: Open, sequence: int | str) -> None:
    assert refusal(traffic_to("plain").ask("a", sequence)) == start_missing(sequence, "plain")
    assert refusal(traffic_to("oldest").ask("a", sequence)) == start_missing(sequence, "oldest")


def test_row_63_a_batch_of_two_is_refused(traffic_to: Open) -> None:
    reply = traffic_to("plain").ask("a", 5, "S", size=2)
    assert refusal(reply) == (
        400,
        "inference request to model 'plain' must specify batch-size 1 due to requirements of sequence batcher",
    )


def test_row_64_a_negative_id_is_no_id(traffic_to: Open) -> None:
    text = "Unable to parse 'sequence_id': attempt to access JSON non-string as string"
    assert refusal(traffic_to("plain").ask("a", -3, "S")) == (500, text)


def test_rules_that_are_broken_are_in_no_statistic(server: RunningServer, traffic_to: Open) -> None:
    """Section 4.1."""
    before = statistics(server, "plain")["inference_stats"]
    traffic_to("plain").ask("a", 77)
    assert statistics(server, "plain")["inference_stats"] == before
    assert pending(server, "plain") == 0


def test_row_65_a_sequence_has_its_flags_and_stays_on_its_instance(traffic_to: Open) -> None:
    traffic = traffic_to("two")
    replies = [traffic.ask("a1", 5, "S"), traffic.ask("a2", 5), traffic.ask("a3", 5, "E")]
    assert [control(reply, "START", "END", "READY", "ID") for reply in replies] == [
        (1, 0, True, 5),
        (0, 0, True, 5),
        (0, 1, True, 5),
    ]
    assert [own(reply)["flags"] for reply in replies] == [1, 0, 2]
    assert len({report(reply)["instance"] for reply in replies}) == 1


def test_row_66_after_end_the_id_is_unknown(traffic_to: Open) -> None:
    traffic = traffic_to("controls")
    assert [traffic.ask("a", 66, flags).status for flags in ("S", "E")] == [200, 200]
    assert refusal(traffic.ask("a", 66)) == start_missing(66, "controls")


def test_row_67_a_second_start_cuts_the_sequence_off_in_its_slot(server: RunningServer, traffic_to: Open) -> None:
    traffic = traffic_to("conflict")
    assert batch(traffic.ask("other", 1, "S")) == ["other"]
    assert batch(traffic.ask("a", 67, "S")) == ["", "a"]
    assert batch(traffic.ask("b", 67, "S")) == ["", "b"]
    server.wait_for_log(
        r"W\d{4} .*sequence 67 for model 'conflict' has a conflict\. The previous sequence did not end before this sequence "
        r"start\. Previous sequence will be terminated early\."
    )


def test_row_68_one_request_may_be_a_whole_sequence(traffic_to: Open) -> None:
    traffic = traffic_to("controls")
    for _ in range(2):  # in the slot that is free again
        reply = traffic.ask("a", 68, "SE")
        assert control(reply, "START", "END") == (1, 1)
        assert own(reply)["flags"] == 3


@pytest.mark.parametrize(
    ("model", "shape"), [pytest.param("controls", [1, 1], id="row 69"), pytest.param("unbatched", [1], id="row 70")]
)
def test_control_tensors_have_one_element(traffic_to: Open, model: str, shape: list[int]) -> None:
    controls = own(traffic_to(model).ask("a", 69, "SE"))["controls"]
    assert controls == {
        "START": [shape, 1],
        "END": [shape, 1],
        "READY": [shape, True],
        "ID": [shape, 69],
    }


def test_row_71_a_narrow_control_has_the_low_bits_of_the_id(traffic_to: Open) -> None:
    reply = traffic_to("narrow").ask("a", 2**32 + 5, "SE")
    assert control(reply, "CORRID") == (5,)
    assert own(reply)["sequence"] == 2**32 + 5


def test_row_72_an_id_may_be_a_text(traffic_to: Open) -> None:
    reply = traffic_to("texts").ask("a", "abc", "SE")
    assert (control(reply, "CORRID"), own(reply)["sequence"]) == (("abc",), "abc")


def test_row_73_an_id_of_another_kind_than_its_control_is_refused(traffic_to: Open) -> None:
    text = "[request id: q] sequence batching control 'CORRID' data-type is "
    assert refusal(traffic_to("numbers").ask("q", "abc", "S")) == (
        400,
        f"{text}'BYTES', but model 'numbers' expects 'UINT64'",
    )
    assert refusal(traffic_to("texts").ask("q", 5, "S")) == (400, f"{text}'UINT64', but model 'texts' expects 'BYTES'")


def test_row_149_a_number_and_its_text_are_two_sequences(traffic_to: Open) -> None:
    traffic = traffic_to("controls")
    assert traffic.ask("a", 149, "S").status == 200
    traffic = traffic_to("plain")
    assert traffic.ask("a", 149, "S").status == 200
    assert refusal(traffic.ask("b", "149")) == start_missing("149", "plain")
    assert traffic.ask("c", 149, "E").status == 200


def test_row_150_what_waits_of_a_sequence_that_is_cut_off_is_executed_first(traffic_to: Open) -> None:
    traffic = traffic_to("single")
    held = traffic.hold("a1", 150, "S")
    waiting = [traffic.wait("a2", 150), traffic.wait("b1", 150, "S"), traffic.wait("b2", 150, "E")]
    traffic.open_gates()
    assert report(held)["rows"]
    history = report(waiting[-1])["history"]
    assert [name for rows in history for name in ids(rows)] == ["a1", "a2", "b1", "b2"]


# ---------------------------------------------------------------------------------------------- direct


def started(traffic: Sequences, *sequences: int) -> None:
    """Each sequence has begun, in the slots 0, 1, …"""
    for sequence in sequences:
        assert traffic.ask(f"start {sequence}", sequence, "S", inputs=x_of(traffic, 1)).status == 200


def x_of(traffic: Sequences, size: int) -> list[dict[str, Any]]:
    return [tensor("X", "FP32", [1, size], [1.5] * size)] if traffic.model == "nulls" else []


def ended(traffic: Sequences, *sequences: int) -> None:
    for sequence in sequences:
        assert traffic.ask("end", sequence, "E", inputs=x_of(traffic, 1)).status == 200


def test_rows_of_the_direct_strategy_are_fixed(traffic_to: Open) -> None:
    """Rows 74, 75 and 76: null requests stand for those that have nothing to say, and say nothing."""
    traffic = traffic_to("nulls")
    started(traffic, 1, 2)
    null, real = report(traffic.ask("b", 2, inputs=x_of(traffic, 3)))["rows"]
    assert (real["id"], real["sequence"], real["controls"]["READY"][1]) == ("b", 2, True)
    assert null == {
        "id": "",
        "sequence": 0,
        "flags": 0,
        "outputs": [],
        "controls": {"START": [[1, 1], 0], "END": [[1, 1], 0], "READY": [[1, 1], False], "ID": [[1, 1], 0]},
        "x": [[1, 3], [0.0, 0.0, 0.0]],
    }
    assert batch(traffic.ask("a", 1, inputs=x_of(traffic, 1))) == ["a"]
    ended(traffic, 1, 2)


def test_row_77_a_null_request_counts_in_the_size_of_its_batch_alone(server: RunningServer, traffic_to: Open) -> None:
    traffic = traffic_to("counted")
    started(traffic, 1, 2)
    before = statistics(server, "counted")
    sizes = {row["batch_size"]: row["compute_infer"]["count"] for row in before["batch_stats"]}
    assert batch(traffic.ask("b", 2)) == ["", "b"]
    after = statistics(server, "counted")
    assert after["inference_count"] - before["inference_count"] == 1
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 1
    assert {row["batch_size"]: row["compute_infer"]["count"] for row in after["batch_stats"]} == {
        **sizes,
        2: sizes.get(2, 0) + 1,
    }


def test_row_78_a_row_of_another_shape_goes_in_the_next_batch(traffic_to: Open) -> None:
    traffic = traffic_to("nulls")
    started(traffic, 1, 2, 3)
    held = traffic.hold("c", 3, inputs=x_of(traffic, 1))
    first, second = traffic.wait("a", 1, inputs=x_of(traffic, 4)), traffic.wait("b", 2, inputs=x_of(traffic, 5))
    traffic.open_gates()
    assert batch(held) == ["", "", "c"]
    assert batch(first) == ["a", ""]
    assert batch(second) == ["", "b"]
    ended(traffic, 1, 2, 3)


def test_enough_ready_rows_do_not_wait_and_fewer_do(traffic_to: Open) -> None:
    """Rows 79 and 80: half of four, with a delay of an hour, and of a moment."""
    traffic = traffic_to("half")
    first = traffic.wait("a", 1, "SE")
    assert batch(traffic.begin("b", 2, "SE")) == batch(first) == ["a", "b"]
    assert batch(traffic_to("hasty").ask("a", 1, "SE")) == ["a"]


def test_row_83_sequences_spread_over_instances_first(traffic_to: Open) -> None:
    traffic = traffic_to("slots")
    replies = [report(traffic.ask(f"s{sequence}", sequence, "S")) for sequence in (1, 2, 3, 4)]
    instances = [reply["instance"] for reply in replies]
    assert sorted(instances[:2]) == sorted(instances[2:]) == ["slots_0_0", "slots_0_1"]
    assert [ids(reply["rows"]) for reply in replies] == [["s1"], ["s2"], ["", "s3"], ["", "s4"]]
    ended(traffic, 1, 2, 3, 4)


# ---------------------------------------------------------------------------------------------- oldest


def test_row_81_oldest_takes_one_request_of_each_sequence_and_pads_nothing(traffic_to: Open) -> None:
    traffic = traffic_to("oldest")
    first = traffic.begin("a1", 1, "S")
    wait_pending(traffic.server, "oldest", 1, unless=first)
    third = traffic.begin("a2", 1, "E")
    wait_pending(traffic.server, "oldest", 2, unless=first)
    second = traffic.begin("b1", 2, "SE")
    assert batch(first) == batch(second) == ["a1", "b1"]
    wait_pending(traffic.server, "oldest", 1, unless=third)
    assert batch(traffic.begin("c1", 3, "SE")) == batch(third) == ["a2", "c1"]


def test_row_82_a_sequence_beyond_the_candidates_waits_until_one_ends(traffic_to: Open) -> None:
    traffic = traffic_to("candidates")
    started(traffic, 1, 2)
    third = traffic.wait("c", 3, "SE")
    assert traffic.ask("a", 1).status == 200
    assert not third.done()
    assert traffic.ask("b", 2, "E").status == 200
    assert batch(third) == ["c"]
    ended(traffic, 1)


def test_the_order_of_answers_is_that_of_one_instance(traffic_to: Open) -> None:
    """Each instance has a batcher of its own (4.5), so a slow sequence holds nobody back on another instance."""
    traffic = traffic_to("ordered_two")
    slow = traffic.hold("slow", 1, "SE")
    assert batch(traffic.begin("quick", 2, "SE")) == ["quick"]
    assert not slow.done()
    traffic.open_gates()
    assert batch(slow) == ["slow"]


# ---------------------------------------------------------------------------------------------- backlog and time


@pytest.mark.parametrize("model", ["single", "single_oldest"])
def test_row_84_the_backlog_is_served_by_whole_sequences(traffic_to: Open, model: str) -> None:
    traffic = traffic_to(model)
    started(traffic, 1)
    names = [("b1", 2, "S"), ("c1", 3, "S"), ("b2", 2, "E"), ("c2", 3, "E")]
    waiting = [traffic.wait(*name) for name in names]
    ended(traffic, 1)
    last = report(waiting[-1])["history"][-4:]
    assert [ids(rows) for rows in last] == [["b1"], ["b2"], ["c1"], ["c2"]]


def test_row_85_a_timeout_in_the_backlog_ends_the_sequence(server: RunningServer, traffic_to: Open) -> None:
    traffic = traffic_to("impatient")
    started(traffic, 1)
    rejected = metric(server, "nv_inference_request_failure", "impatient", reason="REJECTED")
    first = traffic.begin("b1", 2, "S")
    wait_pending(server, "impatient", 1, unless=first)
    second = traffic.begin("b2", 2, parameters={"timeout": 1000})
    text = "timeout of the corresponding sequence has been expired"
    assert [refusal(waiting.result(30)) for waiting in (first, second)] == [(503, text)] * 2
    assert metric(server, "nv_inference_request_failure", "impatient", reason="REJECTED") == rejected + 2
    assert refusal(traffic.ask("b3", 2)) == start_missing(2, "impatient")
    # In a slot a timeout means nothing.
    assert traffic.ask("a", 1, "E", parameters={"timeout": 1}).status == 200


def test_a_sequence_that_was_silent_for_too_long_needs_start_again(traffic_to: Open) -> None:
    """Rows 86 and 87: here longer than a microsecond, also while a request of it is executed."""
    traffic = traffic_to("silent")
    started(traffic, 86)
    assert refusal(traffic.ask("late", 86)) == start_missing(86, "silent")
    held = traffic.hold("a", 87, "S")
    assert refusal(traffic.ask("late", 87)) == start_missing(87, "silent")
    traffic.open_gates()
    assert batch(held) == ["a"]


def test_row_88_silent_sequences_give_their_slots_away(traffic_to: Open) -> None:
    traffic = traffic_to("idle")
    started(traffic, 1, 2, 3, 4)
    assert batch(traffic.ask("fifth", 5, "SE"))[-1] == "fifth"
    assert refusal(traffic.ask("late", 1)) == start_missing(1, "idle")


@pytest.mark.parametrize(
    ("model", "in_backlog"),
    [("single", False), ("single_oldest", False), ("single", True)],
    ids=["row 89, direct", "row 89, oldest", "row 89, backlog"],
)
def test_a_cancelled_request_takes_what_waits_of_its_sequence_along(
    server: RunningServer, traffic_to: Open, model: str, in_backlog: bool
) -> None:
    traffic = traffic_to(model)
    held = traffic.hold("held", 1, "S")
    sequence = 2 if in_backlog else 1
    cancelled = metric(server, "nv_inference_request_failure", model, reason="CANCELED")
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = []
        for number in range(2):
            message = infer_message(model, ("GATE", "BYTES", [1, 1], b"\0\0\0\0"), id=f"c{number}")
            message.parameters["sequence_id"].int64_param = sequence
            message.parameters["sequence_start"].bool_param = in_backlog and number == 0
            calls.append(stub.ModelInfer.future(message))
            wait_pending(server, model, number + 1)
        calls[0].cancel()
        with pytest.raises(grpc.RpcError) as ended_with:
            calls[1].result(30)
    assert (ended_with.value.code(), ended_with.value.details()) == (grpc.StatusCode.CANCELLED, "")
    assert refusal(traffic.ask("next", sequence)) == start_missing(sequence, model)
    assert metric(server, "nv_inference_request_failure", model, reason="CANCELED") == cancelled + 2
    traffic.open_gates()
    assert batch(held) == ["held"]
    if in_backlog:
        ended(traffic, 1)
    assert batch(traffic.ask("after", 9, "SE")) == ["after"]  # the slot is free


def test_open_sequences_end_with_their_worker_and_their_slots_are_free(server: RunningServer, traffic_to: Open) -> None:
    """Where Triton has no answer: it does not restart workers."""
    traffic = traffic_to("dying")
    held = traffic.hold("a1", 1, "S")
    queued = traffic.wait("a2", 1)
    next_in_line = traffic.wait("b1", 2, "SE")
    (worker,) = server.worker_pids("dying_0")
    os.kill(worker, signal.SIGKILL)
    died = held.result(30)
    assert died.status == 503 and died.error.startswith("Stub process 'dying_0' is not healthy.")
    lost = queued.result(30)
    assert lost.status == 503 and "sequence 1" in lost.error
    assert batch(next_in_line) == ["b1"]
    assert refusal(traffic.ask("a3", 1)) == start_missing(1, "dying")
    assert batch(traffic.ask("c", 1, "SE")) == ["c"]


def test_a_request_behind_one_whose_model_calls_another_stays_with_its_sequence(traffic_to: Open) -> None:
    """Where sequences are none, it would be given back for another instance."""
    traffic = traffic_to("calling")
    held = traffic.hold("a", 1, "S", parameters={"calls": "called"})
    others = [traffic.ask("b", 2, "S"), traffic.ask("d", 4, "S")]  # which have the slots of the other instance
    assert len({report(other)["instance"] for other in others}) == 1
    behind = traffic.wait("c", 3, "S")
    traffic.open_gates()
    assert [batch(held), batch(behind), batch(traffic.ask("c2", 3, "E"))] == [["a"], ["c"], ["c2"]]
    assert report(behind)["instance"] == report(held)["instance"]


# ---------------------------------------------------------------------------------------------- iterative


def rounds(count: int) -> dict[str, Any]:
    return {"parameters": {"rounds": count}}


def test_requests_without_id_get_numbers_and_come_again_without_start(traffic_to: Open) -> None:
    """Rows 94 and 95."""
    traffic = traffic_to("again")
    for number, request_id in enumerate("abc", 1):
        reply = traffic.send(request_id, **rounds(4)).result(30)
        (*before, last) = (row for (row,) in report(reply)["history"][-4:])
        seen = [
            (row["sequence"], row["flags"], row["controls"]["START"][1], row["controls"]["END"][1]) for row in before
        ]
        assert seen == [(number, 1, 1, 0), (number, 0, 0, 0), (number, 0, 0, 0)]
        assert (last["sequence"], last["flags"], last["controls"]["START"][1]) == (number, 0, 0)
    assert len(report(reply)["history"]) == 12
    assert refusal(traffic.ask("d", 99)) == start_missing(99, "again")


def test_row_96_newcomers_take_rows_beside_a_request_that_iterates(traffic_to: Open) -> None:
    traffic = traffic_to("again_direct")
    gate = traffic.gate()
    first = traffic.send("a", gate=gate, **rounds(3))
    gate.wait_held(traffic.server)
    others = [traffic.queue("b", **rounds(1)), traffic.queue("c", **rounds(2))]
    traffic.open_gates()
    history = report(first)["history"]
    assert [ids(rows) for rows in history] == [["a"], ["a", "b", "c"], ["a", "", "c"]]
    assert [[row["flags"] for row in rows] for rows in history] == [[1], [0, 1, 1], [0, 0, 0]]
    assert [batch(other) for other in others] == [["a", "b", "c"], ["a", "", "c"]]


def test_row_97_a_rescheduled_request_goes_behind_those_that_wait(traffic_to: Open) -> None:
    traffic = traffic_to("again_oldest")
    gate = traffic.gate()
    first = traffic.send("a", gate=gate, **rounds(2))
    gate.wait_held(traffic.server)
    others = [traffic.queue(name, **rounds(1)) for name in "bc"]
    traffic.open_gates()
    assert [ids(rows) for rows in report(first)["history"]] == [["a"], ["b"], ["c"], ["a"]]
    assert [other.result(30).status for other in others] == [200, 200]


def test_row_98_requests_beyond_the_slots_wait_until_one_is_done(traffic_to: Open) -> None:
    traffic = traffic_to("again_single")
    gate = traffic.gate()
    first = traffic.send("a", gate=gate, **rounds(3))
    gate.wait_held(traffic.server)
    others = [traffic.queue(name, **rounds(2)) for name in "bc"]
    traffic.open_gates()
    history = report(others[-1])["history"]
    assert [name for rows in history for name in ids(rows)] == ["a", "a", "a", "b", "b", "c", "c"]
    assert first.result(30).status == 200


def test_row_101_a_pause_longer_than_the_idle_limit_cuts_the_sequence(traffic_to: Open) -> None:
    """Row 101. Its client has done nothing wrong, and hears what the matter is."""
    reply = traffic_to("again_silent").send("a", **rounds(3)).result(30)
    status, text = start_missing(1, "again_silent")
    why = "it had ended, since an iteration and the wait for it took longer than max_sequence_idle_microseconds, 1"
    assert refusal(reply) == (status, f"{text}; {why}")


def test_row_103_requests_that_have_ended_leave_no_failures(server: RunningServer, traffic_to: Open) -> None:
    """And each round is a success of its own, as in Triton."""
    traffic = traffic_to("again_single")
    before = statistics(server, "again_single")
    for number in range(10):
        assert traffic.send(f"r{number}", **rounds(2)).result(30).status == 200
    after = statistics(server, "again_single")
    assert after["inference_stats"]["fail"]["count"] == 0
    for name in ("inference_count", "execution_count"):
        assert after[name] - before[name] == 20
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 20
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert metric(server, "nv_inference_request_failure", "again_single", reason=reason) == 0
