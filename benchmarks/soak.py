#!/usr/bin/env python3
"""Every feature at once for an hour: what the server keeps of it in memory, descriptors, threads and processes.

    python benchmarks/soak.py --seconds 3600

One server has the models of bls_soak.py and reload_soak.py and their callers and operator: calls between models of which some
fail, HTTP and gRPC, small tensors and large ones, versions, configurations and instances that change. Beside them clients ask
an ensemble, sequences, a model that streams, one that is answered from the response cache, and one through shared memory of
their own; some give up. Every answer is looked at. Once a second the state of the server is read; what grows is judged by a
line through the second half of the run, when everything has its size. The exit code is 1 when something is off, and 2 when
the run could not be made.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import bls_soak
import numpy as np
import reload_soak
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from benchmark_error import BenchmarkError
from fault_finding import find_faults
from measured_server import SERVE, MeasuredServer
from process_tree import PROC, ProcessTree
from tritonclient.utils import InferenceServerException, shared_memory

COMMAND = (
    f"{SERVE} --model-control-mode=explicit --load-model=* --allow-client-shm=true --cache-config=local,size=8388608"
)
START_TIMEOUT_S = 90.0
PATIENCE_S = 60.0
"""A client that has no answer by then hangs."""
LOOK_S = 1.0
SETTLE_S = 15.0
MIB = 1 << 20

ADDS_ONE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]) for x in given]
"""
STREAMS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            for number in range(20):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + np.float32(number))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ADDS_UP = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            number = request.correlation_id()
            is_first = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            # An empty row of the batch belongs to no sequence, and nobody reads its answer.
            sum = x if is_first or not number else self.sums[number] + x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", sum)]))
            self.sums[number] = sum
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[number]
        return answers
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }
ensemble_scheduling {
  step { model_name: "adds_one" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "BETWEEN" } }
  step { model_name: "adds_one" model_version: -1
    input_map { key: "X" value: "BETWEEN" } output_map { key: "Y" value: "Y" } }
}
"""
MODELS = {
    "adds_one": (ADDS_ONE, CONFIG + "dynamic_batching { } instance_group { kind: KIND_CPU count: 2 }"),
    "cached": (ADDS_ONE, CONFIG + "response_cache { enable: true }"),
    "streams": (STREAMS, CONFIG + "model_transaction_policy { decoupled: true }"),
    "adds_up": (ADDS_UP, CONFIG + "sequence_batching { max_sequence_idle_microseconds: 60000000 }"),
    "ensemble": ("", ENSEMBLE),
}


def write_models(folder: Path, *, chains: int) -> None:
    bls_soak.write_models(folder, chains=chains)
    for name, (code, config) in MODELS.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        if code:
            (folder / name / "1" / "model.py").write_text(code)


class Client(threading.Thread):
    """Does one thing over and over until it is told to stop. *act* returns what was wrong, or an empty text."""

    def __init__(
        self, kind: str, open_act: Callable[[contextlib.ExitStack], Callable[[int], str]], stop: threading.Event
    ):
        super().__init__(daemon=True, name=kind)
        self.kind = kind
        self.done = 0
        self.wrong: Counter[str] = Counter()
        self._open_act = open_act
        self._stop_asked = stop

    def run(self) -> None:
        with contextlib.ExitStack() as stack:
            act = self._open_act(stack)
            while not self._stop_asked.is_set():
                try:
                    fault = act(self.done)
                except Exception as error:  # whatever it is, it is a request that failed
                    fault = f"{type(error).__name__}: {error}"[:300]
                if fault:
                    self.wrong[fault] += 1
                self.done += 1


def _numbers(number: int, count: int = 4) -> np.ndarray:
    return np.full((1, count), number % 100_000, np.float32)


def _expect(got: np.ndarray | None, expected: np.ndarray) -> str:
    return "" if got is not None and np.array_equal(got, expected) else f"got {got!r}, expected {expected!r}"[:300]


def _input(module: object, array: np.ndarray) -> list[object]:
    given = module.InferInput("X", list(array.shape), "FP32")  # type: ignore[attr-defined]
    given.set_data_from_numpy(array)
    return [given]


def over_http(port: int, model: str, added: float, *, period: int = 1 << 30, count: int = 4):
    """Asks *model*, whose answer is the tensor plus *added*. Tensors come again after *period*."""

    def begin(stack: contextlib.ExitStack) -> Callable[[int], str]:
        client = httpclient.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=PATIENCE_S)
        stack.callback(client.close)

        def act(turn: int) -> str:
            array = _numbers(turn % period, count)
            return _expect(client.infer(model, _input(httpclient, array)).as_numpy("Y"), array + np.float32(added))

        return act

    return begin


def through_sequences(port: int, first: int):
    """One sequence after the other, of five requests each."""

    def begin(stack: contextlib.ExitStack) -> Callable[[int], str]:
        client = stack.enter_context(grpcclient.InferenceServerClient(f"127.0.0.1:{port}"))

        def act(turn: int) -> str:
            for at in range(1, 6):
                array = _numbers(turn)
                answer = client.infer(
                    "adds_up",
                    _input(grpcclient, array),
                    sequence_id=first + turn,
                    sequence_start=at == 1,
                    sequence_end=at == 5,
                    client_timeout=PATIENCE_S,
                )
                fault = _expect(answer.as_numpy("Y"), array * np.float32(at))
                if fault:
                    return fault
            return ""

        return act

    return begin


def through_streams(port: int):
    """A stream with one request and twenty responses; every seventh is given up after the first of them."""

    def begin(stack: contextlib.ExitStack) -> Callable[[int], str]:
        client = stack.enter_context(grpcclient.InferenceServerClient(f"127.0.0.1:{port}"))

        def act(turn: int) -> str:
            came: queue.Queue[object] = queue.Queue()
            client.start_stream(callback=lambda result, error: came.put(error or result))
            array = _numbers(turn)
            is_given_up = turn % 7 == 6
            try:
                client.async_stream_infer("streams", _input(grpcclient, array))
                for number in range(1 if is_given_up else 20):
                    one = came.get(timeout=PATIENCE_S)
                    if isinstance(one, InferenceServerException):
                        return str(one)
                    fault = _expect(one.as_numpy("Y"), array + np.float32(number))  # type: ignore[attr-defined]
                    if fault:
                        return fault
            finally:
                client.stop_stream(cancel_requests=is_given_up)
            return ""

        return act

    return begin


def through_regions(port: int, number: int):
    """Registers a region, asks through it, and unregisters it again."""

    def begin(stack: contextlib.ExitStack) -> Callable[[int], str]:
        client = httpclient.InferenceServerClient(f"127.0.0.1:{port}", network_timeout=PATIENCE_S)
        stack.callback(client.close)
        array = np.arange(65_536, dtype=np.float32).reshape(1, -1) + number
        size = array.nbytes
        key = f"/soak_{time.monotonic_ns()}_{number}"
        handle = shared_memory.create_shared_memory_region(key, key, 2 * size)
        stack.callback(shared_memory.destroy_shared_memory_region, handle)

        def act(turn: int) -> str:
            name = f"soak_{number}_{turn}"
            shared_memory.set_shared_memory_region(handle, [array])
            client.register_system_shared_memory(name, key, 2 * size)
            try:
                given = httpclient.InferInput("X", list(array.shape), "FP32")
                given.set_shared_memory(name, size)
                wanted = httpclient.InferRequestedOutput("Y")
                wanted.set_shared_memory(name, size, offset=size)
                client.infer("adds_one", [given], outputs=[wanted])
                got = shared_memory.get_contents_as_numpy(handle, np.float32, list(array.shape), offset=size)
                return _expect(got, array + np.float32(1))
            finally:
                client.unregister_system_shared_memory(name)

        return act

    return begin


@dataclass(frozen=True)
class State:
    """Of the whole server, at one moment."""

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int
    processes: int


def state_of(tree: ProcessTree, begin: float) -> State:
    memory = tree.memory_bytes()
    if memory is None:
        raise BenchmarkError("the memory of the server cannot be read")
    alive = tree.alive()
    return State(
        time.monotonic() - begin,
        memory,
        sum(_entries(stat.pid, "fd") for stat in alive),
        sum(_entries(stat.pid, "task") for stat in alive),
        len(alive),
    )


def _entries(pid: int, folder: str) -> int:
    try:
        return sum(1 for _ in PROC.joinpath(str(pid), folder).iterdir())
    except OSError:
        return 0  # it has ended meanwhile


def slope(states: Sequence[State], read: Callable[[State], int]) -> float:
    """By how much the line through *states* rises in an hour; least squares."""
    times = np.array([state.at_s for state in states])
    values = np.array([read(state) for state in states], dtype=np.float64)
    if len(states) < 3:
        return 0.0
    return float(np.polyfit(times, values, 1)[0]) * 3600


def soak(server: MeasuredServer, operator: reload_soak.Operator, arguments: argparse.Namespace) -> list[str]:
    """Run it, print what happened, and return what was wrong."""
    ports = server.ports
    stop = threading.Event()
    begin = time.monotonic()
    quiet = state_of(server.tree, begin)
    deadline = begin + arguments.seconds
    chains = [bls_soak.Caller(ports.http, number, 16_384, deadline) for number in range(arguments.chains)]
    changing = [reload_soak.Client(ports, number, stop) for number in range(8)]
    others = [
        Client("ensemble", over_http(ports.http, "ensemble", 2), stop),
        Client("large", over_http(ports.http, "adds_one", 1, count=65_536), stop),
        Client("cache", over_http(ports.http, "cached", 1, period=50), stop),
        Client("sequences", through_sequences(ports.grpc, 1), stop),
        Client("sequences", through_sequences(ports.grpc, 1 << 40), stop),
        Client("streams", through_streams(ports.grpc), stop),
        Client("regions", through_regions(ports.http, 1), stop),
    ]
    everybody: list[threading.Thread] = [*chains, *changing, *others]
    for thread in everybody:
        thread.start()
    found: list[str] = []
    states: list[State] = []
    turn = 0
    while time.monotonic() < deadline:
        time.sleep(LOOK_S)
        states.append(state_of(server.tree, begin))
        if states[-1].at_s > (turn + 1) * arguments.reload_s:
            fault = operator.change(turn, ports.http)
            turn += 1
            if fault:
                found.append(fault)
    stop.set()
    for thread in everybody:
        thread.join(PATIENCE_S + 5)
        if thread.is_alive():
            found.append(f"a client hangs: {thread.name}")
    last = _settled(server.tree, begin, quiet)
    found += _report(chains, changing, others, operator)
    found += _judge(quiet, states, last, arguments)
    return found


def _settled(tree: ProcessTree, begin: float, quiet: State) -> State:
    """The state as soon as it has no more descriptors than *quiet*, or as it is after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while (state := state_of(tree, begin)).descriptors > quiet.descriptors and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return state


