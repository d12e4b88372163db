#!/usr/bin/env python3
"""What front ends in processes of their own may not change: batches, and what is lost when one is killed.

    python benchmarks/front_end_proofs.py batches --rounds 3
    python benchmarks/front_end_proofs.py kills --kills 20

batches: the sizes of the batches that a model with dynamic batching gets from 64 callers, without front ends and with two.
kills: front ends are killed one after the other under load. A client whose request fails must have had its connection there;
when the load has ended, no slot of shared memory is held, no request waits, and the server has as many descriptors as before.
Exit code 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from calls import Call, Protocol
from front_ends import part_of
from growth import CONFIG, START_TIMEOUT_S
from load_generators import Wrk, require_tools
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports, wait_until
from process_tree import PROC
from scenarios import ADD_SUB

CODE = """
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        arrays = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array + 1)]) for array in arrays]
"""
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 1000 }"
LARGE = 20_000
"""Elements of every other request in `kills`: more than a message holds, so that shared memory is used."""


@contextlib.contextmanager
def started(front_ends: int, folder: Path, more: str = "") -> Iterator[MeasuredServer]:
    models = folder / "models"
    if not models.exists():
        (models / "model" / "1").mkdir(parents=True)
        (models / "model" / "1" / "model.py").write_text(CODE)
        (models / "model" / "config.pbtxt").write_text((CONFIG % 1).replace("dims: [ 4 ]", "dims: [ -1 ]") + more)
    command = f"{SERVE} --frontends={front_ends}"
    log = folder / "server.log"
    with MeasuredServer.started(
        "ours", command, models=models, ports=free_ports(), log=log, timeout_s=START_TIMEOUT_S
    ) as server:
        yield server


def get(server: MeasuredServer, path: str) -> bytes:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.ports.http, timeout=10)) as client:
        client.request("GET", path)
        return client.getresponse().read()


# ----------------------------------------------------------------------------------------------------------------------


def batch_sizes(front_ends: int, seconds: int) -> tuple[Counter[int], float]:
    """Executions by size of their batch, and requests a second."""
    with tempfile.TemporaryDirectory(prefix="front_ends_") as name:
        folder = Path(name)
        with started(front_ends, folder, BATCHING) as server:
            pair = {"X": ADD_SUB.call.inputs["INPUT0"].reshape(1, -1)}
            load = Wrk(Call("model", pair, [{}]), Protocol.HTTP_BINARY, folder)
            done = load.run(server.ports, callers=64, seconds=seconds)
            (version,) = json.loads(get(server, "/v2/models/model/stats"))["model_stats"]
    return Counter(
        {row["batch_size"]: row["compute_infer"]["count"] for row in version["batch_stats"]}
    ), done.per_second


def report_batches(rounds: int, seconds: int) -> None:
    found: dict[int, Counter[int]] = {0: Counter(), 2: Counter()}
    rates: dict[int, list[float]] = {0: [], 2: []}
    for _ in range(rounds):
        for front_ends, total in found.items():
            sizes, rate = batch_sizes(front_ends, seconds)
            total.update(sizes)
            rates[front_ends].append(rate)
    print(
        "| front ends | requests/s | mean batch | " + " | ".join(f"{low}-{low + 7}" for low in range(1, 33, 8)) + " |"
    )
    print("|---|---:|---:|" + "---:|" * 4)
    for front_ends, sizes in found.items():
        requests = sum(size * count for size, count in sizes.items())
        shares = [
            sum(size * count for size, count in sizes.items() if low <= size < low + 8) / requests
            for low in range(1, 33, 8)
        ]
        cells = " | ".join(f"{share:.1%}" for share in shares)
        mean = requests / sum(sizes.values())
        print(f"| {front_ends} | {sorted(rates[front_ends])[rounds // 2]:,.0f} | {mean:.2f} | {cells} |")
    print("\nThe columns on the right: shares of all requests by the size of their batch.")


# ----------------------------------------------------------------------------------------------------------------------


class Caller:
    """A client with one connection, which it opens anew when that is lost."""

    def __init__(self, port: int, number: int, opening: threading.Lock) -> None:
        """*opening* is held while a connection is opened, until it has had an answer: some front end has it then."""
        self._opening = opening
        self._number = number
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.local_port = 0
        self.right = 0
        self.lost: list[int] = []
        """Local ports of connections on which a request was lost."""
        self.wrong: list[str] = []

    def ask(self) -> None:
        with self._opening if self._client.sock is None else contextlib.nullcontext():
            self._ask()

    def _ask(self) -> None:
        count = LARGE if (self.right + self._number) % 2 else 4
        data = [float(self.right % 1000)] * count
        inputs = [{"name": "X", "datatype": "FP32", "shape": [1, count], "data": data}]
        try:
            if self._client.sock is None:
                self._client.connect()
                self.local_port = self._client.sock.getsockname()[1]  # type: ignore[attr-defined]
            self._client.request("POST", "/v2/models/model/infer", json.dumps({"inputs": inputs}))
            answer = self._client.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self.lost.append(self.local_port)
            self._client.close()
            return
        if answer.status != 200 or json.loads(body)["outputs"][0]["data"] != [number + 1 for number in data]:
            self.wrong.append(f"{answer.status} {body[:200]!r}")
        self.right += 1


def front_ends_of(server: MeasuredServer) -> list[int]:
    members = [stat for stat in server.tree.members() if stat.state != "Z"]
    return [stat.pid for stat in members if part_of(stat.pid, server.tree.root) == "front ends"]


def has_ended(pid: int) -> bool:
    """Whether all threads of a process have, so that what they had open is closed; the first is a zombie before that."""
    tasks = PROC / str(pid) / "task"
    try:
        return [task.name for task in tasks.iterdir()] == [str(pid)] and " Z " in (
            tasks / str(pid) / "stat"
        ).read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def sockets_of(pid: int) -> set[str]:
    found = set()
    for entry in (PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(os.readlink(entry))
    return found


def ports_at(victim: int, server: MeasuredServer) -> set[int]:
    """Ports of the clients whose connections *victim*, which is stopped, has or has been given and did not take.

    Those are nobody's descriptors: they lie in the socket between the two. Those that nobody has accepted have no number.
    """
    rows = [row.split() for row in (PROC / "net" / "tcp").read_text().splitlines()[1:]]
    port = f":{server.ports.http:04X}"
    ours = {
        f"socket:[{row[9]}]": int(row[2].rpartition(":")[2], 16)
        for row in rows
        if row[1].endswith(port) and row[9] != "0"
    }
    others = [stat.pid for stat in server.tree.members() if stat.state != "Z" and stat.pid != victim]
    elsewhere = set().union(*map(sockets_of, others)) - sockets_of(victim)
    return {client for name, client in ours.items() if name not in elsewhere}


def kill_under_load(kills: int, callers: int) -> bool:
    """Whether all was as it should be; prints what was."""
    with tempfile.TemporaryDirectory(prefix="front_ends_") as name, started(2, Path(name)) as server:
        opening = threading.Lock()
        clients = [Caller(server.ports.http, number, opening) for number in range(callers)]
        for client in clients:  # a small and a large request: each front end has shared memory then
            client.ask()
            client.ask()
        descriptors = len(list((PROC / str(server.tree.root) / "fd").iterdir()))
        stop = threading.Event()

        def keep_asking(client: Caller) -> None:
            while not stop.is_set():
                client.ask()

        # Daemons: where something fails here nobody stops them.
        threads = [threading.Thread(target=keep_asking, args=(client,), daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        doomed: set[int] = set()
        for number in range(kills):
            time.sleep(0.3)
            victim = front_ends_of(server)[number % 2]
            # So that its connections are those that we see: none is opened until it has ended, and it answers nobody.
            with opening:
                os.kill(victim, signal.SIGSTOP)
                doomed |= ports_at(victim, server)
                os.kill(victim, signal.SIGKILL)
                wait_until(lambda: has_ended(victim), "a killed front end has ended")  # noqa: B023
            # Until the server has seen the end it counts the dead one.
            wait_until(lambda: len(front_ends_of(server)) == 2, "another one is started")
            wait_until(lambda: server.metric("pytriton_lite_front_ends") == 2, "it is ready")
        stop.set()
        for thread in threads:
            thread.join()
        lost = [port for client in clients for port in client.lost]
        elsewhere = [port for port in lost if port not in doomed]
        wrong = [text for client in clients for text in client.wrong]
        wait_until(lambda: server.metric("nv_inference_pending_request_count") == 0, "no request waits")
        wait_until(lambda: server.metric("pytriton_lite_shared_memory_slots") == 0, "no slot of shared memory is held")
        # A caller has one connection, and its descriptor is the front end's.
        wait_until(
            lambda: len(list((PROC / str(server.tree.root) / "fd").iterdir())) <= descriptors,
            f"the server has its {descriptors} descriptors again",
        )
        answered = sum(client.right for client in clients)
        print(
            f"{kills} front ends killed under {callers} callers: {answered:,} requests answered, {len(lost)} lost with their "
            f"connections, {len(elsewhere)} lost elsewhere, {len(wrong)} wrong; then 0 slots, 0 requests waiting, "
            f"{descriptors} descriptors as before"
        )
        for text in wrong[:5]:
            print(text)
        return not elsewhere and not wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("batches", "kills"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--callers", type=int, default=16, help="of `kills` (default 16)")
    parser.add_argument("--rounds", type=int, default=3, help="of `batches` (default 3)")
    parser.add_argument("--seconds", type=int, default=4, help="of load in each round (default 4)")
    chosen = parser.parse_args(arguments)
    try:
        for fact, value in machine_facts().items():
            print(f"{fact}: {value}")
        print()
        if chosen.what == "kills":
            return 0 if kill_under_load(chosen.kills, chosen.callers) else 1
        require_tools(["wrk"])
        report_batches(chosen.rounds, chosen.seconds)
    except BenchmarkError as error:
        print(f"front_end_proofs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
