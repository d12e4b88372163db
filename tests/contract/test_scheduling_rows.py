"""The scheduling checklist (scheduling.md, section 12) end to end: which requests reach the model together, and when.

A *blocker* is a request that its model holds in ``execute`` until the test opens its gate. Where the checklist has a delay
of a second, most models here have one of an hour, so that "at once" needs no clock: what is answered did not wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.contract.scripted_model import DEADLINES_S, WAIT_S
from tests.contract.wire_models import (
    PATIENT,
    Gate,
    Traffic,
    executions,
    impatient,
    infer_message,
    metric,
    pending,
    report_of,
    statistics,
    wait_pending,
    wait_until,
    write_recording,
)
from tests.harness import Reply, RunningServer, tensor

HOUR_US = 3_600_000_000
SECOND_US = 1_000_000
X = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] '
MODELS = {
    "default": "max_batch_size: 4",
    "three": "max_batch_size: 4 instance_group { count: 3 }",
    "batched": "max_batch_size: 4 dynamic_batching { }",
    "batched_two": "max_batch_size: 4 dynamic_batching { } instance_group { count: 2 }",
    "ordered_two": "max_batch_size: 4 dynamic_batching { preserve_ordering: true } instance_group { count: 2 }",
    "second": f"max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: {SECOND_US} }}",
    "hour": f"max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}",
    "preferred_hour": f"""max_batch_size: 8
        dynamic_batching {{ preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: {HOUR_US} }}""",
    "preferred_short": """max_batch_size: 8
        dynamic_batching { preferred_batch_size: [ 2, 4 ] max_queue_delay_microseconds: 1000 }""",
    "preferred": "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
    "shapes": f"{X} }} max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}",
    "ragged": f"""{X} allow_ragged_batch: true }} max_batch_size: 3
        dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}""",
    "optional": f"""max_batch_size: 8 dynamic_batching {{ max_queue_delay_microseconds: {SECOND_US} }}
        input {{ name: "A" data_type: TYPE_FP32 dims: [ 1 ] optional: true }}
        input {{ name: "B" data_type: TYPE_FP32 dims: [ 1 ] optional: true }}""",
    "single": "dynamic_batching { }",
    "limited": "dynamic_batching { default_queue_policy { max_queue_size: 2 } }",
    "impatient": impatient(),
    "override_none": "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    "override_hour": f"""dynamic_batching {{
        default_queue_policy {{ default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
    "override_short": impatient("allow_timeout_override: true"),
    "patient": f"dynamic_batching {{ default_queue_policy {{ default_timeout_microseconds: {HOUR_US} }} }}",
    "delaying": f"""dynamic_batching {{ default_queue_policy {{
        timeout_action: DELAY default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
    "impatient_hour": f"""max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US}
        default_queue_policy {{ default_timeout_microseconds: 200000 }} }}""",
    "levels": "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    "levels_batched": "max_batch_size: 4 dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    "levels_limited": """dynamic_batching { priority_levels: 2 default_priority_level: 2
        default_queue_policy { max_queue_size: 1 } priority_queue_policy { key: 1 value { max_queue_size: 3 } } }""",
    "levels_impatient": """dynamic_batching { priority_levels: 2 default_priority_level: 2
        priority_queue_policy { key: 1 value { default_timeout_microseconds: 1000 } } }""",
    "levels_delaying": f"""dynamic_batching {{ priority_levels: 2 default_priority_level: 2
        default_queue_policy {{
            timeout_action: DELAY default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("scheduling") / "models"
    for name, more in MODELS.items():
        write_recording(repository, name, more)
    with RunningServer(repository) as running:
        yield running


Open = Callable[[str], Traffic]


@pytest.fixture
def traffic_to(server: RunningServer, tmp_path: Path) -> Iterator[Open]:
    """Opens a `Traffic` to a model, which is closed after the test."""
    opened: list[Traffic] = []

    def open_to(model: str) -> Traffic:
        opened.append(Traffic(server, model, tmp_path))
        return opened[-1]

    yield open_to
    for traffic in opened:
        traffic.close()


def ids_of_executions(*futures: Future[Reply]) -> list[list[str]]:
    return executions([report_of(future.result(30)) for future in futures])


def behind_a_blocker(traffic: Traffic, *requests: dict[str, Any]) -> list[list[str]]:
    """The executions of *requests*, queued one after the other behind a blocker, r0 first."""
    blocker = traffic.block()
    queued = [traffic.queue(f"r{at}", **request) for at, request in enumerate(requests)]
    traffic.open_gates()
    assert ids_of_executions(blocker) == [["blocker"]]
    return ids_of_executions(*queued)


def singles(count: int) -> list[dict[str, Any]]:
    return [{}] * count


# ---------------------------------------------------------------------------------------------------- default scheduler


def test_the_default_scheduler_executes_one_request_at_a_time(traffic_to: Open) -> None:
    """Row 1."""
    assert behind_a_blocker(traffic_to("default"), *singles(3)) == [["r0"], ["r1"], ["r2"]]


def test_every_instance_takes_a_request(traffic_to: Open) -> None:
    """Row 2."""
    traffic = traffic_to("three")
    held = [traffic.block(f"r{at}") for at in range(3)]  # all three are in execute at the same time
    traffic.open_gates()
    assert len({report_of(future.result(30))["instance"] for future in held}) == 3


def test_the_default_scheduler_knows_no_timeouts_and_no_priorities(traffic_to: Open) -> None:
    """Rows 3 and 4."""
    timed_out = {"parameters": {"timeout": 1}}
    urgent = {"parameters": {"priority": 1}}
    late = {"parameters": {"priority": 3}}
    assert behind_a_blocker(traffic_to("default"), timed_out, late, urgent) == [["r0"], ["r1"], ["r2"]]


# ---------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("count", "sizes"), [pytest.param(6, [4, 2], id="row 19"), pytest.param(11, [4, 4, 3], id="row 20")]
)
def test_what_waited_behind_a_busy_instance_leaves_in_full_batches(
    traffic_to: Open, count: int, sizes: list[int]
) -> None:
    batches = behind_a_blocker(traffic_to("batched"), *singles(count))
    assert [len(ids) for ids in batches] == sizes
    assert [request_id for ids in batches for request_id in ids] == [f"r{at}" for at in range(count)]


def test_single_requests_to_an_idle_instance_do_not_wait(traffic_to: Open) -> None:
    """Row 21."""
    traffic = traffic_to("batched")
    for at in range(3):
        assert ids_of_executions(traffic.send(f"r{at}")) == [[f"r{at}"]]


def test_two_instances_share_one_queue(traffic_to: Open) -> None:
    """Row 22."""
    traffic = traffic_to("batched_two")
    blockers = [traffic.block("b0"), traffic.block("b1")]
    queued = [traffic.queue(f"r{at}") for at in range(9)]
    traffic.open_gates()
    assert {len(ids) for ids in ids_of_executions(*blockers)} == {1}
    assert sorted(len(ids) for ids in ids_of_executions(*queued)) == [1, 4, 4]


def test_requests_within_the_delay_share_a_batch(traffic_to: Open) -> None:
    """Row 23."""
    traffic = traffic_to("second")

    def share_one() -> bool:
        first = traffic.send("r0")
        wait_until(lambda: pending(traffic.server, "second") == 1 or first.done())
        return ids_of_executions(first, traffic.send("r1")) == [["r0", "r1"]]

    # On a busy machine a second may pass before the other one comes.
    assert any(share_one() for _ in range(5))


def test_a_full_batch_does_not_wait_for_the_delay(traffic_to: Open) -> None:
    """Row 24."""
    traffic = traffic_to("hour")
    waiting = [traffic.queue(f"r{at}") for at in range(3)]
    assert ids_of_executions(*waiting, traffic.send("r3")) == [["r0", "r1", "r2", "r3"]]
    fifth = traffic.queue("r4")
    assert ids_of_executions(fifth, traffic.send("rest", size=3)) == [["r4", "rest"]]


def test_what_does_not_fit_sends_off_what_waits(traffic_to: Open) -> None:
    """Rows 25 and 26."""
    traffic = traffic_to("hour")
    first = traffic.queue("r0", size=3)
    second = traffic.send("r1", size=2)
    assert ids_of_executions(first) == [["r0"]]
    third = traffic.queue("r2")
    assert not second.done()
    assert ids_of_executions(second, third, traffic.send("r3")) == [["r1", "r2", "r3"]]


def test_a_request_is_never_split(traffic_to: Open) -> None:
    """Row 40."""
    traffic = traffic_to("hour")
    first = traffic.queue("r0", size=2)
    second = traffic.send("r1", size=3)
    assert ids_of_executions(first) == [["r0"]]
    report = report_of(traffic.send("r2").result(30))
    assert (report["ids"], report["sizes"]) == (["r1", "r2"], [3, 1])
    assert ids_of_executions(second) == [["r1", "r2"]]


def test_a_request_that_stays_alone_leaves_after_the_delay(traffic_to: Open) -> None:
    """Row 27."""
    assert ids_of_executions(traffic_to("preferred_short").send("r0")) == [["r0"]]


def test_a_preferred_size_does_not_wait_for_the_delay(traffic_to: Open) -> None:
    """Rows 28, 29 and 30."""
    traffic = traffic_to("preferred_hour")
    first = traffic.queue("r0")
    assert ids_of_executions(first, traffic.send("r1")) == [["r0", "r1"]]
    third = traffic.queue("r2")
    assert ids_of_executions(third, traffic.send("r3")) == [["r2", "r3"]]
    large = traffic.queue("r4", size=3)
    assert ids_of_executions(large, traffic.send("r5")) == [["r4", "r5"]]


def test_a_request_above_every_preferred_size_leaves_alone_and_at_once(traffic_to: Open) -> None:
    """Row 31."""
    assert ids_of_executions(traffic_to("preferred_hour").send("r0", size=6)) == [["r0"]]


def test_after_the_delay_preferred_sizes_do_not_matter(traffic_to: Open) -> None:
    """Row 32."""
    assert [len(ids) for ids in behind_a_blocker(traffic_to("preferred_short"), *singles(6))] == [6]


def test_the_largest_preferred_size_that_can_be_had_goes_first(traffic_to: Open) -> None:
    """Row 33: late binding, where Triton's early one gives 2, 4, 1."""
    assert [len(ids) for ids in behind_a_blocker(traffic_to("preferred"), *singles(7))] == [4, 2, 1]


def shaped(size: int, *, rows: int = 1) -> list[dict[str, Any]]:
    return [tensor("X", "FP32", [rows, size], [0.0] * rows * size)]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        pytest.param([4, 5, 4], [["r0"], ["r1"], ["r2", "rest"]], id="row 34"),
        pytest.param([4, 4, 5], [["r0", "r1"], ["r2", "rest"]], id="row 35"),
    ],
)
def test_another_shape_sends_off_what_waits(traffic_to: Open, sizes: list[int], batches: list[list[str]]) -> None:
    """And the last one waits until its batch is full."""
    traffic = traffic_to("shapes")
    waiting: list[Future[Reply]] = []
    executed: list[list[str]] = []
    for at, size in enumerate(sizes):
        if at == 0 or size == sizes[at - 1]:
            waiting.append(traffic.queue(f"r{at}", inputs=shaped(size)))
            continue
        newcomer = traffic.send(f"r{at}", inputs=shaped(size))
        executed += ids_of_executions(*waiting)
        waiting = [newcomer]
        wait_pending(traffic.server, "shapes", 1, unless=newcomer)
    rest = traffic.send("rest", size=3, inputs=shaped(size, rows=3))
    assert executed + ids_of_executions(*waiting, rest) == batches


def test_ragged_requests_share_a_batch_with_their_own_shapes(traffic_to: Open) -> None:
    """Row 36."""
    traffic = traffic_to("ragged")
    waiting = [traffic.queue(f"r{at}", inputs=shaped(size)) for at, size in enumerate([4, 5])]
    report = report_of(traffic.send("r2", inputs=shaped(4)).result(30))
    assert (report["ids"], report["shapes"]) == (["r0", "r1", "r2"], [[[1, 4]], [[1, 5]], [[1, 4]]])
    assert ids_of_executions(*waiting) == [["r0", "r1", "r2"]]


def test_only_requests_with_the_same_optional_inputs_share_a_batch(traffic_to: Open) -> None:
    """Row 37."""
    traffic = traffic_to("optional")
    sets: list[list[str]] = [[], [], ["A"], ["A"], ["B"], []]
    batches = behind_a_blocker(
        traffic, *({"inputs": [tensor(name, "FP32", [1, 1], [0.0]) for name in names]} for names in sets)
    )
    assert batches == [["r0", "r1"], ["r2", "r3"], ["r4"], ["r5"]]


def test_nothing_else_keeps_requests_apart(traffic_to: Open) -> None:
    """Row 38."""
    chosen = {"outputs": [{"name": "REPORT"}], "parameters": {"a": 1, "timeout": 7, "priority": 2}}
    assert behind_a_blocker(traffic_to("batched"), {}, chosen) == [["r0", "r1"]]


def test_a_model_without_a_batch_dimension_gets_single_requests(traffic_to: Open) -> None:
    """Rows 39 and 53."""
    priorities = [{"parameters": {"priority": level}} for level in (3, 1, 2)]
    assert behind_a_blocker(traffic_to("single"), *priorities) == [["r0"], ["r1"], ["r2"]]


# ---------------------------------------------------------------------------------------------------- queue policies


def failures(server: RunningServer, model: str) -> dict[str, float]:
    reasons = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
    counted = {reason: metric(server, "nv_inference_request_failure", model, reason=reason) for reason in reasons}
    return {reason: count for reason, count in counted.items() if count}


def test_a_full_queue_refuses_at_once_and_counts_nothing(server: RunningServer, traffic_to: Open) -> None:
    """Rows 41 and 42, http.md row 82."""
    traffic = traffic_to("limited")
    blocker = traffic.block()
    queued = [traffic.queue("r0"), traffic.queue("r1")]
    reply = traffic.send("r2").result(30)
    assert (reply.status, reply.error) == (503, "[request id: r2] Exceeds maximum queue size")
    assert statistics(server, "limited")["inference_stats"]["fail"]["count"] == 0
    assert failures(server, "limited") == {}
    assert pending(server, "limited") == 2
    traffic.open_gates()
    assert {future.result(30).status for future in (blocker, *queued)} == {200}
    assert ids_of_executions(traffic.send("r3")) == [["r3"]]


def test_a_request_that_waited_too_long_is_rejected_while_the_instance_is_busy(
    server: RunningServer, traffic_to: Open
) -> None:
    """Rows 43 and 44, http.md row 83."""
    traffic = traffic_to("impatient")
    blocker = traffic.block(**PATIENT)
    reply = traffic.send("r0").result(30)
    assert (reply.status, reply.error) == (503, "Request timeout expired")
    assert not blocker.done()
    fail = statistics(server, "impatient")["inference_stats"]["fail"]
    assert fail["count"] == 1
    assert fail["ns"] >= 1_000_000, "the wait is what the failure took"
    assert failures(server, "impatient") == {"REJECTED": 1}
    assert pending(server, "impatient") == 0
    traffic.open_gates()
    assert blocker.result(30).status == 200


def test_a_request_is_rejected_while_it_waits_for_company(traffic_to: Open) -> None:
    """Row 50."""
    reply = traffic_to("impatient_hour").send("r0").result(30)
    assert (reply.status, reply.error) == (503, "Request timeout expired")


def test_a_shorter_timeout_of_the_request_counts(traffic_to: Open) -> None:
    """Row 46."""
    traffic = traffic_to("override_hour")
    traffic.block()
    reply = traffic.send("r0", parameters={"timeout": 1000}).result(30)
    assert (reply.status, reply.error) == (503, "Request timeout expired")


def test_a_longer_timeout_of_the_request_does_not_count(traffic_to: Open) -> None:
    """Row 47."""
    traffic = traffic_to("override_short")
    traffic.block(**PATIENT)
    reply = traffic.send("r0", parameters={"timeout": HOUR_US}).result(30)
    assert (reply.status, reply.error) == (503, "Request timeout expired")


@pytest.mark.parametrize(
    "model", [pytest.param("override_none", id="row 45"), pytest.param("patient", id="row 48: no override")]
)
def test_a_timeout_of_the_request_that_is_not_allowed_is_ignored(traffic_to: Open, model: str) -> None:
    assert behind_a_blocker(traffic_to(model), {"parameters": {"timeout": 1}}, {}) == [["r0"], ["r1"]]


def test_delayed_requests_go_behind_all_others(traffic_to: Open) -> None:
    """Row 49."""
    short: dict[str, Any] = {"parameters": {"timeout": 1}}
    batches = behind_a_blocker(traffic_to("delaying"), short, {}, short, {})
    assert batches == [["r1"], ["r3"], ["r0"], ["r2"]]


# ---------------------------------------------------------------------------------------------------- priority levels


def of_level(priority: int | None, **more: int) -> dict[str, Any]:
    return {"parameters": more if priority is None else {"priority": priority, **more}}


def test_row_51_higher_levels_go_first_and_the_default_level_is_for_the_rest(traffic_to: Open) -> None:
    asked = [of_level(priority) for priority in (3, 2, None, 1, 9, 0, 1)]
    batches = behind_a_blocker(traffic_to("levels"), *asked)
    assert batches == [["r3"], ["r6"], ["r1"], ["r2"], ["r4"], ["r5"], ["r0"]]


def test_row_52_levels_share_a_batch_the_higher_one_first(traffic_to: Open) -> None:
    asked = [of_level(priority) for priority in (3, 2, 1, 2, 1, 3)]
    assert behind_a_blocker(traffic_to("levels_batched"), *asked) == [["r2", "r4", "r1", "r3"], ["r0", "r5"]]


def test_row_148_each_level_is_full_for_itself(server: RunningServer, traffic_to: Open, stub: Any) -> None:
    """Over gRPC as over HTTP: the second request of each is sent by gRPC."""
    traffic = traffic_to("levels_limited")
    blocker = traffic.block()
    low = [traffic.queue("low", **of_level(2))]
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(leveled_message("levels_limited", "low too", uint64_param=2), timeout=30)
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "[request id: low too] Exceeds maximum queue size",
    )
    high = [traffic.queue(f"high{at}", **of_level(1)) for at in range(3)]
    reply = traffic.send("high3", **of_level(1)).result(30)
    assert (reply.status, reply.error) == (503, "[request id: high3] Exceeds maximum queue size")
    assert statistics(server, "levels_limited")["inference_stats"]["fail"]["count"] == 0
    traffic.open_gates()
    assert blocker.result(30).status == 200
    assert ids_of_executions(*low, *high) == [["high0"], ["high1"], ["high2"], ["low"]]


def test_row_54_a_timeout_of_one_level_is_none_of_another(traffic_to: Open, stub: Any) -> None:
    traffic = traffic_to("levels_impatient")
    blocker = traffic.block()
    low = traffic.queue("low", **of_level(2))
    reply = traffic.send("high", **of_level(1)).result(30)
    assert (reply.status, reply.error) == (503, "Request timeout expired")
    with pytest.raises(grpc.RpcError) as refused:
        stub.ModelInfer(leveled_message("levels_impatient", "high", int64_param=1), timeout=30)
    assert (refused.value.code(), refused.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "Request timeout expired",
    )
    assert not blocker.done()
    traffic.open_gates()
    assert ids_of_executions(low) == [["low"]]


def test_a_delayed_request_goes_behind_its_level_and_before_the_next(traffic_to: Open) -> None:
    """Rows 49 and 51, section 3.4."""
    asked = [of_level(1, timeout=1), of_level(1), of_level(2, timeout=1), of_level(2)]
    assert behind_a_blocker(traffic_to("levels_delaying"), *asked) == [["r1"], ["r0"], ["r3"], ["r2"]]


def test_clients_of_both_protocols_wait_in_the_same_levels(server: RunningServer, traffic_to: Open, stub: Any) -> None:
    """http.md, section 11; grpc.md, section 3.3. The depths of the levels are on the metrics page."""
    traffic = traffic_to("levels")
    blocker = traffic.block()

    def call(request_id: str, **priority: int) -> Any:
        waiting = pending(server, "levels")
        future = stub.ModelInfer.future(leveled_message("levels", request_id, **priority), timeout=30)
        wait_pending(server, "levels", waiting + 1)
        return future

    by_http = [traffic.queue("http 3", **of_level(3))]
    by_grpc = [call("grpc 3", int64_param=3), call("grpc 1", uint64_param=1)]
    by_http += [traffic.queue("http 1", **of_level(1))]
    by_grpc += [call("grpc 0", int64_param=0)]
    depths = [metric(server, "pytriton_lite_queue_depth", "levels", priority=str(level)) for level in (1, 2, 3)]
    assert depths == [2, 1, 2]
    traffic.open_gates()
    assert blocker.result(30).status == 200
    reports = [json.loads(future.result().raw_output_contents[0][4:]) for future in by_grpc]
    reports += [report_of(future.result(30)) for future in by_http]
    assert executions(reports) == [["grpc 1"], ["http 1"], ["grpc 0"], ["http 3"], ["grpc 3"]]
    assert [metric(server, "pytriton_lite_queue_depth", "levels", priority=str(level)) for level in (1, 2, 3)] == [
        0
    ] * 3


# ---------------------------------------------------------------------------------------------------- order of answers


def two_held(traffic: Traffic) -> tuple[Future[Reply], Future[Reply], Gate]:
    """Two requests that two instances hold, and the gate of the second."""
    first = traffic.block("slow")
    gate = traffic.gate()
    second = traffic.send("fast", gate=gate)
    gate.wait_held(traffic.server)
    return first, second, gate


def test_answers_keep_the_order_of_their_requests_where_asked_to(server: RunningServer, traffic_to: Open) -> None:
    """Row 55."""
    traffic = traffic_to("ordered_two")
    first, second, gate = two_held(traffic)
    gate.open()
    wait_until(lambda: statistics(server, "ordered_two")["inference_stats"]["success"]["count"] == 1)
    assert not wait([second], timeout=0).done, "the fast request was answered before the slow one"
    traffic.open_gates()
    assert {first.result(30).status, second.result(30).status} == {200}


def test_answers_overtake_each_other_otherwise(traffic_to: Open) -> None:
    """Row 56."""
    first, second, gate = two_held(traffic_to("batched_two"))
    gate.open()
    assert second.result(30).status == 200
    assert not first.done()


# ---------------------------------------------------------------------------------------------------- cancellation


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_url) as channel:
        grpc.channel_ready_future(channel).result(30)  # no deadline passes meanwhile
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def gated_message(model: str, request_id: str, path: str = "") -> Any:
    data = len(path).to_bytes(4, "little") + path.encode()
    shape = [1, 1] if "max_batch_size" in MODELS[model] else [1]
    return infer_message(model, ("GATE", "BYTES", shape, data), id=request_id)


