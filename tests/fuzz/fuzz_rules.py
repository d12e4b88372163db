"""What must hold of every answer, and of the server in the whole."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import select
import signal
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton_lite import owned_server
from tests.fuzz.fuzz_models import CONTROL, CONTROL_ANSWER, VICTIM
from tests.fuzz.fuzz_wire import DEADLINE_S, Case, Ending, Finding, GrpcAnswer, Heard, HttpAnswer, Ports, ask, ask_json

_TYPE = (
    r"attempt to access JSON non-(string|boolean|unsigned-integer|signed-integer|number|array|object) as "
    r"(string|boolean|unsigned-integer|signed-integer|double|array|object)"
    r"|attempt to access non-existing object member '.*'"
    r"|attempt to get members for non-object"
)
_MODEL = (
    r"Failed to process the request\(s\) for model '.*"  # what execute raised (gRPC spec, section 3.6)
    r"|no code given|as the model says"  # what the model "fail" answers
)
ALLOWED_500 = re.compile(
    "|".join(
        [
            r"failed to parse the request JSON buffer: .*",  # section 1
            rf"({_TYPE})",  # sections 12 to 14
            rf"Unable to parse '[^']*': ({_TYPE})",  # sections 7.4 to 7.8
            r"Unable to parse 'data': Shape does not match true shape of 'data' field",  # section 7.4
            r"Failed to parse 'data' field: shape does not match true shape",
            rf"Unable to parse JSON bytes array: ({_TYPE})",
            rf"failed to get request params\.: ({_TYPE})",  # section 7.6
            r"output tensor shape does not match size of output for '.*'",
            r"expected a single response, got \d+",  # section 7.8
            rf"Unable to set '(classification|binary_data)': ({_TYPE})",  # sections 8 and 10
            r"Unable to open shared memory region: '.*'|Invalid shared memory region: '.*'",  # section 12
            r"shared memory size specified with the request for output '.*' \(\d+ bytes\) should be at least \d+ bytes .*",
            r"failed to load '.*', failed to poll from model repository",  # section 13
            r"unexpected error on creating Triton parameter",
            rf"Expected JSON object for keyword: 'parameters': ({_TYPE})",  # section 15
            rf"Converting keyword: 'parameters': .*({_TYPE}|Shape does not match true shape of 'data' field"
            r"|shape does not match true shape)",
            _MODEL,
        ]
    ),
    re.DOTALL,
)
"""The texts that the HTTP spec answers with 500. Any other text with that status is a fault of the server."""

ALLOWED_INTERNAL = re.compile(
    rf"Unable to parse request.*|failed to load '.*', failed to poll from model repository|{_MODEL}"
    r"|Unable to open shared memory region: '.*'|shared memory size specified with the request for output .*"
    # What the framing of messages can get wrong; the gRPC specification says INTERNAL.
    r"|grpc-timeout '.*' is not 1 to 8 digits and one of H, M, S, m, u, n"
    r"|a message begins with 0 or 1, and \d+ was sent|a message is compressed, and grpc-encoding does not say how"
    r"|message cannot be decompressed as (gzip|deflate): .*|a unary method takes one message, and (more|none) was sent"
    r"|the message is cut short: \d+ of \d+ bytes were sent",
    re.DOTALL,
)
ALLOWED_STATUS = frozenset({200, 400, 403, 404, 405, 500, 501, 503, 505})
_DEAD_WORKER = "is not healthy"
_LOG_FAULTS = re.compile(
    r"failed inside the server|^ *Traceback \(most recent call last\)|Task exception was never retrieved"
    r"|Exception in callback|exception was never retrieved|Fatal (error|write error)|is not healthy|died|RuntimeWarning",
    re.MULTILINE,
)


def check_http(answer: HttpAnswer, method: str) -> None:
    """Raises Finding where a client would not understand *answer*, or it tells of a fault of the server."""
    if answer.status not in ALLOWED_STATUS:
        raise Finding(f"status {answer.status}: {answer.body[:300]!r}")
    if method == "HEAD":
        return
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        _check_events(answer)
    elif answer.status == 200:
        _check_success(answer)
    elif not _is_without_document(answer):
        check_error(answer.status, _error_text(answer.body))


def _is_without_document(answer: HttpAnswer) -> bool:
    """The server's readiness has an empty body; what is not HTTP gets a line of text, and the connection ends."""
    return answer.status == 400 and (not answer.body or answer.body == b"Invalid HTTP request received.")


