"""PyTorch and JAX share memory with ``pb_utils.Tensor`` (model API, 5.3 and 6.2). Run by ``make test-frameworks``."""

from __future__ import annotations

import gc
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.worker.pb_utils import Tensor, TritonModelException
from tests.harness import RunningServer, write_model

WHY = "a heavy framework, installed only by `make test-frameworks`"
torch: Any = pytest.importorskip("torch", reason=WHY)
jax: Any = pytest.importorskip("jax", reason=WHY)

jax.config.update("jax_enable_x64", True)

TORCH_TYPES = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}


def received(datatype: DataType, shape: tuple[int, ...], data: bytes) -> Tensor:
    """An input as the worker makes it, at an address that JAX takes without a copy (a multiple of 64)."""
    memory = np.zeros(len(data) + 64, np.uint8)
    start = -memory.ctypes.data % 64
    content = memory[start : start + len(data)]
    content[:] = np.frombuffer(data, np.uint8)
    return Tensor._of_request("IN", datatype, shape, None, lambda: content)


# ---------------------------------------------------------------------------------------------- PyTorch


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_a_torch_tensor_comes_in_and_goes_back_in_place(name: str) -> None:
    """model_api.md row 109."""
    given = torch.arange(6).reshape(2, 3).to(TORCH_TYPES[name])
    tensor = Tensor.from_dlpack("OUT", given)
    assert tensor.triton_dtype() == dtypes.BY_NAME[name].number
    assert tensor.shape() == [2, 3]
    assert bytes(tensor._buffer()) == given.view(torch.uint8).numpy().tobytes()
    back = torch.from_dlpack(tensor)
    assert back.data_ptr() == given.data_ptr()
    assert back.dtype == given.dtype
    assert back.tolist() == given.tolist()


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_an_input_is_a_torch_tensor_over_its_own_memory(name: str) -> None:
    """Model API, 5.3."""
    datatype = dtypes.BY_NAME[name]
    data = bytes(range(datatype.itemsize)) * 4 if name != "BOOL" else b"\0\1\1\0"
    tensor = received(datatype, (4, 1), data)
    seen = torch.from_dlpack(tensor.to_dlpack())
    assert seen.dtype == TORCH_TYPES[name]
    assert list(seen.shape) == [4, 1]
    assert seen.view(torch.uint8).numpy().tobytes() == data
    if datatype is not dtypes.BF16:
        assert seen.data_ptr() == tensor.as_numpy().ctypes.data


def test_torch_and_numpy_write_to_the_same_memory_of_an_input() -> None:
    tensor = received(dtypes.FP32, (3,), bytes(12))
    array = tensor.as_numpy()
    torch.from_dlpack(tensor)[1] = 5
    array[2] = 6
    assert array.tolist() == torch.from_dlpack(tensor).tolist() == [0, 5, 6]


def test_the_capsule_of_torch_is_used_once() -> None:
    """model_api.md row 118."""
    given = torch.ones(3)
    capsule = torch.utils.dlpack.to_dlpack(given)
    tensor = Tensor.from_dlpack("OUT", capsule)
    assert torch.from_dlpack(tensor).data_ptr() == given.data_ptr()
    with pytest.raises(TritonModelException, match="can be used only once"):
        Tensor.from_dlpack("OUT", capsule)
    with pytest.raises(RuntimeError):
        torch.from_dlpack(capsule)


def test_torch_does_not_take_a_capsule_of_ours_twice() -> None:
    capsule = Tensor("A", np.zeros(3)).to_dlpack()
    torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError):
        torch.from_dlpack(capsule)


def test_the_memory_of_torch_lives_as_long_as_the_tensor() -> None:
    """Model API, 6.2."""
    tensor = Tensor.from_dlpack("OUT", torch.arange(100_000) * 2)
    gc.collect()
    torch.zeros(100_000, dtype=torch.int64)  # would be given the same memory
    assert tensor.as_numpy().tolist() == list(range(0, 200_000, 2))


def test_our_memory_lives_as_long_as_the_tensor_of_torch() -> None:
    seen = torch.from_dlpack(Tensor("A", np.arange(100_000)))
    gc.collect()
    np.zeros(100_000, np.int64)
    assert seen.tolist() == list(range(100_000))