@pytest.mark.parametrize(
    ("model", "ahead"),
    [pytest.param("default", 1, id="row 5"), pytest.param("batched", 0, id="row 57, grpc.md row 74")],
)
def test_a_request_cancelled_in_the_queue_is_never_executed(
    server: RunningServer, traffic_to: Open, stub: Any, model: str, ahead: int
) -> None:
    """*ahead* requests are with the worker already, where a cancellation does not reach them any more.

    The default scheduler of Triton still executes it; dropping it is allowed if it is counted (section 2, lite).
    """
    traffic = traffic_to(model)
    blocker = traffic.block()
    before = [traffic.queue(f"r{at}") for at in range(ahead)]
    executed = statistics(server, model)["execution_count"]
    call = stub.ModelInfer.future(gated_message(model, "cancelled"), timeout=30)
    wait_pending(server, model, ahead + 1)
    call.cancel()
    # On the connection that carried the cancellation, so behind it. The batcher drops what was cancelled when it comes.
    behind = stub.ModelInfer.future(gated_message(model, "behind"), timeout=30)
    wait_until(lambda: failures(server, model) == {"CANCELED": 1} or pending(server, model) == ahead + 2)
    traffic.open_gates()
    assert json.loads(behind.result().raw_output_contents[0][4:])["ids"] == ["behind"]
    assert ids_of_executions(blocker, *before) == [["blocker"], *([f"r{at}"] for at in range(ahead))]
    assert failures(server, model) == {"CANCELED": 1}
    assert statistics(server, model)["inference_stats"]["fail"]["count"] == 1
    assert statistics(server, model)["execution_count"] == executed + ahead + 2


