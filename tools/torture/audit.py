"""What must hold when the load has stopped: functions from what was recorded to what is wrong, in words."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from pytriton_lite.frontends.process.peer import FRONT_END_GONE
from tools.torture.inject import Done
from tools.torture.load import Sightings
from tools.torture.models import MODELS, SEQUENCES, STEADY, asked_by
from tools.torture.records import VIOLATIONS, Cause, Ledger, Outcome, Record
from tools.torture.schedule import MISBEHAVE, ON_FORK_SERVER, ON_FRONT_END, ON_SYSTEM, ON_WORKERS, is_stuck

# ---------------------------------------------------------------------------------------------- ends of requests


def check_ends(ledger: Ledger, sightings: Sightings, done: Sequence[Done] = ()) -> list[str]:
    """Each request ended once, with its answer or with an error that has a cause.

    A connection may be lost when its front end was killed, or did not go on.
    """
    wrong = [f"a request without an end: {record}" for record in ledger.unended()]
    wrong += [f"a request with two ends: {text}" for text in ledger.doubled]
    for record in ledger.records.values():
        is_lost = record.outcome is Outcome.LOST or record.text == _LOST_TO_GRPC
        if is_lost and any(_ends_connections(fault, record) for fault in done):
            continue
        if record.outcome is not None and record.outcome in VIOLATIONS:
            wrong.append(f"{record.outcome.value}: {record}")
    wrong += [f"unasked: {text}" for text in sightings.unasked]
    wrong += [f"readiness: {text}" for text in sightings.lies]
    return wrong


_LOST_TO_GRPC = "Internal error from Core"
"""What grpcio says of a connection that ends before it has begun."""


def _ends_connections(done: Done, record: Record) -> bool:
    assert record.ended_s is not None
    return (
        done.fault.kind in ON_FRONT_END and record.began_s <= done.ended_s + _FELT_S and done.began_s <= record.ended_s
    )


_FELT_S = 5.0
"""So long a fault may be felt after its end."""
_FELT_LONGER_S = {Cause.NOT_READY: 35.0, Cause.REGION_SHRUNK: 35.0}
"""So long may these be: the longest back-off of a worker that dies again and again is 30 s, and a client keeps its region,
which a worker found too small, for up to twenty requests."""

_HARMLESS = frozenset({"nap", "print", "terminate_itself", "fork", "hoard", "exception", "wrong_count"})
"""Misdeeds of which no worker dies."""


def check_causes(ledger: Ledger, done: Sequence[Done]) -> list[str]:
    """An error tells the truth where a fault was at work that can be its cause."""
    wrong = []
    for record in ledger.records.values():
        if record.outcome is not Outcome.ERROR or record.cause is None:
            continue
        if not any(_explains(fault, record) for fault in done):
            wrong.append(f"no fault explains the error '{record.cause.value}': {record}")
    return wrong


def _explains(done: Done, record: Record) -> bool:
    assert record.ended_s is not None and record.cause is not None
    felt_s = _FELT_LONGER_S.get(record.cause, _FELT_S)
    if done.began_s > record.ended_s or record.began_s > done.ended_s + felt_s:
        return False
    concerned = {record.model, *asked_by(record.model)}
    kind, fault = done.fault.kind, done.fault
    misdeed = kind.removeprefix(MISBEHAVE) if kind.startswith(MISBEHAVE) else ""
    is_theirs = fault.target in concerned
    ends_workers = kind in ON_FORK_SERVER or (
        is_theirs and (kind in ON_WORKERS or (bool(misdeed) and misdeed not in _HARMLESS))
    )
    is_short_of = kind in ON_SYSTEM or misdeed in ("hoard", "exhaust", "overrun") or kind == "starve worker of memory"
    if record.kind == "regions" and record.cause is Cause.REGION_SHRUNK:
        return misdeed == "truncate" or kind == "truncate region"
    if record.kind == "regions" and record.cause is Cause.WORKER_DIED and misdeed == "truncate":
        return True  # a model truncates what it was lent, and another one has it mapped, too
    if record.cause is Cause.WORKER_DIED and kind == "truncate region":
        return True  # whoever has a page of it that is not there any more is ended by SIGBUS
    cause = record.cause
    if cause in (Cause.WORKER_DIED, Cause.NOT_READY):
        return ends_workers or is_short_of or (is_theirs and kind == "load and unload")
    if cause is Cause.MODEL_RAISED:
        return is_theirs and (bool(misdeed) or kind == "starve worker of memory")
    if cause in (Cause.UNKNOWN_MODEL, Cause.UNLOADING):
        # A model that is loaded anew while its workers do not come up has no version that serves.
        return (is_theirs and kind == "load and unload") or ends_workers or is_short_of
    if cause in (Cause.NO_MEMORY, Cause.NO_DESCRIPTORS):
        return is_short_of
    if cause is Cause.SEQUENCE_LOST:
        return record.model in SEQUENCES and (ends_workers or is_short_of or misdeed == "nap")
    if cause is Cause.OVERLOAD:
        return kind == "burst" or is_stuck(fault) or kind == "stop worker"
    return ends_workers or is_short_of


# ---------------------------------------------------------------------------------------------- counters


@dataclass
class ModelCounters:
    """Of one model, as the statistics and the metrics tell."""

    success: int = 0
    fail: int = 0
    metric_success: int = 0
    metric_fail: int = 0
    pending: int = 0


@dataclass
class Counters:
    models: dict[str, ModelCounters] = field(default_factory=lambda: defaultdict(ModelCounters))
    http: Counter[int] = field(default_factory=Counter)
    grpc: Counter[str] = field(default_factory=Counter)
    slots: Counter[str] = field(default_factory=Counter)
    """Places in shared memory that are referred to, by the instance that has them."""
    unanswered: int = 0
    """Requests that were accepted and not answered."""
    unanswered_bytes: int = 0


_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? ([-+.\deE]+|NaN|[+-]?Inf)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_counters(statistics: Mapping[str, object], page: str) -> Counters:
    """From the document of ``/v2/models/stats`` and the metrics page."""
    counters = Counters()
    for row in statistics["model_stats"]:  # type: ignore[attr-defined]
        model = counters.models[row["name"]]
        model.success += int(row["inference_stats"]["success"]["count"])
        model.fail += int(row["inference_stats"]["fail"]["count"])
    for name, labels_text, value in _SAMPLE.findall(page):
        labels = dict(_LABEL.findall(labels_text))
        if name == "nv_inference_request_success":
            counters.models[labels["model"]].metric_success += int(float(value))
        elif name == "nv_inference_request_failure":
            counters.models[labels["model"]].metric_fail += int(float(value))
        elif name == "nv_inference_pending_request_count":
            counters.models[labels["model"]].pending += int(float(value))
        elif name == "pytriton_lite_requests" and labels["protocol"] == "http":
            counters.http[int(labels["code"])] += int(float(value))
        elif name == "pytriton_lite_requests":
            counters.grpc[labels["code"]] += int(float(value))
        elif name == "pytriton_lite_shared_memory_slots":
            counters.slots[labels["model_instance"]] += int(float(value))
        elif name == "pytriton_lite_unanswered_requests":
            counters.unanswered += int(float(value))
        elif name == "pytriton_lite_unanswered_bytes":
            counters.unanswered_bytes += int(float(value))
    return counters


@dataclass
class Range:
    """What clients know of a number: *low* to *high* of it."""

    low: int = 0
    high: int = 0

    def add(self, low: int, high: int) -> None:
        self.low += low
        self.high += high

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"


@dataclass
class Expected:
    """Of one model."""

    success: Range = field(default_factory=Range)
    fail: Range = field(default_factory=Range)
    ended: Range = field(default_factory=Range)
    """Both together."""


def expect(records: Iterable[Record]) -> dict[str, Expected]:
    """What each model must have counted for *records*, with those that other models asked of it."""
    expected: dict[str, Expected] = defaultdict(Expected)
    for record in records:
        own, inner = expected[record.model], asked_by(record.model)
        if record.outcome is Outcome.RIGHT:
            own.success.add(1, 1)
            own.ended.add(1, 1)
            for callee, count in inner.items():
                expected[callee].success.add(count, count)
                expected[callee].ended.add(count, count)
            continue
        is_executed = record.outcome is Outcome.ERROR and record.cause in (Cause.WORKER_DIED, Cause.MODEL_RAISED)
        # An error that a model returns counts as a success of the model; one that an ensemble passes on as a failure.
        # A model that answers when ``execute`` has returned may fail then: that is a success, and a failure behind it.
        defers = MODELS[record.model].defers
        is_leaf = not MODELS[record.model].asks and not defers
        own.success.add(0, 0 if is_executed and is_leaf else 1)
        own.fail.add(1 if is_executed and is_leaf else 0, 1)
        own.ended.add(1 if is_executed else 0, 2 if defers else 1)
        for callee, count in inner.items():
            expected[callee].success.add(0, count)
            expected[callee].fail.add(0, count)
            expected[callee].ended.add(0, count * (2 if MODELS[callee].defers else 1))
    return expected


def check_counters(before: Counters, after: Counters, records: Iterable[Record]) -> list[str]:
    """What the server counted between two looks agrees with what its clients saw, and with itself."""
    wrong = []
    expected = expect(records)
    for name in STEADY:
        was, now, known = before.models[name], after.models[name], expected[name]
        success, fail = now.success - was.success, now.fail - was.fail
        for what, counted, seen in (
            ("successes", success, known.success),
            ("failures", fail, known.fail),
            ("ended requests", success + fail, known.ended),
        ):
            if counted not in seen:
                wrong.append(f"'{name}' counted {counted} {what}, its clients know of {seen}")
    for name, model in after.models.items():
        if (model.success, model.fail) != (model.metric_success, model.metric_fail):
            wrong.append(
                f"'{name}': the statistics say {model.success} successes and {model.fail} failures, the metrics "
                f"{model.metric_success} and {model.metric_fail}"
            )
        if model.pending:
            wrong.append(f"'{name}' has {model.pending} pending requests, and nobody asks")
    if after.unanswered or after.unanswered_bytes:
        wrong.append(f"{after.unanswered} requests of {after.unanswered_bytes} bytes are unanswered, and nobody asks")
    return wrong


def check_answers(before: Counters, after: Counters, heard: Counter[int], unheard: int) -> list[str]:
    """HTTP: *heard* answers by status, and *unheard* ones of which no client knows."""
    wrong = []
    given = after.http - before.http
    for status, count in heard.items():
        if given[status] < count:
            wrong.append(f"{count} answers with status {status} came, the server counted {given[status]}")
    surplus = given.total() - heard.total()
    if surplus > unheard:
        wrong.append(f"the server counted {surplus} answers that nobody heard, {unheard} there may be")
    return wrong


def check_calls(before: Counters, after: Counters, ended: Counter[str]) -> list[str]:
    """gRPC: *ended* unary calls by status. A stream is a call, too, so the server may have counted more."""
    given = after.grpc - before.grpc
    return [
        f"{count} calls ended with {status}, the server counted {given[status]}"
        for status, count in ended.items()
        if given[status] < count
    ]


# ---------------------------------------------------------------------------------------------- what a server takes


@dataclass(frozen=True)
class Vitals:
    """What the server takes when it has nothing to do."""

    descriptors: int
    threads: int
    memory_mib: int
    workers: int
    fork_servers: int
    """Those without a worker. One that did not answer keeps the workers that it had, beside its successor."""
    strangers: int
    """Processes that the server, or what it started, has left behind. The children of a living worker are its own."""
    zombies: int
    slots: int
    shared_memory_files: int
    temporary_files: int
    fork_server_descriptors: int
    """Of the one that has most."""
    objects: Mapping[str, int] = field(default_factory=dict)
    """Tasks, requests, batches and the like in the server's process, by the name of their class."""

    def __str__(self) -> str:
        return ", ".join(f"{one.name} {getattr(self, one.name)}" for one in fields(self) if one.name != "objects")


