"""Time to the first token and between tokens of OpenAI's chat route: this server beside others with the same model.

    python benchmarks/openai_streams.py --streams 1 16 64
    python benchmarks/openai_streams.py --litserve .peers/litserve/bin/python

The model writes 64 words, one for each step; a step takes all streams that are under way through the same numpy network, and
takes a quarter of a millisecond for one stream. It is served by

* this server: a folder whose requests come again for each word (iterative sequences), so that all streams share a step;
* a bare FastAPI application under uvicorn with the model in its process, and a task that does the same for all its streams;
* LitServe with its own OpenAISpec, where --litserve names a Python that has it: one request at a time, as its streams are.

Streams begin at once, again and again for --seconds; each is a connection of a client in this process. Milliseconds; the
median and the 99th percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

WORDS = 64
START_S = 60.0

NETWORK = f'''
import numpy as np

WORDS = {WORDS}


class Network:
    """A word for each of several streams: as much arithmetic as a network would do, and the number of the word."""

    def __init__(self):
        self.weights = [np.random.default_rng(layer).standard_normal((256, 256), np.float32) / 16 for layer in range(24)]

    def step(self, counts):
        x = np.ones((len(counts), 256), np.float32)
        for layer in self.weights:
            x = np.tanh(x @ layer)
        return [f"word{{count}} " for count in counts]
'''

CONFIG = """
backend: "python"
max_batch_size: 64
model_transaction_policy { decoupled: true }
sequence_batching { iterative_sequence: true oldest { max_candidate_sequences: 128 } }
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "OPENAI" value { string_value: "chat" } }
"""

MODEL = """
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parent))
from network import WORDS, Network


class TritonPythonModel:
    def initialize(self, args):
        self.network = Network()
        self.counts = {}

    def execute(self, requests):
        streams = [request.correlation_id() for request in requests]
        counts = [
            0 if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START else self.counts[stream]
            for request, stream in zip(requests, streams)
        ]
        for request, stream, count, word in zip(requests, streams, counts, self.network.step(counts)):
            text = pb_utils.Tensor("text", np.array([[word.encode()]], np.object_))
            response, sender = pb_utils.InferenceResponse([text]), request.get_response_sender()
            if count + 1 < WORDS:
                self.counts[stream] = count + 1
                sender.send(response)
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                self.counts.pop(stream, None)
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

FASTAPI = """
import asyncio
import json
import sys
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from network import WORDS, Network

app, network, streams = FastAPI(), Network(), {}
wanted = asyncio.Event()


async def write():
    loop = asyncio.get_running_loop()
    while True:
        await wanted.wait()
        while streams:
            under_way = list(streams)
            words = await loop.run_in_executor(None, network.step, [streams[one] for one in under_way])
            for one, word in zip(under_way, words):
                streams[one] += 1
                one.put_nowait(word)
                if streams[one] == WORDS:
                    del streams[one]
                    one.put_nowait(None)
        wanted.clear()


@app.post("/v1/chat/completions")
async def chat(request: Request):
    body = await request.json()
    if not hasattr(app.state, "task"):
        app.state.task = asyncio.create_task(write())
    words = asyncio.Queue()
    streams[words] = 0
    wanted.set()

    async def events():
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": int(time.time()), "model": body["model"]}
        while (word := await words.get()) is not None:
            choice = {"index": 0, "delta": {"content": word}, "logprobs": None, "finish_reason": None}
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\\n\\n"
        yield "data: [DONE]\\n\\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/v1/models")
async def models():
    return {"object": "list", "data": []}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""

LITSERVE = """
import sys

import litserve as ls
from network import WORDS, Network


class Api(ls.LitAPI):
    def setup(self, device):
        self.network = Network()

    def predict(self, messages):
        for count in range(WORDS):
            yield self.network.step([count])[0]


if __name__ == "__main__":
    ls.LitServer(Api(spec=ls.OpenAISpec()), accelerator="cpu", timeout=False).run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False
    )