def leveled_message(model: str, request_id: str, **priority: int) -> Any:
    """*priority* names one of the kinds that a parameter can be of."""
    message = gated_message(model, request_id)
    ((kind, value),) = priority.items()
    setattr(message.parameters["priority"], kind, value)
    return message


def test_a_request_cancelled_in_a_low_level_is_dropped_although_its_turn_does_not_come(
    server: RunningServer, traffic_to: Open, stub: Any
) -> None:
    """Row 57, with levels: it is counted when an instance is free the next time, and holds nobody up."""
    traffic = traffic_to("levels_limited")
    before = failures(server, "levels_limited").get("CANCELED", 0)
    blocker = traffic.block()
    call = stub.ModelInfer.future(leveled_message("levels_limited", "cancelled", uint64_param=2), timeout=30)
    wait_pending(server, "levels_limited", 1)
    call.cancel()
    # On the connection that carried the cancellation, so behind it; it finds room where the other one was.
    behind = stub.ModelInfer.future(leveled_message("levels_limited", "behind", uint64_param=2), timeout=30)
    high = traffic.queue("high", **of_level(1))
    traffic.open_gates()
    assert ids_of_executions(blocker, high) == [["blocker"], ["high"]]
    assert json.loads(behind.result().raw_output_contents[0][4:])["ids"] == ["behind"]
    assert failures(server, "levels_limited")["CANCELED"] == before + 1


