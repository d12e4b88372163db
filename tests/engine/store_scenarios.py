"""Models that answer a number, gates that hold them, and servers without front ends for what clients cannot see or cause."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from pytriton_lite.core.dtypes import INT32
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.pending_answer import PendingAnswer
from tests.forked_servers import forked_head_start

WORKERS = WorkerSettings(
    executable=sys.executable,
    shm_prefix="pytriton_lite_test_",
    ring_bytes=1 << 20,
    hello_timeout_s=30,
    ready_timeout_s=30,
)
CONFIG = """
    backend: "python"
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


ADDER_CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def code(value: int, *, initialize: str = "pass", execute: str = "pass", finalize: str = "pass") -> str:
    return f"""
import os
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        {execute}
        out = np.array([{value}], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]

    def finalize(self):
        {finalize}
"""


def adder(value: int, **statements: str) -> str:
    """With `ADDER_CONFIG`: the answer is the input and *value*."""
    return code(value, **statements).replace("np.array([", "requests[0].inputs()[0].as_numpy() + np.array([")


def ensemble(*models: str, version: int = -1) -> str:
    """A configuration: the input goes through all *models*, one after the other."""
    last = len(models) - 1
    steps = "".join(
        f'''step {{
            model_name: "{model}" model_version: {version}
            input_map {{ key: "IN" value: "{f"T{at}" if at else "IN"}" }}
            output_map {{ key: "OUT" value: "{f"T{at + 1}" if at < last else "OUT"}" }}
        }}'''
        for at, model in enumerate(models)
    )
    return f"""
        platform: "ensemble"
        input {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }}
        output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }}
        ensemble_scheduling {{ {steps} }}
    """


class Gate:
    """Models that execute its statement wait until it is opened, and say so before."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        begun, held, self._empty = folder / f"{name}_begun", folder / name, folder / f"{name}_open"
        os.mkfifo(begun)
        os.mkfifo(held)
        self._begun, self._held = (os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in (begun, held))
        self._path = held
        self.statement = f"open({str(begun)!r}, 'w').write('x'); open({str(held)!r}).read()"

    async def wait_held(self) -> None:
        loop = asyncio.get_running_loop()
        begun: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._begun, lambda: begun.done() or begun.set_result(None))
        try:
            await asyncio.wait_for(begun, 30)
        finally:
            loop.remove_reader(self._begun)
        os.read(self._begun, 1)

    def open(self) -> None:
        # Who has not opened the pipe yet, to which nobody will write any more, finds an empty file.
        self._empty.touch()
        self._empty.replace(self._path)
        os.close(self._held)

    def close(self) -> None:
        os.close(self._begun)


def run(
    repository: Path,
    scenario: Callable[[Server], Awaitable[None]],
    *,
    is_explicit: bool = True,
    loads_all: bool = True,
    more_repositories: tuple[Path, ...] = (),
    **options: Any,
) -> None:
    """Do *scenario* with a server that has loaded nothing, or what is there unless it *is_explicit*, and stop it.

    *loads_all* says whether that goes well.
    """
    repository.mkdir(exist_ok=True)
    repositories = (repository, *more_repositories)

    async def main() -> None:
        server = Server(ServerOptions(repositories, WORKERS, is_explicit=is_explicit, **options))
        if not is_explicit:
            server._fork_servers._head_start = forked_head_start()
        assert await server.load_all() == loads_all
        if is_explicit:  # a server that has loaded nothing has no use for one any more; here a load follows
            server._fork_servers._head_start = forked_head_start()
        server.start_serving()
        try:
            await asyncio.wait_for(scenario(server), 60)
        finally:
            await server.stop(10)

    asyncio.run(main())


def request(model: str = "m", **inputs: int) -> InferenceRequest:
    tensors = [
        Tensor(name, INT32, (1,), memoryview(np.array([value], np.int32)).cast("B")) for name, value in inputs.items()
    ]
    return InferenceRequest(model, None, inputs=tensors)


async def value_of(answer: asyncio.Future[Any]) -> int:
    (tensor,) = (await answer).outputs
    return int(np.frombuffer(tensor.data, np.int32)[0])


async def ask(server: Server, model: str = "m", **inputs: int) -> int:
    return await value_of(PendingAnswer.to(server, server.find(model, None), request(model, **inputs)))


async def refusal_of(work: Awaitable[None]) -> str:
    """What the error says that *work* ends with."""
    try:
        await work
    except InferenceError as error:
        return error.message
    raise AssertionError("it was not refused")


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until *is_so*."""
    for _ in range(1_000_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not become so")
