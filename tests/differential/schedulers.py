"""Give a real Triton and us the same models and the same queues, and print where the outcomes differ.

    python -m tests.differential.schedulers --peer-command 'tritonserver --model-repository={models} \\
        --http-port={http_port} --grpc-port={grpc_port} --metrics-port={metrics_port} --model-control-mode=explicit' \\
        --cases 200 --seed 1

Each case is a model with a configuration of its own and a script (`scheduler_cases.py`): requests over HTTP, gRPC and
streams that are queued while the model is held, cancellations, pauses in which time-outs pass. Compared are the answers with
everything that the model saw (batches, their order, control tensors, null requests), error texts and codes, the counts of the
statistics and the failures by reason.

A case that differs is done again; what is not the same then is told as unsteady, and not compared further. A difference that
`tests/differential/expected.py` explains is counted; any other is printed with its case, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.differential.asked_peers import Peer, Tally, in_order
from tests.differential.expected import SCHEDULERS
from tests.differential.scheduler_cases import CODE, PAUSE_S, Case, Request, made_case
from tests.harness import RunningServer, write_model

EXPLICIT = "--model-control-mode=explicit"
SETTLED_S = 10.0
"""Nothing takes as long; a request without an answer by then has none."""
NOTHING = "no answer"


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    http: str
    grpc: str
    metrics: str


class Pending:
    """A request under way: what came of it, when something has."""

    def __init__(self, begin: Callable[[Callable[[str], None]], Callable[[], Any]]) -> None:
        self._came: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.outcome: str | None = None
        self.cancel = begin(self._came.put)

    def poll(self, timeout_s: float = 0.0) -> str | None:
        if self.outcome is None:
            try:
                self.outcome = self._came.get(timeout=timeout_s) if timeout_s else self._came.get_nowait()
            except queue.Empty:
                return None
        return self.outcome


class Run:
    """One case on one server."""

    def __init__(self, address: Address, case: Case, model: str) -> None:
        self._address = address
        self._case = case
        self._model = model
        self._requests: dict[str, Pending] = {}
        self._held: list[socket.socket] = []

    def outcomes(self) -> dict[str, str]:
        """What came of each request and what was counted, by name."""
        with (
            socket.create_server(("127.0.0.1", 0)) as self._gate,
            grpc.insecure_channel(self._address.grpc) as channel,
        ):
            self._gate.settimeout(0.02)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            status, body = self._ask("POST", f"/v2/repository/models/{self._model}/load")
            if status != 200:
                return {"load": f"{status} {body}"}
            try:
                for step in self._case.steps:
                    getattr(self, f"_{step.what}")(step.request or step.id)
                if self._case.cancels:  # what is found cancelled, and when, differs
                    return self._answers()
                return self._answers() | self._orders() | self._counts()
            finally:
                self._open()
                self._ask("POST", f"/v2/repository/models/{self._model}/unload")

    # ------------------------------------------------------------------------------------------ steps

    def _send(self, request: Request) -> None:
        """Return when the request waits, is held at the gate, or has ended."""
        waiting = self._pending()
        begin = {"http": self._by_http, "grpc": self._by_grpc, "stream": self._by_stream}[request.transport]
        sent = self._requests[request.id] = Pending(lambda came: begin(request, came))
        end = time.monotonic() + 3
        while sent.poll() is None and time.monotonic() < end:
            if request.is_blocker:
                try:
                    self._held.append(self._gate.accept()[0])
                    return
                except TimeoutError:
                    continue
            if self._pending() > waiting:
                return

    def _cancel(self, name: str) -> None:
        self._requests[name].cancel()

    def _pause(self, _: str) -> None:
        time.sleep(PAUSE_S)  # a command, not a test

    def _open(self, _: str = "") -> None:
        while self._held:
            self._held.pop(0).close()

    def _settle(self, _: str) -> None:
        end = time.monotonic() + SETTLED_S
        for sent in self._requests.values():
            while sent.poll(0.01) is None and time.monotonic() < end:
                self._let_through()

    def _let_through(self) -> None:
        """A blocker that did not come to the gate in time is not to stay there."""
        try:
            self._gate.accept()[0].close()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------------------------------ what came of it

    def _answers(self) -> dict[str, str]:
        return {name: self._read(sent.outcome or NOTHING) for name, sent in self._requests.items()}

    def _orders(self) -> dict[str, str]:
        """In which order the requests of each sequence were executed."""
        told = {name: sent.outcome or NOTHING for name, sent in self._requests.items()}
        orders: dict[str, list[tuple[int, str]]] = {}
        begun: Counter[int | str] = Counter()
        for step in self._case.steps:
            request = step.request
            execution = re.search(r'"execution": (\d+)', told[request.id]) if request is not None else None
            if request is None or execution is None or not request.sequence:
                continue
            begun[request.sequence] += "S" in request.flags
            name = f"order of {request.sequence!r}, {begun[request.sequence]}"
            orders.setdefault(name, []).append((int(execution[1]), request.id))
        return {name: " ".join(each for _, each in sorted(order)) for name, order in orders.items()}

    def _read(self, outcome: str) -> str:
        outcome = in_order(outcome.replace(f"'{self._model}'", "'m'"))
        if self._case.is_exact and not self._case.cancels:
            return outcome
        # Which instance executes what is not said; what a request saw of itself is.
        return re.sub(r'"execution": \d+, |, "batch": [^|]*\](?=\})', "", outcome)

    def _counts(self) -> dict[str, str]:
        status, body = self._ask("GET", f"/v2/models/{self._model}/stats")
        (row,) = json.loads(body)["model_stats"] if status == 200 else ({},)
        inference = row.get("inference_stats", {})
        counts: dict[str, Any] = {key: row.get(key) for key in ("inference_count", "execution_count")}
        counts |= {key: inference.get(key, {}).get("count") for key in ("success", "fail", "queue", "compute_infer")}
        counts["batches"] = {each["batch_size"]: each["compute_infer"]["count"] for each in row.get("batch_stats", [])}
        if not self._case.is_exact:
            del counts["batches"], counts["execution_count"]
        if self._case.is_iterative:  # each that has ended is a failure, too, with 2.51
            del counts["fail"]
            return {"statistics": json.dumps(counts)}
        failures = {
            (re.search('reason="([A-Z]+)"', line) or [""])[1]: line.rpartition(" ")[2]
            for line in self._series("nv_inference_request_failure")
        }
        return {"statistics": json.dumps(counts), "failures": json.dumps(dict(sorted(failures.items())))}

    # ------------------------------------------------------------------------------------------ the server

    def _ask(self, method: str, path: str, body: str = "", address: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection(address or self._address.http, timeout=90)
        try:
            connection.request(method, path, body or None)
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, type(error).__name__
        finally:
            connection.close()

    def _series(self, name: str) -> list[str]:
        _, page = self._ask("GET", "/metrics", address=self._address.metrics)
        return [line for line in page.splitlines() if line.startswith(name + "{") and f'model="{self._model}"' in line]

    def _pending(self) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in self._series("nv_inference_pending_request_count"))

    def _by_http(self, request: Request, came: Callable[[str], None]) -> Callable[[], Any]:
        document = {
            "id": request.id,
            "parameters": self._parameters(request),
            "inputs": [
                {"name": name, "datatype": datatype, "shape": shape, "data": values}
                for name, datatype, shape, values in self._inputs(request)
            ],
        }

        def ask() -> None:
            status, body = self._ask("POST", f"/v2/models/{self._model}/infer", json.dumps(document))
            try:
                answer = json.loads(body)
                came(f"{status} " + (answer["outputs"][0]["data"][0] if status == 200 else f"error {answer['error']}"))
            except (ValueError, KeyError, IndexError):
                came(f"{status} {body}")

        threading.Thread(target=ask, daemon=True).start()
        return lambda: None

    def _by_grpc(self, request: Request, came: Callable[[str], None]) -> Callable[[], Any]:
        call = self._stub.ModelInfer.future(self._message(request), timeout=90)
        call.add_done_callback(lambda done: came(_told(lambda: [done.result()])))
        return call.cancel

    def _by_stream(self, request: Request, came: Callable[[str], None]) -> Callable[[], Any]:
        call = self._stub.ModelStreamInfer(iter([self._message(request)]), timeout=90)
        threading.Thread(target=lambda: came(_told(lambda: list(call))), daemon=True).start()
        return call.cancel

    def _message(self, request: Request) -> Any:
        message = service_pb2.ModelInferRequest(model_name=self._model, id=request.id)
        for key, value in self._parameters(request).items():
            kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
            setattr(message.parameters[key], kind, value)
        for name, datatype, shape, values in self._inputs(request):
            message.inputs.add(name=name, datatype=datatype, shape=shape)
            letter = {"FP32": "f", "INT32": "i", "FP64": "d"}[datatype]
            message.raw_input_contents.append(struct.pack(f"<{len(values)}{letter}", *values))
        return message

    def _parameters(self, request: Request) -> dict[str, int | str | bool]:
        given: dict[str, int | str | bool | None] = {
            "sequence_id": request.sequence,
            "priority": request.priority,
            "timeout": request.timeout_us,
            "rounds": request.rounds if request.rounds > 1 else None,
            "gate": self._gate.getsockname()[1] if request.is_blocker else None,
        }
        if request.flags:
            given |= {"sequence_start": "S" in request.flags, "sequence_end": "E" in request.flags}
        return {key: value for key, value in given.items() if value is not None}

    def _inputs(self, request: Request) -> Iterator[tuple[str, str, list[int], list[float]]]:
        size = request.size + 100 * (request.spoilt == "size")
        batch = [size] if self._case.batches else []
        width = [*batch, request.width] + [1] * (request.spoilt == "rank")
        number = float(request.id[1:] or 0)
        if request.spoilt != "no x":
            yield (
                "x",
                "FP64" if request.spoilt == "type" else "FP32",
                width,
                [number] * (request.width * (batch or [1])[0]),
            )
        if request.has_y:
            yield "y", "INT32", [*batch, 1], [7] * (batch or [1])[0]
        if request.spoilt == "unknown":
            yield "z", "FP32", [*batch, 1], [0.0] * (batch or [1])[0]


def _told(answers: Callable[[], list[Any]]) -> str:
    """Of a call the texts of its answers, or its error."""
    told = []
    try:
        for answer in answers():
            error = getattr(answer, "error_message", "")
            response = getattr(answer, "infer_response", answer)
            if error:
                told.append(f"error {error}")
            elif response.raw_output_contents:
                told.append(response.raw_output_contents[0][4:][: _length(response)].decode())
    except grpc.RpcError as error:
        return f"{error.code().name} {error.details()}"
    return "OK " + " | ".join(told)


def _length(response: Any) -> int:
    """Of the first element of its only output."""
    (length,) = struct.unpack("<I", response.raw_output_contents[0][:4])
    return int(length)


# ---------------------------------------------------------------------------------------------------- comparing


def outcomes_of_both(peer: Address, ours: Address, case: Case, model: str) -> list[dict[str, str]]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda address: Run(address, case, model).outcomes(), (peer, ours)))


@dataclass
class Found:
    """What two runs of a case have in common, and what not."""

    case: Case
    theirs: dict[str, str]
    of_us: dict[str, str]
    unsteady: list[str]


def compared(peer: Address, ours: Address, models: Path, seed: int) -> Found:
    case = made_case(seed)
    model = f"case_{seed}"
    write_model(models, model, CODE, case.config)
    theirs, of_us = outcomes_of_both(peer, ours, case, model)
    unsteady: list[str] = []
    if theirs != of_us:
        # Under another name: 2.51 goes on counting the failures of a model that was unloaded.
        model = f"again_{seed}"
        write_model(models, model, CODE, case.config)
        again = outcomes_of_both(peer, ours, case, model)
        unsteady = [
            name
            for name in dict.fromkeys([*theirs, *of_us])
            if [found.get(name) for found in again] != [theirs.get(name), of_us.get(name)]
        ]
    return Found(case, theirs, of_us, unsteady)


def note(found: Found, tally: Tally) -> None:
    for name in dict.fromkeys([*found.theirs, *found.of_us]):
        if name not in found.unsteady:
            tally.note(f"{name} of {found.case}", found.theirs.get(name, NOTHING), found.of_us.get(name, NOTHING))


@contextmanager
def both_started(command: str, port: int) -> Iterator[tuple[Peer, Address, Address, Path]]:
    with TemporaryDirectory(prefix="schedulers-") as folder:
        models = Path(folder) / "models"
        models.mkdir()
        flags = (EXPLICIT, "--exit-on-error=false")
        with Peer(f"{command} {EXPLICIT}", models, port) as peer, RunningServer(models, flags=flags) as ours:
            theirs = Address(peer.server.http, peer.server.grpc, f"127.0.0.1:{port + 2}")
            metrics = ours.metrics_url.removeprefix("http://").partition("/")[0]
            yield peer, theirs, Address(ours.http_url, ours.grpc_url, metrics), models


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the schedulers of two servers.")
    parser.add_argument("--peer-command", required=True, help="starts a Triton, as for `tests.differential.wire`")
    parser.add_argument("--peer-port", type=int, default=18600, help="its first; two more follow (default 18600)")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument(
        "--at-once", type=int, default=3, help="cases under way at a time; they mostly wait (default 3)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first case; each has the next (default 1)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end with us
    unsteady: list[str] = []
    with both_started(given.peer_command, given.peer_port) as (process, peer, ours, models):
        tally = Tally(peer=process, deviations=SCHEDULERS)
        with ThreadPoolExecutor(given.at_once) as threads:
            seeds = range(given.seed, given.seed + given.cases)
            for found in threads.map(lambda seed: compared(peer, ours, models, seed), seeds):
                note(found, tally)
                unsteady += [f"seed {found.case.seed} {name}" for name in found.unsteady]
    tally.show(print)
    print("unsteady: " + ", ".join(unsteady))
    return 1 if tally.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