def _error_text(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        raise Finding(f"an error that is no JSON: {body[:300]!r}") from None
    if not isinstance(document, dict) or set(document) != {"error"} or not isinstance(document["error"], str):
        raise Finding(f"an error of another form: {body[:300]!r}")
    return document["error"]


def check_error(status: int, text: str) -> None:
    if not text or _DEAD_WORKER in text:
        raise Finding(f"{status} {text!r}")
    if status == 500 and not ALLOWED_500.fullmatch(text):
        raise Finding(f"a 500 that the specification does not know: {text!r}")


def _check_events(answer: HttpAnswer) -> None:
    """Section 15: ``data: {...}`` and an empty line, for each response."""
    *events, rest = answer.body.split(b"\n\n")
    if rest or any(not event.startswith(b"data: ") for event in events):
        raise Finding(f"bad events: {answer.body[:300]!r}")
    for event in events:
        document = json.loads(event.removeprefix(b"data: "))
        if not isinstance(document, dict) or not ({"error"} == set(document) or "model_name" in document):
            raise Finding(f"a bad event: {event[:300]!r}")


def _check_success(answer: HttpAnswer) -> None:
    body = _decompressed(answer)
    length = answer.length
    if length is None:
        if body and answer.headers.get("content-type", "").startswith("application/json"):
            _loads(body)
        return
    document = _loads(body[:length])
    sizes = [output.get("parameters", {}).get("binary_data_size", 0) for output in document["outputs"]]
    if length + sum(sizes) != len(body):
        raise Finding(f"sizes do not add up: {length} + {sizes} for a body of {len(body)}")


def _loads(body: bytes) -> Any:
    """BYTES that are no UTF-8 are copied into a document as they are (section 7.4)."""
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except ValueError:
        raise Finding(f"no JSON: {body[:300]!r}") from None


def _decompressed(answer: HttpAnswer) -> bytes:
    encoding = answer.headers.get("content-encoding")
    if encoding is None:
        return answer.body
    return gzip.decompress(answer.body) if encoding == "gzip" else zlib.decompress(answer.body)


def check_grpc(answer: GrpcAnswer) -> None:
    if answer.status is None:
        if answer.error_code == 2:  # INTERNAL_ERROR: what a server says of itself
            raise Finding(f"the server says INTERNAL_ERROR: {answer.message!r}")
        return
    if _DEAD_WORKER in answer.message:
        raise Finding(answer.message)
    if answer.status == 13 and not ALLOWED_INTERNAL.fullmatch(answer.message):
        raise Finding(f"an INTERNAL that the specification does not know: {answer.message!r}")


def check(case: Case, heard: Heard) -> None:
    """All that came back for *case*."""
    methods = itertools.chain(case.methods, itertools.repeat(""))
    for method, answer in zip(methods, heard.http):
        check_http(answer, method)
    for _, call in heard.grpc:
        check_grpc(call)


def successes(case: Case, heard: Heard) -> Counter[str]:
    """How many infer requests of which model were served, as far as the answers tell."""
    if not case.model:
        return Counter()
    good = sum(answer.status == 200 for answer in heard.http)
    good += sum(answer.status == 0 for _, answer in heard.grpc)
    return Counter({case.model: good})


def is_settled(case: Case) -> bool:
    """Its answers tell what became of it."""
    return case.ending is Ending.ANSWERED


# -------------------------------------------------------------------------------------------- the server in the whole


def check_control(ports: Ports) -> None:
    """Ready, and a plain request gets the right answer."""
    ready = ask(ports.http, b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
    if ready.status != 200:
        raise Finding(f"the server is not ready: {ready.status}")
    answer = ask(ports.http, CONTROL)
    if answer.status != 200 or json.loads(answer.body)["outputs"][0]["data"] != CONTROL_ANSWER:
        raise Finding(f"the control request: {answer.status} {answer.body[:300]!r}")


class Probe:
    """Counts the unfinished asyncio tasks of the server, from a signal handler in it. The server is started with `environ`."""

    def __init__(self, folder: Path) -> None:
        self._pipe = folder / "tasks"
        os.mkfifo(self._pipe)
        (folder / "sitecustomize.py").write_text(
            f"""
import asyncio, gc, os, signal, sys

def count(*_):
    gc.collect()
    tasks = [found for found in gc.get_objects() if isinstance(found, asyncio.Task) and not found.done()]
    with open({str(self._pipe)!r}, "w") as pipe:
        pipe.write(str(len(tasks)))

if {owned_server.COMMAND!r} in sys.orig_argv:
    signal.signal(signal.SIGUSR1, count)
"""
        )
        self.environ = {"PYTHONPATH": str(folder)}

    def tasks(self, pid: int) -> int:
        """Raises Finding where the server does not answer in time: its loop is blocked, or it is gone."""
        pipe = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.kill(pid, signal.SIGUSR1)
            if not select.select([pipe], [], [], DEADLINE_S)[0]:
                raise Finding(f"the server's loop did not come round in {DEADLINE_S:.0f} s")
            return int(os.read(pipe, 32))
        finally:
            os.close(pipe)


@dataclass(frozen=True)
class Vitals:
    """What a server takes when it has nothing to do."""

    descriptors: int
    threads: int
    tasks: int
    resident_mib: int
    workers: tuple[int, ...]
    """Of every model but the one that is loaded anew."""

    @classmethod
    def of(cls, pid: int, workers: tuple[int, ...], probe: Probe) -> Vitals:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
        return cls(
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=len(os.listdir(f"/proc/{pid}/task")),
            tasks=probe.tasks(pid),
            resident_mib=resident,
            workers=workers,
        )

    def check_growth(self, before: Vitals) -> None:
        """Raises Finding. A few descriptors and threads are pools that had not been needed before."""
        if self.workers != before.workers:
            raise Finding(f"workers died: {before.workers} became {self.workers}")
        for name, bound in (("descriptors", 12), ("threads", 40), ("tasks", 4), ("resident_mib", 96)):
            was, now = getattr(before, name), getattr(self, name)
            if now > was + bound:
                raise Finding(f"{name} grew from {was} to {now}, more than by {bound}")


def check_log(text: str) -> None:
    found = _LOG_FAULTS.search(text)
    if found is not None:
        raise Finding(f"in the log of the server:\n{text[max(0, found.start() - 1500) : found.end() + 3000]}")


def served(ports: Ports) -> Counter[str]:
    """Successful requests by model."""
    rows = ask_json(ports.http, "/v2/models/stats")["model_stats"]
    return Counter({row["name"]: row["inference_stats"]["success"]["count"] for row in rows})


def check_statistics(ports: Ports) -> None:
    """The document and the metrics page tell the same, and nothing is under way."""
    page = ask(ports.metrics, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").body.decode()
    for row in ask_json(ports.http, "/v2/models/stats")["model_stats"]:
        if row["name"] == VICTIM:
            continue
        success, fail = (row["inference_stats"][kind]["count"] for kind in ("success", "fail"))
        batches = sum(batch["compute_infer"]["count"] for batch in row["batch_stats"])
        told = {
            "nv_inference_request_success": success,
            "nv_inference_request_failure": fail,
            "nv_inference_count": row["inference_count"],
            "nv_inference_exec_count": row["execution_count"],
            "nv_inference_pending_request_count": 0,
        }
        for name, value in told.items():
            shown = _metric(page, name, row["name"])
            if shown != value:
                raise Finding(f"{name} of {row['name']} is {shown}, the statistics say {value}")
        if batches != row["execution_count"] or row["inference_count"] < success:
            raise Finding(f"statistics of {row['name']} do not add up: {row}")


def _metric(page: str, name: str, model: str) -> float:
    """The sum of all series of a model."""
    lines = [line for line in page.splitlines() if line.startswith(name + "{") and f'model="{model}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
