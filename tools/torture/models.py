"""The models of the tortured server: what each computes, what it asks of others, and how it misbehaves on demand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

MISDEEDS = (
    "none",
    "loop",  # waits for ever
    "busy",  # computes for ever
    "spin",  # holds the GIL for ever, inside a C function
    "exit",
    "sys_exit",
    "segfault",
    "abort",
    "exhaust",  # allocates under a limit until MemoryError
    "overrun",  # allocates, and is killed as the kernel's out-of-memory killer would
    "fork",  # leaves a child behind and goes on
    "fork_and_exit",
    "close_descriptors",
    "truncate",  # makes every segment that it can reach empty
    "garbage",  # writes nonsense to every socket that it has
    "exception",
    "base_exception",
    "keyboard_interrupt",
    "hoard",  # keeps the tensors of many requests
    "nap",
    "stop_itself",
    "terminate_itself",
    "print",
    "wrong_count",
)
"""What an input ``MISDEED`` asks of a model, by its number."""

STUCK = frozenset({"loop", "busy", "spin", "stop_itself"})
"""Those that never end by themselves."""

_COMMON = """
import asyncio
import ctypes
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

MISDEEDS = {misdeeds!r}
HOARD = []


def value_of(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()


def answer(name, array):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])


def descriptors():
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                yield int(name), os.readlink("/proc/self/fd/" + name)
            except OSError:
                continue


def exhaust():
    # The address space of this process alone is limited: the machine has others to serve.
    pages = int(open("/proc/self/statm").read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (32 << 20), before[1]))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(1 << 20))
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


def misbehave(requests):
    for request in requests:
        tensor = pb_utils.get_input_tensor_by_name(request, "MISDEED")
        misdeed = "none" if tensor is None else MISDEEDS[int(tensor.as_numpy().reshape(-1)[0])]
        if misdeed == "loop":
            threading.Event().wait()
        elif misdeed == "busy":
            while True:
                pass
        elif misdeed == "spin":
            ctypes.PyDLL(None).sleep(1_000_000)
        elif misdeed == "exit":
            os._exit(3)
        elif misdeed == "sys_exit":
            sys.exit(4)
        elif misdeed == "segfault":
            ctypes.string_at(8)
        elif misdeed == "abort":
            os.abort()
        elif misdeed == "exhaust":
            exhaust()
        elif misdeed == "overrun":
            block = bytearray(64 << 20)
            os.kill(os.getpid(), signal.SIGKILL)
        elif misdeed in ("fork", "fork_and_exit"):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            if misdeed == "fork_and_exit":
                os._exit(5)
        elif misdeed == "close_descriptors":
            os.closerange(3, 4096)
        elif misdeed == "truncate":
            for fd, target in list(descriptors()):
                if "memfd:" in target or "/dev/shm/" in target:
                    try:
                        os.ftruncate(fd, 0)
                    except OSError:
                        pass
        elif misdeed == "garbage":
            for fd, target in list(descriptors()):
                if target.startswith("socket:"):
                    os.set_blocking(fd, False)
                    try:
                        os.write(fd, b"\\xff" * 64)
                    except OSError:
                        pass
        elif misdeed == "exception":
            raise RuntimeError("the model was told to fail")
        elif misdeed == "base_exception":
            raise BaseException("the model was told to fail badly")
        elif misdeed == "keyboard_interrupt":
            raise KeyboardInterrupt
        elif misdeed == "hoard":
            HOARD.extend(tensor.as_numpy() for tensor in request.inputs())
            HOARD.append(request)
            del HOARD[:-64]
        elif misdeed == "nap":
            time.sleep(0.3)
        elif misdeed == "stop_itself":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif misdeed == "terminate_itself":
            os.kill(os.getpid(), signal.SIGTERM)
        elif misdeed == "print":
            print("x" * (1 << 20), flush=True)
            print("y" * (1 << 16), file=sys.stderr, flush=True)
        elif misdeed == "wrong_count":
            return False
    return True
"""

_PLAIN = """
class TritonPythonModel:
    def execute(self, requests):
        if not misbehave(requests):
            return []
        return [answer("OUT", value_of(request) * 2 + 1) for request in requests]
"""

_COROUTINE = """
class TritonPythonModel:
    async def execute(self, requests):
        if not misbehave(requests):
            return []
        await asyncio.sleep(0.002)
        return [answer("OUT", value_of(request) * 2 + 1) for request in requests]
