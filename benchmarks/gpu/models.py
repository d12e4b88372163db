"""The models of the checks, written into a folder: they move tensors on a device, and compute nothing."""

from __future__ import annotations

import textwrap
from pathlib import Path

_PROJECT = Path(__file__).resolve().parents[2]

_PRELUDE = f"""
import sys
import time
sys.path.insert(0, {str(_PROJECT)!r})
import numpy as np
import triton_python_backend_utils as pb_utils
from pytriton_lite.core import dtypes
from pytriton_lite.ipc import device as devices
from pytriton_lite.worker import dlpack

def on_device(count):
    # FP32 on device 0, as a framework would have it.
    device = devices.device(0)
    memory = device.allocate_private(4 * count)
    device.write(memory.pointer, memoryview(np.arange(count, dtype=np.float32)).cast("B"))
    storage = dlpack.Storage(dlpack.Device(dlpack.CUDA, 0), memory.pointer, memory)
    return pb_utils.Tensor.from_dlpack("IN", dlpack.make_capsule(storage, dtypes.FP32, (count,)))

def renamed(tensor):
    if tensor.is_cpu():
        return pb_utils.Tensor("IN", tensor.as_numpy())
    return pb_utils.Tensor.from_dlpack("IN", tensor.to_dlpack())

def content(tensor):
    if tensor.is_cpu():
        return tensor.as_numpy()
    imported = dlpack._take_capsule(tensor.to_dlpack())
    array = np.empty(imported.shape, np.float32)
    devices.device(imported.storage.device.id).read(imported.storage.pointer, memoryview(array).cast("B"))
    return array
"""

_PASS = """
class TritonPythonModel:
    # Gives back what it is given, where it is: one copy on the device, or one on the host.
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            if tensor.is_cpu():
                tensor = pb_utils.Tensor("OUT", tensor.as_numpy())
            else:
                tensor = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""

_MEASURE = """
class TritonPythonModel:
    # Calls models, one after the other, with a tensor of so many elements, so many times; answers with the microseconds of
    # each time, and whether the bytes are equal and stayed on their side.
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            count, rounds = (int(value) for value in inputs["COUNT"])
            names = inputs["MODEL"][0].decode().split(",")
            is_on_device = bool(inputs["DEVICE"][0])
            given = on_device(count) if is_on_device else pb_utils.Tensor("IN", np.arange(count, dtype=np.float32))
            found = []
            for _ in range(rounds + 1):
                began = time.perf_counter()
                answer = given
                for name in names:
                    called = pb_utils.InferenceRequest(
                        model_name=name, requested_output_names=["OUT"], inputs=[renamed(answer)]
                    ).exec()
                    if called.has_error():
                        raise pb_utils.TritonModelException(called.error().message())
                    answer = called.output_tensors()[0]
                found.append((time.perf_counter() - began) * 1e6)
            same = np.array_equal(content(answer), np.arange(count, dtype=np.float32))
            stayed = is_on_device != answer.is_cpu()
            responses.append(pb_utils.InferenceResponse([
                pb_utils.Tensor("MICROSECONDS", np.array(found[1:], np.float64)),
                pb_utils.Tensor("SAME", np.array([same, stayed], bool)),
            ]))
        return responses
"""

_DEVICE_INPUTS = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "no" } }'
_GPU = "instance_group { count: 1 kind: KIND_GPU gpus: [ 0 ] }"
_CPU = "instance_group { count: 1 kind: KIND_CPU }"
_ONE_TENSOR = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def write_models(folder: Path) -> None:
    """Write a repository with all of them into *folder*."""
    for name in ("pass_a", "pass_b", "pass_c"):
        _write(folder, name, _PRELUDE + _PASS, _ONE_TENSOR + _GPU + _DEVICE_INPUTS)
    for name in ("host_a", "host_b", "host_c"):
        _write(folder, name, _PRELUDE + _PASS, _ONE_TENSOR + _CPU)
    # Inputs on the host, though the model is on the GPU: by way of the device helper.
    _write(folder, "staged", _PRELUDE + _PASS, _ONE_TENSOR + _GPU)
    _write(
        folder,
        "measure",
        _PRELUDE + _MEASURE,
        f"""
        backend: "python"
        input {{ name: "COUNT" data_type: TYPE_INT64 dims: [ 2 ] }}
        input {{ name: "MODEL" data_type: TYPE_STRING dims: [ 1 ] }}
        input {{ name: "DEVICE" data_type: TYPE_BOOL dims: [ 1 ] }}
        output {{ name: "MICROSECONDS" data_type: TYPE_FP64 dims: [ -1 ] }}
        output {{ name: "SAME" data_type: TYPE_BOOL dims: [ 2 ] }}
        {_GPU}
        """,
    )
    for name, steps in (("chain_on_device", "pass"), ("chain_on_host", "host")):
        _write(folder, name, "", _chain(steps))


def _chain(steps: str) -> str:
    return (
        """
    platform: "ensemble"
    input { name: "T0" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "T3" data_type: TYPE_FP32 dims: [ -1 ] }
    ensemble_scheduling {
    """
        + "".join(
            f'step {{ model_name: "{steps}_{letter}" model_version: -1 input_map {{ key: "IN" value: "T{at}" }} '
            f'output_map {{ key: "OUT" value: "T{at + 1}" }} }}\n'
            for at, letter in enumerate("abc")
        )
        + "}"
    )


def _write(folder: Path, name: str, code: str, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(textwrap.dedent(config))
    if code:
        (folder / name / "1" / "model.py").write_text(code)
