"""Responses that a client leaves unread are bounded in bytes, too (docs/security.md): `send` waits behind 64 MiB of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.scripted_model import DECOUPLED, Gate, Stream, stream_of, write_script_model
from tests.harness import RunningServer

MODEL = "script"
COUNT = 100
EACH = 2 << 20
WINDOW = 64 << 20
ON_THE_WAY = 26 << 20
"""What a client takes that reads nothing: the window of gRPC's C core grows to 16 MiB, and both sockets have buffers, of which
Linux makes the sender's 4 MiB and the receiver's 6."""

STANDS_STILL = f"""
seen = [-1]
while len(set(seen[-5:])) > 1 or seen[-1] < {WINDOW // EACH}:
    if len(seen) == 400:
        break
    time.sleep(0.1)
    seen.append(len(model.notes))
request.get_response_sender().send(response(len(model.notes)), FINAL)
"""


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_script_model(repository, MODEL, DECOUPLED)
    with RunningServer(repository, flags=(f"--grpc-transport={request.param}",)) as running:
        yield running


def proportional_bytes(pid: int) -> int:
    """Memory of a process, in which what several share counts in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no Pss")


def memory_of(server: RunningServer) -> int:
    return sum(proportional_bytes(pid) for pid in (server.process.pid, *server.worker_pids()))


def test_large_responses_that_nobody_reads_fill_neither_server_nor_worker(server: RunningServer) -> None:
    before = memory_of(server)
    with Gate() as gate, Gate() as tells, Stream(server) as stream:
        code = f"""
        def send():
            for n in range({COUNT}):
                model.notes.append(n)
                sender.send(response(n, Y=np.zeros({EACH // 4})))
            sender.send(flags=FINAL)
            tell({tells.port}, "all sent")
        model.notes = []
        sender = request.get_response_sender()
        thread(send)
        gate({gate.port})
        """
        stream.send(MODEL, code, outputs=("OUT", "Y"))
        gate.wait()
        gate.open()
        (noted,) = (message.value for message in stream_of(server, MODEL, STANDS_STILL))
        assert isinstance(noted, int)
        assert WINDOW // EACH <= noted <= (WINDOW + ON_THE_WAY) // EACH
        # Each once as the worker's, and once as the message that it became.
        assert memory_of(server) - before < 2 * WINDOW + 12 * EACH
        assert [message.value for message in stream.rest()] == list(range(COUNT))
        assert tells.told() == "all sent"