"""

_COUNT = """
class TritonPythonModel:
    def execute(self, requests):
        misbehave(requests)
        for number, request in enumerate(requests):
            first, count = int(value_of(request)[0]), int(value_of(request, "COUNT")[0])
            sender = request.get_response_sender()
            if number % 2:
                self.send(sender, first, count)
            else:
                threading.Thread(target=self.send, args=(sender, first, count), daemon=True).start()

    def send(self, sender, first, count):
        for at in range(count):
            sender.send(answer("OUT", np.array([first + at], np.int32)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_CALLS = """
class TritonPythonModel:
    def execute(self, requests):
        if not misbehave(requests):
            return []
        return [self.ask(request) for request in requests]

    def ask(self, request):
        given = pb_utils.Tensor("IN", value_of(request))
        call = pb_utils.InferenceRequest(
            model_name={callee!r}, requested_output_names=["OUT"], inputs=[given], request_id=request.request_id()
        )
        response = call.exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return answer("OUT", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy() * {factor})
"""

_CALLS_ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        if not misbehave(requests):
            return []
        return list(await asyncio.gather(*(self.ask(request) for request in requests)))

    async def ask(self, request):
        given = pb_utils.Tensor("IN", value_of(request))
        call = pb_utils.InferenceRequest(
            model_name={callee!r}, requested_output_names=["OUT"], inputs=[given], request_id=request.request_id()
        )
        response = await call.async_exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return answer("OUT", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy() * {factor})
"""

_SEQUENCE = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        if not misbehave(requests):
            return []
        responses = []
        for request in requests:
            if request.correlation_id() == 0:  # a slot whose sequence has nothing to say
                responses.append(answer("OUT", np.zeros((1, 1), np.int32)))
                continue
            key, flags = request.correlation_id(), request.flags()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[key] = np.zeros((1, 1), np.int32)
            total = self.sums[key] = self.sums[key] + value_of(request)
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[key]
            responses.append(answer("OUT", total))
        return responses
"""

_STATE = """
class TritonPythonModel:
    def execute(self, requests):
        if not misbehave(requests):
            return []
        responses = []
        for request in requests:
            total = value_of(request, "SUM_IN") + value_of(request)
            outputs = [pb_utils.Tensor("OUT", total), pb_utils.Tensor("SUM_OUT", total)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""

_MISDEED_INPUT = 'input { name: "MISDEED" data_type: TYPE_INT32 dims: [ 1 ] optional: true }'
_ARRAYS = """
input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
"""
_NUMBERS = _ARRAYS.replace("-1", "1")


def _instances(count: int) -> str:
    return f"instance_group {{ kind: KIND_CPU count: {count} }}"


def _ensemble(*steps: str) -> str:
    """A chain of *steps*, each of which takes IN and gives OUT."""
    names = ["IN", *(f"BETWEEN_{at}" for at in range(1, len(steps))), "OUT"]
    parts = "".join(
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "IN" value: "{names[at]}" }} '
        f'output_map {{ key: "OUT" value: "{names[at + 1]}" }} }}\n'
        for at, step in enumerate(steps)
    )
    return f'platform: "ensemble"\n{_ARRAYS}\nensemble_scheduling {{ {parts} }}'


@dataclass(frozen=True)
class Model:
    """One model: its files, how many workers it has, and which models a request to it asks in turn."""

    name: str
    code: str
    config: str
    workers: int = 1
    asks: tuple[str, ...] = ()
    """Models that get one request each for one request to this one, their own callees not counted."""
    is_batching: bool = False
    is_small: bool = False
    """Whether its tensors have one element."""
    defers: bool = False
    """Whether it answers after ``execute`` has returned, so that the execution counts whatever becomes of the answer."""
    is_cached: bool = False
    factor: int = 1
    """What it multiplies the answer of its callee with."""

    def write(self, repository: Path) -> None:
        folder = repository / self.name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        if self.code:
            common = _COMMON.replace("{misdeeds!r}", repr(MISDEEDS))
            (folder / "1" / "model.py").write_text(common + self.code)
        (folder / "config.pbtxt").write_text(self.config)


def _python(*parts: str) -> str:
    return "\n".join(['backend: "python"', _MISDEED_INPUT, *parts])


def _sequences(*parts: str) -> str:
    idle = "max_sequence_idle_microseconds: 4000000"
    return f"max_batch_size: 4\nsequence_batching {{ {idle}\n" + "\n".join(parts) + " }"


_LIST = (
    Model("plain", _PLAIN, _python(_ARRAYS, _instances(2)), workers=2),
    Model(
        "batched",
        _PLAIN,
        _python(
            _ARRAYS,
            _instances(2),
            "max_batch_size: 8",
            "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 2000 }",
        ),
        workers=2,
        is_batching=True,
    ),
    Model("large", _PLAIN, _python(_ARRAYS, _instances(2)), workers=2),
    Model(
        "coroutine",
        _COROUTINE,
        _python(_ARRAYS, 'parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "4" } }'),
    ),
    Model(
        "count",
        _COUNT,
        _python(
            _NUMBERS,
            'input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }',
            "model_transaction_policy { decoupled: true }",
            _instances(2),
        ),
        workers=2,
        is_small=True,
        defers=True,
    ),
    Model(
        "calls_twice",
        _CALLS.replace("{callee!r}", repr("plain")).replace("{factor}", "3"),
        _python(_ARRAYS, _instances(2)),
        workers=2,
        asks=("plain",),
        factor=3,
    ),
    Model(
        "calls_thrice",
        _CALLS_ASYNC.replace("{callee!r}", repr("calls_twice")).replace("{factor}", "5"),
        _python(_ARRAYS),
        asks=("calls_twice",),
        factor=5,
    ),
    Model(
        "sequence",
        _SEQUENCE,
        _python(_NUMBERS, _sequences("direct { }"), _instances(2)),
        workers=2,
        is_batching=True,
        is_small=True,
    ),
    Model(
        "state",
        _STATE,
        _python(
            _NUMBERS,
            _sequences(
                "oldest { max_candidate_sequences: 4 }",
                'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] '
                'initial_state { name: "zero" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } }',
            ),
        ),
        is_batching=True,
        is_small=True,
    ),
    Model("chain", "", _ensemble("plain", "large", "plain"), workers=0, asks=("plain", "large", "plain")),
    Model("nested", "", _ensemble("chain", "calls_thrice"), workers=0, asks=("chain", "calls_thrice")),
    Model("cached", _PLAIN, _python(_ARRAYS, "response_cache { enable: true }"), is_cached=True),
    Model("storm_a", _PLAIN, _python(_ARRAYS, _instances(1))),
    Model("storm_b", _PLAIN, _python(_ARRAYS, _instances(1))),
)

MODELS = {model.name: model for model in _LIST}
STORMS = ("storm_a", "storm_b")
"""Those that are loaded, unloaded, changed and broken while requests come."""
STEADY = tuple(name for name in MODELS if name not in STORMS)
WITH_WORKERS = tuple(model.name for model in _LIST if model.workers)
SEQUENCES = ("sequence", "state")

BROKEN_CONFIGS = (
    "this is no configuration {",
    _python(_ARRAYS, "max_batch_size: -3"),
    _python(_ARRAYS, 'input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }'),
    'backend: "nobody_has_this"' + _ARRAYS,
)
BROKEN_CODES = (
    "def execute(:\n",
    "raise RuntimeError('the model does not import')\n",
    "class TritonPythonModel:\n    def initialize(self, args):\n        raise RuntimeError('no')\n"
    "    def execute(self, requests):\n        return []\n",
    "import os\nclass TritonPythonModel:\n    def initialize(self, args):\n        os._exit(9)\n"
    "    def execute(self, requests):\n        return []\n",
)


def write_models(repository: Path) -> None:
    """All of them, in an empty folder."""
    for model in _LIST:
        model.write(repository)


def storm_config(instances: int, *, note: int = 0) -> str:
    """That of a storm model; another *note* is a change that needs new workers, another number of instances is none."""
    return _python(_ARRAYS, _instances(instances), f'parameters {{ key: "note" value {{ string_value: "{note}" }} }}')


def asked_by(name: str) -> Counter[str]:
    """Models that a request to *name* reaches with everything that these ask in turn, and how often. Not itself."""
    reached: Counter[str] = Counter()
    for callee in MODELS[name].asks:
        reached[callee] += 1
        reached += asked_by(callee)
    return reached


def line_of(name: str) -> tuple[int, int]:
    """What a request to *name* that stands alone gets: (a, b), where OUT is a * IN + b."""
    model = MODELS[name]
    if not model.code:
        factor, offset = 1, 0
        for step in model.asks:
            step_factor, step_offset = line_of(step)
            factor, offset = step_factor * factor, step_factor * offset + step_offset
        return factor, offset
    if model.asks:
        factor, offset = line_of(model.asks[0])
        return model.factor * factor, model.factor * offset
    return 2, 1