def _report(
    chains: Sequence[bls_soak.Caller],
    changing: Sequence[reload_soak.Client],
    others: Sequence[Client],
    operator: reload_soak.Operator,
) -> list[str]:
    wrong: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for caller in chains:
        done["chains of calls"] += caller.outcome.requests
        wrong.update({f"chains: {text}": count for text, count in caller.outcome.wrong.items()})
        if caller.outcome.hung:
            wrong["chains: no answer"] += caller.outcome.hung
    for client in changing:
        done["to a model that changes"] += len(client.outcome.answers)
        wrong.update({f"changing: {text}": count for text, count in client.outcome.failed.items()})
        late = sum(not operator.could_answer(*answer) for answer in client.outcome.answers)
        if late:
            wrong["changing: from a generation that was not ready"] += late
    for other in others:
        done[other.kind] += other.done
        wrong.update({f"{other.kind}: {text}": count for text, count in other.wrong.items()})
    print(f"requests: {', '.join(f'{count} {kind}' for kind, count in sorted(done.items()))}; {wrong.total()} wrong")
    print(f"loads: {operator.done.total()}")
    return [f"{count} × {text}" for text, count in wrong.most_common(10)] + [
        f"nothing was done: {kind}" for kind, count in done.items() if not count
    ]


def _judge(quiet: State, states: Sequence[State], last: State, arguments: argparse.Namespace) -> list[str]:
    half = states[len(states) // 2 :]
    rows: list[tuple[str, Callable[[State], int], float, int]] = [
        ("memory, MiB", lambda state: state.memory_bytes, arguments.allowed_mib_per_hour, MIB),
        ("descriptors", lambda state: state.descriptors, arguments.allowed_per_hour, 1),
        ("threads", lambda state: state.threads, arguments.allowed_per_hour, 1),
        ("processes", lambda state: state.processes, arguments.allowed_per_hour, 1),
    ]
    found: list[str] = []
    print("                 before       most      after    per hour, second half")
    for name, read, allowed, unit in rows:
        rises = slope(half, read) / unit
        most = max(map(read, states)) / unit
        print(f"{name:<14}{read(quiet) / unit:>9.1f}{most:>11.1f}{read(last) / unit:>11.1f}{rises:>15.1f}")
        # A few samples of a short run say little: what is noise in a minute is a slope in an hour.
        if rises * min(1.0, arguments.seconds / 3600) > allowed:
            found.append(f"{name} rises by {rises:.1f} an hour")
    if last.processes > quiet.processes + 1:  # the model that changes may have one instance more than it began with
        found.append(f"{last.processes} processes are left, {quiet.processes} were there before")
    return found


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3600.0, help="default: %(default)s")
    parser.add_argument("--chains", type=int, default=8, help="chains of calls at a time; default: %(default)s")
    parser.add_argument("--reload-s", type=float, default=10.0, help="between two loads; default: %(default)s")
    parser.add_argument("--allowed-mib-per-hour", type=float, default=16.0, help="that is none; default: %(default)s")
    parser.add_argument(
        "--allowed-per-hour", type=float, default=4.0, help="descriptors, threads, processes; default: %(default)s"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    operators: list[reload_soak.Operator] = []

    def write(models: Path) -> None:
        operators.append(reload_soak.Operator(models))
        write_models(models, chains=arguments.chains)

    def measure(server: MeasuredServer) -> list[str]:
        (operator,) = operators
        operator.first_loaded()
        return soak(server, operator, arguments)

    return find_faults("soak", COMMAND, write_models=write, measure=measure, timeout_s=START_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