TOLERANCES = {
    "descriptors": 4,
    "threads": 12,
    "memory_mib": 64,
    "workers": 0,
    "fork_servers": 0,
    "strangers": 0,
    "zombies": 0,
    "slots": 0,
    "shared_memory_files": 0,
    "temporary_files": 1,
    "fork_server_descriptors": 2,
}
"""Growth that is none: threads and a descriptor or two of pools that had not been needed in the warm-up; memory that the
allocator keeps."""

_OBJECT_TOLERANCE = 3
_TEMPLATES = 512
"""Requests that the HTTP front end remembers as templates of those to come (frontends/http/templates.py)."""


def check_vitals(before: Vitals, now: Vitals) -> list[str]:
    """What has grown."""
    wrong = []
    for name, tolerance in TOLERANCES.items():
        was, grown = getattr(before, name), getattr(now, name)
        if grown > was + tolerance or (name == "workers" and grown != was):
            wrong.append(f"{name.replace('_', ' ')}: {was} became {grown}")
    for name, count in now.objects.items():
        was = before.objects.get(name, 0)
        if count > was + (_TEMPLATES if name == "InferenceRequest" else _OBJECT_TOLERANCE):
            wrong.append(f"objects of class {name}: {was} became {count}")
    return wrong


# ---------------------------------------------------------------------------------------------- the log

