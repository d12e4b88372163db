"""The auditor of ``make torture`` sees what it is there to see."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tools.torture import audit
from tools.torture.audit import Counters, Vitals, read_counters
from tools.torture.inject import Done
from tools.torture.load import Sightings
from tools.torture.records import Cause, Ledger, Outcome, Record
from tools.torture.schedule import KINDS, Fault, draw, read, write

NOBODY = Sightings()
DIED = "Stub process 'plain_0_0' is not healthy. The worker was killed by signal 9 while it had this request."
VITALS = Vitals(100, 4, 60, 18, 1, 0, 0, 0, 0, 1, 6, {"Ticket": 0, "Task": 1})


@pytest.fixture
def ledger() -> Ledger:
    ticks = iter(range(1000))
    return Ledger(1, clock=lambda: float(next(ticks)))


def right(ledger: Ledger, model: str = "plain", count: int = 1) -> list[Record]:
    records = [ledger.begin("HTTP JSON", model) for _ in range(count)]
    for record in records:
        ledger.end(record, Outcome.RIGHT, status="200")
    return records


def done(kind: str, target: str, began_s: float, ended_s: float) -> Done:
    return Done(Fault(1, 0.0, kind, target, 1.0), began_s, ended_s, "")


# ---------------------------------------------------------------------------------------------- ends


def test_requests_that_end_once_are_in_order(ledger: Ledger) -> None:
    right(ledger, count=3)
    assert audit.check_ends(ledger, NOBODY) == []


def test_a_lost_request_is_seen(ledger: Ledger) -> None:
    lost = ledger.begin("gRPC", "plain")
    (found,) = audit.check_ends(ledger, NOBODY)
    assert found.startswith(f"a request without an end: {lost.request_id} (gRPC to plain")


def test_a_second_end_is_seen_and_changes_nothing(ledger: Ledger) -> None:
    (record,) = right(ledger)
    ledger.end(record, Outcome.ERROR, status="503", text="again")
    (found,) = audit.check_ends(ledger, NOBODY)
    assert found.startswith("a request with two ends") and "'again'" in found
    assert record.outcome is Outcome.RIGHT


@pytest.mark.parametrize("outcome", [Outcome.WRONG, Outcome.LOST, Outcome.HANG, Outcome.UNKNOWN_ERROR])
def test_an_end_that_is_none_is_seen(ledger: Ledger, outcome: Outcome) -> None:
    ledger.end(ledger.begin("gRPC", "plain"), outcome)
    (found,) = audit.check_ends(ledger, NOBODY)
    assert found.startswith(outcome.value)


def test_readiness_that_lied_and_bytes_that_nobody_asked_for_are_seen(ledger: Ledger) -> None:
    sightings = Sightings(lies=["ready"], unasked=["more"])
    assert audit.check_ends(ledger, sightings) == ["unasked: more", "readiness: ready"]


def test_an_error_with_an_unknown_text_has_no_cause(ledger: Ledger) -> None:
    record = ledger.begin("gRPC", "plain")
    ledger.fail(record, "INTERNAL", "something went wrong")
    assert record.outcome is Outcome.UNKNOWN_ERROR


# ---------------------------------------------------------------------------------------------- causes


def test_an_error_is_explained_by_a_fault_in_a_model_that_was_asked_in_turn(ledger: Ledger) -> None:
    record = ledger.begin("gRPC", "nested")
    ledger.fail(record, "UNAVAILABLE", DIED)
    assert record.cause is Cause.WORKER_DIED
    assert audit.check_causes(ledger, [done("kill worker", "plain", 0.0, 0.0)]) == []


@pytest.mark.parametrize(
    "fault",
    [
        done("kill worker", "count", 0.0, 0.0),
        done("kill worker", "plain", 50.0, 51.0),
        done("misbehave: nap", "plain", 0.0, 1.0),
        done("load and unload", "storm_a", 0.0, 1.0),
    ],
    ids=["of another model", "later", "of which nobody dies", "of the repository"],
)
def test_an_error_without_a_fault_that_explains_it_is_seen(ledger: Ledger, fault: Done) -> None:
    ledger.fail(ledger.begin("gRPC", "plain"), "UNAVAILABLE", DIED)
    (found,) = audit.check_causes(ledger, [fault])
    assert found.startswith("no fault explains the error 'worker died'")


# ---------------------------------------------------------------------------------------------- counters


def counters(**successes: int) -> Counters:
    """Counters of models that have only succeeded; what is not named has counted nothing."""
    statistics: dict[str, Any] = {"model_stats": []}
    lines = []
    for name, count in successes.items():
        row = {"success": {"count": count}, "fail": {"count": 0}}
        statistics["model_stats"].append({"name": name, "inference_stats": row})
        lines.append(f'nv_inference_request_success{{model="{name}",version="1"}} {count}')
    return read_counters(statistics, "\n".join(lines) + "\n")


def test_counters_that_agree_are_in_order(ledger: Ledger) -> None:
    right(ledger, "chain", 2)
    after = counters(chain=2, plain=4, large=2)
    assert audit.check_counters(Counters(), after, ledger.records.values()) == []


def test_a_success_that_was_not_counted_is_seen(ledger: Ledger) -> None:
    right(ledger, "plain", 3)
    found = audit.check_counters(Counters(), counters(plain=2), ledger.records.values())
    assert "'plain' counted 2 successes, its clients know of 3" in found


def test_a_success_that_was_counted_twice_is_seen_in_a_model_that_another_asks(ledger: Ledger) -> None:
    right(ledger, "calls_twice", 1)
    found = audit.check_counters(Counters(), counters(calls_twice=1, plain=2), ledger.records.values())
    assert found[0] == "'plain' counted 2 successes, its clients know of 1"


def test_a_client_that_left_leaves_one_request_open_either_way(ledger: Ledger) -> None:
    ledger.end(ledger.begin("rude", "plain"), Outcome.VANISHED)
    for count, is_right in ((0, True), (1, True), (2, False)):
        found = audit.check_counters(Counters(), counters(plain=count), ledger.records.values())
        assert (not found) is is_right


def test_a_request_of_a_dead_worker_counts_as_a_failure(ledger: Ledger) -> None:
    ledger.fail(ledger.begin("gRPC", "plain"), "UNAVAILABLE", DIED)
    found = audit.check_counters(Counters(), counters(plain=1), ledger.records.values())
    assert found[:2] == [
        "'plain' counted 1 successes, its clients know of 0",
        "'plain' counted 0 failures, its clients know of 1",
    ]


@pytest.mark.parametrize("successes", [0, 1])
def test_a_request_that_a_dead_worker_was_still_to_answer_counts_as_a_failure_too(
    ledger: Ledger, successes: int
) -> None:
    ledger.fail(ledger.begin("gRPC", "count"), "UNAVAILABLE", DIED)
    after = counters(count=successes)
    after.models["count"].fail = after.models["count"].metric_fail = 1
    assert audit.check_counters(Counters(), after, ledger.records.values()) == []


def test_metrics_that_tell_something_else_than_the_statistics_are_seen() -> None:
    after = counters(storm_a=5)
    after.models["storm_a"].metric_success = 4
    after.models["storm_a"].pending = 1
    assert audit.check_counters(Counters(), after, []) == [
        "'storm_a': the statistics say 5 successes and 0 failures, the metrics 4 and 0",
        "'storm_a' has 1 pending requests, and nobody asks",
    ]


def test_answers_that_were_given_to_nobody_are_seen() -> None:
    after = Counters(http=Counter({200: 7}))
    assert audit.check_answers(Counters(), after, Counter({200: 5}), unheard=2) == []
    assert audit.check_answers(Counters(), after, Counter({200: 5}), unheard=1) == [
        "the server counted 2 answers that nobody heard, 1 there may be"
    ]
    assert audit.check_answers(Counters(), after, Counter({200: 8}), unheard=0) == [
        "8 answers with status 200 came, the server counted 7"
    ]


def test_calls_that_were_not_counted_are_seen() -> None:
    after = Counters(grpc=Counter({"OK": 7}))
    assert audit.check_calls(Counters(), after, Counter({"OK": 6})) == []
    assert audit.check_calls(Counters(), after, Counter({"OK": 7, "UNAVAILABLE": 1})) == [
        "1 calls ended with UNAVAILABLE, the server counted 0"
    ]


# ---------------------------------------------------------------------------------------------- what a server takes


@pytest.mark.parametrize(
    ("name", "value"),
    [("descriptors", 105), ("slots", 1), ("shared_memory_files", 1), ("strangers", 1), ("zombies", 1), ("workers", 17)],
)
def test_what_leaks_is_seen(name: str, value: int) -> None:
    assert audit.check_vitals(VITALS, VITALS) == []
    (found,) = audit.check_vitals(VITALS, replace(VITALS, **{name: value}))
    assert found == f"{name.replace('_', ' ')}: {getattr(VITALS, name)} became {value}"


def test_objects_that_stay_are_seen() -> None:
    now = replace(VITALS, objects={"Ticket": 4, "Task": 1})
    assert audit.check_vitals(VITALS, now) == ["objects of class Ticket: 0 became 4"]


# ---------------------------------------------------------------------------------------------- the log


def line(message: str, **more: object) -> str:
    return json.dumps({"level": "error", "file": "dispatch.py", "message": message, **more})


MODEL_FRAME = '  File "/models/plain/1/model.py", line 3, in execute\n'
OWN_FRAME = '  File "/lib/pytriton_lite/engine/serving/dispatch.py", line 3, in _turn\n'


@pytest.mark.parametrize(
    "text",
    [
        line("Task exception was never retrieved"),
        line("it failed", exception=f"Traceback (most recent call last):\n{OWN_FRAME}KeyError: 3"),
        line(f"it failed\nTraceback (most recent call last):\n{OWN_FRAME}KeyError: 3"),
        'Traceback (most recent call last):\n  File "x.py"',
    ],
)
def test_a_fault_of_the_server_is_seen_in_its_log(text: str) -> None:
    assert len(audit.check_log(line("all is well") + "\n" + text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        line(f"the model failed\nTraceback (most recent call last):\n{MODEL_FRAME}ValueError: no"),
        line(f"refused\nTraceback (most recent call last):\n{MODEL_FRAME}{OWN_FRAME}TritonModelException: no"),
        line("Fatal error, BUG", file="stdout"),
    ],
)
def test_what_models_do_and_print_is_no_fault_of_the_server(text: str) -> None:
    assert audit.check_log(text) == []


def test_two_lines_of_the_access_log_for_one_request_are_seen(ledger: Ledger) -> None:
    (record,) = right(ledger)
    text = json.dumps({"request_id": record.request_id, "status": 200}) + "\n"
    assert audit.check_access_log(text, ledger) == []
    (found,) = audit.check_access_log(2 * text, ledger)
    assert found.startswith("2 lines in the access log")
    (other,) = audit.check_access_log(text.replace("200", "503"), ledger)
    assert other.startswith("the access log says 503")


# ---------------------------------------------------------------------------------------------- the schedule


def test_a_seed_draws_the_same_faults_again_and_a_file_keeps_them(tmp_path: Any) -> None:
    faults = draw(7, 2, seconds=20, count=200)
    assert faults == draw(7, 2, seconds=20, count=200) != draw(8, 2, seconds=20, count=200)
    write(tmp_path / "faults.jsonl", faults)
    assert read(tmp_path / "faults.jsonl") == faults


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = {fault.kind for number in range(20) for fault in draw(1, number, seconds=20, count=100)}
    assert drawn == set(KINDS)