def test_a_request_cancelled_while_it_waits_for_company_is_counted_at_once(server: RunningServer, stub: Any) -> None:
    """Row 58."""
    call = stub.ModelInfer.future(gated_message("preferred_hour", "cancelled"), timeout=30)
    wait_pending(server, "preferred_hour", 1)
    call.cancel()
    wait_until(lambda: failures(server, "preferred_hour") == {"CANCELED": 1})
    assert pending(server, "preferred_hour") == 0


def test_a_deadline_ends_the_wait_of_the_client_not_the_execution(
    server: RunningServer, traffic_to: Open, stub: Any
) -> None:
    """Row 59, grpc.md row 75."""
    traffic = traffic_to("three")

    def succeeded() -> int:
        return int(statistics(server, "three")["inference_stats"]["success"]["count"])

    def is_held_in_time() -> bool:
        wait_until(lambda: gate.is_held(server) or call.done(), limit_s=WAIT_S)
        return gate.is_held(server)

    missed = 0
    for deadline_s in DEADLINES_S:
        before = succeeded()
        gate = traffic.gate()
        call = stub.ModelInfer.future(gated_message("three", "late", gate.path), timeout=deadline_s)
        if is_held_in_time():
            break
        missed += 1
        gate.open()
    else:
        raise AssertionError("the model was not reached")
    assert call.exception().code() == grpc.StatusCode.DEADLINE_EXCEEDED
    gate.open()
    wait_until(lambda: succeeded() > before)
    assert sum(failures(server, "three").values()) <= missed