_FORBIDDEN = re.compile(
    r"never retrieved|never awaited|Exception in callback|Exception ignored|Fatal Python error|Fatal (read|write|error)"
    r"|\bBUG\b|BugError|internal error of the server|failed inside the server|RuntimeWarning|ResourceWarning|unraisable",
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TRACEBACK = "Traceback (most recent call last)"


def check_log(text: str) -> list[str]:
    """Lines of the log (``--log-format=json``) that tell of a fault of the server itself."""
    wrong = []
    plain: list[str] = []
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            document = None
        if not isinstance(document, dict) or "message" not in document:
            plain.append(line)
            continue
        # What a model prints is its own.
        is_models = document.get("file") in ("stdout", "stderr")
        whole = f"{document['message']}\n{document.get('exception', '')}"
        if not is_models and _FORBIDDEN.search(whole):
            wrong.append(f"log: {line[:1500]}")
        elif frame := own_frame(whole):
            wrong.append(f"a traceback of the server's own code ({frame}): {line[:3000]}")
    if any(line.strip() for line in plain):
        wrong.append("lines outside of the log's format: " + "\n".join(plain)[:3000])
    return wrong


def own_frame(text: str) -> str:
    """The innermost frame of the first traceback in *text* that ends in the server's code; empty for none."""
    for block in text.split(_TRACEBACK)[1:]:
        found = _FRAME.findall(block)
        if found and "/pytriton_lite/" in found[-1][0] and not _is_model_edge(block):
            return ":".join(found[-1])
    return ""


def _is_model_edge(block: str) -> bool:
    """Whether the server's code raised for the model that called it: the model is on the stack."""
    return any(path.endswith("/1/model.py") for path, _, _ in _FRAME.findall(block))


def check_access_log(text: str, ledger: Ledger) -> list[str]:
    """One line at most for each request of the round, which agrees with what its client saw."""
    wrong = []
    seen: Counter[str] = Counter()
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue  # one that a full disk cut short
        request_id = document.get("request_id") or ""
        record = ledger.records.get(request_id)
        if record is None:
            continue
        seen[request_id] += 1
        status = document.get("status")
        # A front end that is killed between the answer's last byte and the word of it: the server cannot know of the answer.
        is_lost = document.get("error") == FRONT_END_GONE
        if record.outcome is Outcome.RIGHT and str(status) not in ("200", "OK", "0") and not is_lost:
            wrong.append(f"the access log says {status} of {record}: {line[:500]}")
    wrong += [
        f"{count} lines in the access log for {ledger.records[name]}" for name, count in seen.items() if count > 1
    ]
    return wrong