"""


@dataclass
class Times:
    """Seconds: to the first word of each stream, and from each word to the next; words that came."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    words: int = 0
    seconds: float = 0.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def running(
    command: list[str], port: int, folder: Path, more: Mapping[str, str] | None = None, start_s: float = START_S
) -> Iterator[None]:
    """A server that answers on *port*, with *more* in its environment."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(more or {})}
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environ, start_new_session=True)
        try:
            end = time.monotonic() + start_s
            while not answers(port):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    sys.exit(f"{command} did not start:\n{log.read()}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # LitServe leaves its own processes behind


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def some_body() -> bytes:
    """A request that is like no other."""
    message = {"role": "user", "content": f"write {random.randrange(1 << 30)}"}
    return json.dumps({"model": "writer", "stream": True, "messages": [message]}).encode()


async def stream(port: int, times: Times, body: bytes) -> None:
    """One stream, from its connection to its end. What comes at once counts as one step between words."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = before = time.perf_counter()
    writer.write(head.encode() + body)
    words = 0
    while line := await reader.readline():
        if not line.startswith(b"data: ") or b'"content":' not in line or b"word" not in line:
            continue
        now = time.perf_counter()
        if words:
            times.between.append(now - before)
        else:
            times.first.append(now - begun)
        before = now
        words += line.count(b"word")
    writer.close()
    if words != WORDS:
        raise RuntimeError(f"a stream of {words} words, expected {WORDS}")
    times.words += words


async def measure(port: int, streams: int, seconds: float, body: Callable[[], bytes] = some_body) -> Times:
    """*streams* at a time, for *seconds* and until all have ended, each with a *body* of its own."""
    times = Times()
    begun = time.perf_counter()

    async def again_and_again() -> None:
        while time.perf_counter() - begun < seconds:
            await stream(port, times, body())

    await asyncio.gather(*(again_and_again() for _ in range(streams)))
    times.seconds = time.perf_counter() - begun
    return times


def command_of(name: str, folder: Path, port: int, litserve: str) -> list[str]:
    """The command that serves the model as *name* does, with its files in *folder*."""
    if name == "this server":
        version = folder / "models" / "writer" / "1"
        version.mkdir(parents=True)
        (version / "network.py").write_text(NETWORK)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        flags = ("--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1", f"--http-port={port}")
        return [sys.executable, "-m", "pytriton_lite", "serve", str(folder / "models"), *flags]
    (folder / "network.py").write_text(NETWORK)
    (folder / "server.py").write_text(FASTAPI if name == "FastAPI" else LITSERVE)
    return [sys.executable if name == "FastAPI" else litserve, "server.py", str(port)]


def shown(rounds: Sequence[Times]) -> str:
    """Medians of *rounds*: the median and the 99th percentile of first words and of steps between words, and the rate."""

    def of(pick: Callable[[Times], list[float]], share: float) -> float:
        values = [sorted(pick(times)) for times in rounds]
        return statistics.median(ordered[int(len(ordered) * share)] for ordered in values) * 1e3

    columns = [
        of(pick, share) for pick in (lambda times: times.first, lambda times: times.between) for share in (0.5, 0.99)
    ]
    rate = statistics.median(times.words / times.seconds for times in rounds)
    return "{:8.3f} {:8.3f}  {:8.3f} {:8.3f}".format(*columns) + f"  {rate:>9,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="how many at a time")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--litserve", default="", help="a Python with litserve")
    given = parser.parse_args()
    names = ["this server", "FastAPI", *(["LitServe"] if given.litserve else [])]
    print(f"{'':<12} {'':>7}  {'first token, ms':^17}  {'between, ms':^17}")
    print(f"{'':<12} {'streams':>7}  {'median':>8} {'p99':>8}  {'median':>8} {'p99':>8}  {'words/s':>9}")
    for name in names:
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            command = command_of(name, Path(folder), port, given.litserve)
            with running(command, port, Path(folder)):
                asyncio.run(measure(port, 1, 0.5))  # imports, and the worker's first steps
                for streams in given.streams:
                    times = asyncio.run(measure(port, streams, given.seconds))
                    print(f"{name:<12} {streams:>7}  {shown([times])}", flush=True)


if __name__ == "__main__":
    main()
