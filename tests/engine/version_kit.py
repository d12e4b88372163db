"""A version with real workers and nothing around it: no server, no store. Its model does as its requests say."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

from pytriton_lite.config.model_config import check_for_load, read_model_config, regrouped
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.serving.worker_version import WorkerVersion
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.workers.fork_server import ForkServers
from pytriton_lite.engine.workers.instance import Instance
from pytriton_lite.engine.workers.settings import WorkerSettings
from tests.engine.answering import answer_of
from tests.forked_servers import forked_head_start
from tests.harness import write_model

WAIT_S = 30
"""Nothing here takes as long; a test fails then, instead of hanging."""

TENSORS = """
    backend: "python"
    input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODEL = """
import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.folder = Path(args["model_repository"])
        self.note("initialize")
        gate = self.folder / f"initialize_{self.name}"
        if gate.exists():
            with open(gate, "rb", buffering=0) as opened:
                self.note("waits")
                word = opened.read(1)
            assert word != b"x", "told to fail"

    def call(self, model, sequence="0"):
        # To a request, or to one that is a sequence of its own.
        request = pb_utils.InferenceRequest(
            model_name=model,
            requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", np.array([b"x"], dtype=object))],
            correlation_id=int(sequence),
            flags=3 * bool(int(sequence)),
        )
        reply = request.exec()
        return reply.error().message() if reply.has_error() else reply.output_tensors()[0].as_numpy()[0]

    def note(self, what):
        with open(self.folder / "events", "a") as events:
            events.write(f"{what} {self.name}\\n")

    def execute(self, requests):
        texts = [request.inputs()[0].as_numpy().reshape(-1)[0].decode() for request in requests]
        self.note("execute:" + ",".join(texts) + " on")
        for text in texts:
            if text == "raise":
                raise ValueError("told to fail")
            if text.startswith("gate"):
                with open(self.folder / text.split()[0], "rb", buffering=0) as opened:
                    opened.read(1)
        shape = requests[0].inputs()[0].as_numpy().shape
        answers = [self.call(*text.split()[2:]) if " call " in text else self.name for text in texts]
        arrays = [np.array([answer], dtype=object).reshape(shape) for answer in answers]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]

    def finalize(self):
        self.note("finalize")
"""


class Gate:
    """Holds an ``execute`` that was asked for it, or an ``initialize``, until it is opened, once for each."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.name = path.name
        self._fd = os.open(path, os.O_RDWR)  # with a writer, to open it does not wait; to read does

    def open(self, word: bytes = b".") -> None:
        os.write(self._fd, word)


class Services:
    """What a server does for versions whose models ask for nothing, but for calls of each other."""

    def __init__(self) -> None:
        self.served: dict[str, ServedVersion] = {}
        self.observation = Observation()

    def find(self, name: str, version: int | None, namespace: str = "") -> ServedVersion:
        return self.served[name]

    def worker_gone(self, worker: object) -> None:
        """It has no metrics."""


class World:
    """Versions of models, each in a folder of its own, that share a fork server and, if they are to, resources.

    The fork server is forked (forked_servers.py), unless it is to be *started* because a test looks for its process.
    """

    def __init__(self, folder: Path, *, grants: ResourceGrants | None = None, started: bool = False) -> None:
        self._folder = folder
        self._fork_servers = ForkServers(head_start=None if started else forked_head_start())
        self.grants = grants
        self.services = Services()
        self.versions: list[WorkerVersion] = []

    async def __aenter__(self) -> World:
        return self

    async def __aexit__(self, *_: object) -> None:
        for served in self.versions:
            if served.is_loaded:
                served.begin_unload()
                await served.unload(5)
        self._fork_servers.close()

    async def load(self, config: str = "", name: str = "m", *, code: str = MODEL) -> Model:
        """A version that serves."""
        folder = write_model(self._folder, name, code, TENSORS + config)
        checked = check_for_load(read_model_config(folder, versions=[1]), model_dir=folder, gpu_ids=())
        settings = WorkerSettings(
            executable=sys.executable,
            shm_prefix="pytriton_lite_test_",
            ring_bytes=1 << 20,
            hello_timeout_s=WAIT_S,
            ready_timeout_s=WAIT_S,
        )
        served = WorkerVersion(
            checked,
            1,
            directory=folder,
            workers=settings,
            spawners=self._fork_servers,
            services=cast(Any, self.services),
            grants=self.grants,
        )
        self.versions.append(served)
        self.services.served[name] = served
        served.begin_load()
        await served.load(Environment(sys.executable, dict(os.environ)))
        assert not served.reason, served.reason
        served.open()
        return Model(served, folder)


class Model:
    """A version, and the folder that its model writes to."""

    def __init__(self, served: WorkerVersion, folder: Path) -> None:
        self.served = served
        self._folder = folder

    def gate(self, name: str) -> Gate:
        return Gate(self._folder / name)

    def infer(
        self, text: str, *, sequence: int = 0, flags: str = "", **fields: Any
    ) -> asyncio.Future[InferenceResponse]:
        """*flags* are S for START and E for END."""
        request = InferenceRequest(
            self.served.name,
            None,
            inputs=self.inputs(text),
            correlation_id=sequence,
            sequence_flags=SEQUENCE_START * ("S" in flags) + SEQUENCE_END * ("E" in flags),
            **fields,
        )
        return answer_of(self.served, request)

    def inputs(self, text: str) -> list[Tensor]:
        shape = (1, 1) if self.served.config.max_batch_size else (1,)
        return [Tensor("IN", dtypes.BYTES, shape, bytes_tensor.encode([text.encode()]))]

    async def adopt(self, groups: str) -> None:
        """As a load with that configuration."""
        async with self.adopting(groups) as change:
            change()

    def adopting(self, groups: str) -> AbstractAsyncContextManager[Callable[[], None]]:
        """As a load with that configuration, until all versions are ready for it."""
        (self._folder / "config.pbtxt").write_text(TENSORS + groups)
        read = read_model_config(self._folder, versions=[1])
        return self.served.adopting(regrouped(self.served.config, read, gpu_ids=()))

    @property
    def events(self) -> list[str]:
        path = self._folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def count(self) -> Counter[str]:
        """How many instances have been initialised and finalised."""
        return Counter(event.partition(" ")[0] for event in self.events if not event.startswith("execute"))

    async def wait_event(self, *wanted: str) -> None:
        await wait_until(lambda: all(event in self.events for event in wanted))

    @property
    def instances(self) -> list[Instance]:
        return self.served._instances

    @property
    def names(self) -> list[str]:
        return sorted(instance.name for instance in self.instances)

    def instance(self, name: str) -> Instance:
        return next(known for known in self.served._plans if known.name == name)

    async def wait_gone(self) -> None:
        """Return when every instance that was to go is gone."""
        await wait_until(lambda: not self.served._leaving)


async def wait_until(condition: Callable[[], bool]) -> None:
    """What is waited for happens in another process, or in a later turn of the loop."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < end, "waited in vain"
        await asyncio.sleep(0.002)


async def name_in(answer: asyncio.Future[InferenceResponse]) -> str:
    """Who answered."""
    response = await asyncio.wait_for(answer, WAIT_S)
    data = response.outputs[0].data
    assert data is not None
    (name,) = bytes_tensor.decode_list(data)
    text: str = name if isinstance(name, str) else name.decode()
    return text


async def kill(instance: Instance) -> None:
    """Kill the worker of *instance*, and wait until that is known."""
    pid = instance.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: instance.pid != pid)