@pytest.mark.parametrize(
    "given", [torch.zeros(()), torch.zeros(0), torch.zeros(2, 0)], ids=lambda t: str(list(t.shape))
)
def test_scalars_and_empty_tensors_of_torch_pass(given: Any) -> None:
    tensor = Tensor.from_dlpack("OUT", given)
    assert tensor.shape() == list(given.shape)
    assert torch.from_dlpack(tensor).shape == given.shape


@pytest.mark.parametrize(
    "given",
    [torch.zeros(2, 3).T, torch.zeros(6)[::2], torch.zeros(4, 4)[:, :2]],
    ids=["transposed", "slice of one dimension", "columns"],
)
def test_torch_tensors_that_are_not_contiguous_are_refused(given: Any) -> None:
    """model_api.md row 118."""
    with pytest.raises(TritonModelException, match=r"^DLPack tensor is not contiguous\."):
        Tensor.from_dlpack("OUT", given)
    assert Tensor.from_dlpack("OUT", given.contiguous()).shape() == list(given.shape)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_torch_types_that_triton_lacks_are_refused(dtype: Any) -> None:
    """Model API, 6.2."""
    with pytest.raises(TritonModelException, match=r"^Dtype is invalid\.$"):
        Tensor.from_dlpack("OUT", torch.zeros(2).to(dtype))


def test_what_torch_raises_comes_through() -> None:
    with pytest.raises(BufferError, match="gradient"):
        Tensor.from_dlpack("OUT", torch.zeros(2, requires_grad=True))


# ---------------------------------------------------------------------------------------------- JAX


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_a_jax_array_comes_in_and_goes_back_in_place(name: str) -> None:
    """model_api.md row 109."""
    dtype = jax.numpy.bfloat16 if name == "BF16" else dtypes.BY_NAME[name].numpy
    given = jax.numpy.arange(6).reshape(2, 3).astype(dtype)
    tensor = Tensor.from_dlpack("OUT", given)
    assert tensor.triton_dtype() == dtypes.BY_NAME[name].number
    assert bytes(tensor._buffer()) == np.asarray(given).tobytes()
    back = jax.dlpack.from_dlpack(tensor)
    assert back.unsafe_buffer_pointer() == given.unsafe_buffer_pointer()
    assert back.dtype == given.dtype
    assert back.tolist() == given.tolist()


def test_an_input_is_a_jax_array_over_its_own_memory() -> None:
    """Model API, 5.3."""
    tensor = received(dtypes.FP32, (2, 2), struct.pack("=4f", 1, 2, 3, 4))
    seen = jax.dlpack.from_dlpack(tensor)
    assert seen.unsafe_buffer_pointer() == tensor.as_numpy().ctypes.data
    assert seen.tolist() == [[1, 2], [3, 4]]


def test_one_memory_goes_from_torch_through_a_tensor_to_jax_and_numpy() -> None:
    """model_api.md row 119."""
    given = torch.ones(4, 4)
    tensor = Tensor.from_dlpack("A", given)
    seen = [jax.dlpack.from_dlpack(tensor).unsafe_buffer_pointer(), np.from_dlpack(tensor).ctypes.data]
    assert seen == [given.data_ptr()] * 2


# ---------------------------------------------------------------------------------------------- through a server

DOUBLES = """
    import torch
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                given = torch.from_dlpack(pb_utils.get_input_tensor_by_name(request, "IN"))
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", given * 2)]))
            return responses
"""
DOUBLES_CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_BF16 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_BF16 dims: [ -1 ] }
"""


def test_a_torch_model_computes_in_bf16(tmp_path: Path) -> None:
    """model_api.md row 109; in a message (3 elements) and in shared memory (9000)."""
    write_model(tmp_path, "doubles", DOUBLES, DOUBLES_CONFIG)
    with RunningServer(tmp_path) as server:
        for count in (3, 9000):
            given = torch.arange(count).to(torch.bfloat16)
            data = given.view(torch.uint8).numpy().tobytes()
            tensor = {
                "name": "IN",
                "datatype": "BF16",
                "shape": [count],
                "parameters": {"binary_data_size": len(data)},
            }
            head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
            reply = server.post(
                "/v2/models/doubles/infer", head + data, {"Inference-Header-Content-Length": str(len(head))}
            )
            assert reply.status == 200, reply.error
            returned = reply.body[int(reply.headers["inference-header-content-length"]) :]
            assert torch.frombuffer(bytearray(returned), dtype=torch.bfloat16).tolist() == (given * 2).tolist()
