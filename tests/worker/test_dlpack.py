"""DLPack in and out of ``pb_utils.Tensor`` (model API, 2.2, 5.3 and 6.2)."""

from __future__ import annotations

import copy
import ctypes
import gc
import json
import mmap
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc.pretend_device import PretendDevice
from pytriton_lite.worker import dlpack
from pytriton_lite.worker.pb_utils import Tensor, TritonModelException
from tests.harness import PROJECT, RunningServer, write_model

NUMERIC = ["bool", *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)), "float16", "float32"]
NUMERIC.append("float64")

TYPE_CODES = {
    "bool": (6, 8),
    **{f"int{bits}": (0, bits) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits) for bits in (16, 32, 64)},
}
"""dlpack.h's, once more by hand: the product's own table is under test."""

NOT_CONTIGUOUS = (
    r"^DLPack tensor is not contiguous\. "
    r"Only contiguous DLPack tensors that are stored in C-Order are supported\.$"
)


class Shown(NamedTuple):
    """What a capsule says of its memory."""

    address: int
    device: tuple[int, int]
    type: tuple[int, int, int]
    shape: list[int]
    has_strides: bool


def shown(capsule: Any) -> Shown:
    assert name_of(capsule) == "dltensor"
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )(capsule, b"dltensor")
    tensor = dlpack._DLManagedTensor.from_address(pointer).tensor
    return Shown(
        (tensor.data or 0) + tensor.byte_offset,
        (tensor.device.type, tensor.device.id),
        (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        tensor.shape[: tensor.ndim],
        bool(tensor.strides),
    )


def name_of(capsule: Any) -> str:
    return repr(capsule).split('"')[1]


class Library:
    """A library in C, as far as DLPack shows it: makes capsules of whatever description, and counts what comes back."""

    def __init__(self) -> None:
        self.given_back = 0
        self._alive: list[object] = []

        def count(_: int) -> None:
            self.given_back += 1

        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(count)

    def capsule(
        self,
        array: np.ndarray[Any, Any],
        *,
        type_code: tuple[int, int, int] = (2, 32, 1),
        device: tuple[int, int] = (1, 0),
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        byte_offset: int = 0,
        version: tuple[int, int] | None = None,
        has_deleter: bool = True,
    ) -> Any:
        extents = array.shape if shape is None else shape
        managed: Any = dlpack._DLManagedTensor() if version is None else dlpack._DLManagedTensorVersioned(*version)
        tensor = managed.tensor
        tensor.data = array.ctypes.data
        tensor.device = device
        tensor.dtype = type_code
        tensor.ndim = len(extents)
        tensor.shape = (ctypes.c_int64 * len(extents))(*extents)
        if strides is not None:
            tensor.strides = (ctypes.c_int64 * len(strides))(*strides)
        tensor.byte_offset = byte_offset
        managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p) if has_deleter else None
        name = ctypes.create_string_buffer(b"dltensor" if version is None else b"dltensor_versioned")
        self._alive += [array, managed, name]
        return ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )(ctypes.addressof(managed), ctypes.addressof(name), None)


class Producer:
    """An object with the two methods; remembers how it was asked."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._capsule = capsule
        self._device = device
        self.asked: dict[str, Any] = {}

    def __dlpack__(self, **keywords: Any) -> Any:
        self.asked = keywords
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class OldProducer(Producer):
    """Written before DLPack 1.0."""

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return super().__dlpack__(stream=stream)


@pytest.fixture
def library() -> Library:
    return Library()


def received(datatype: dtypes.DataType, shape: tuple[int, ...], data: bytes) -> Tensor:
    """An input as the worker makes it: each read is another copy of the bytes."""
    return Tensor._of_request("IN", datatype, shape, None, lambda: bytearray(data))


# ---------------------------------------------------------------------------------------------- out: our tensors


@pytest.mark.parametrize("dtype", NUMERIC)
def test_a_tensor_shows_the_memory_of_its_array(dtype: str) -> None:
    """Model API, 2.2 and 6.2."""
    array = np.zeros((2, 3), dtype)
    assert shown(Tensor("A", array).to_dlpack()) == (
        array.ctypes.data,
        (1, 0),
        (*TYPE_CODES[dtype], 1),
        [2, 3],
        False,
    )


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1)], ids=str)
def test_scalars_and_empty_tensors_are_exported_with_their_shape(shape: tuple[int, ...]) -> None:
    assert shown(Tensor("A", np.zeros(shape)).to_dlpack()).shape == list(shape)


def test_np_from_dlpack_shares_the_memory() -> None:
    """model_api.md row 119."""
    array = np.zeros((2, 3), np.float32)
    seen = np.from_dlpack(Tensor("A", array))
    array[1, 2] = 7
    assert seen.ctypes.data == array.ctypes.data
    assert seen.tolist() == [[0, 0, 0], [0, 0, 7]]


def test_every_capsule_is_a_new_one() -> None:
    tensor = Tensor("A", np.zeros(2))
    first, second = tensor.to_dlpack(), tensor.__dlpack__()
    assert first is not second
    assert shown(first) == shown(second)


def test_a_capsule_keeps_the_memory_when_the_tensor_is_gone() -> None:
    capsule = Tensor("A", np.arange(100_000)).to_dlpack()
    gc.collect()
    taken = Tensor.from_dlpack("B", capsule)
    assert taken.as_numpy().tolist() == list(range(100_000))


def test_the_memory_goes_with_the_last_capsule() -> None:
    class Watched(np.ndarray[Any, Any]):
        def __del__(self) -> None:
            ended.append("array")

    ended: list[str] = []
    capsule = Tensor("A", np.zeros(3).view(Watched)).to_dlpack()
    gc.collect()
    assert ended == []
    del capsule
    gc.collect()
    assert ended == ["array"]


def test_a_read_only_array_is_exported_all_the_same() -> None:
    """numpy itself refuses, since an unversioned capsule cannot say so."""
    array = np.zeros(3)
    array.flags.writeable = False
    assert shown(Tensor("A", array).to_dlpack()).address == array.ctypes.data


@pytest.mark.parametrize("made", [Tensor, Tensor.from_dlpack], ids=["of an array", "of an import"])
def test_memory_that_is_mapped_for_reading_is_exported_as_a_copy(made: Any) -> None:
    """A model that asks for views of its inputs may make tensors of them; a consumer that writes would end the process."""
    array = np.frombuffer(mmap.mmap(-1, 4096, prot=mmap.PROT_READ), np.float32)
    tensor = made("T", array)
    address = shown(tensor.to_dlpack()).address
    assert address != array.ctypes.data
    ctypes.memset(address, 1, 4)
    assert (tensor.as_numpy().tobytes()[:4], array[0]) == (bytes([1] * 4), 0)


def test_keywords_of_later_protocol_versions_are_understood() -> None:
    """Model API, 2.2, a line of ours: Triton knows only ``stream``."""
    array = np.zeros(3)
    tensor = Tensor("A", array)
    capsule = tensor.__dlpack__(stream=5, max_version=(1, 1), dl_device=(1, 0), copy=False)
    assert shown(capsule).address == array.ctypes.data
    with pytest.raises(TypeError):
        tensor.__dlpack__(5)  # type: ignore[misc]


def test_a_copy_that_was_asked_for_has_memory_of_its_own() -> None:
    array = np.arange(3.0)
    copied = Tensor.from_dlpack("B", Tensor("A", array).__dlpack__(copy=True))
    array[0] = 9
    assert copied.as_numpy().tolist() == [0, 1, 2]


def test_another_device_than_the_tensors_is_a_buffer_error() -> None:
    with pytest.raises(BufferError, match=r"^Tensor 'A' is on DLPack device \(1, 0\), expected \(2, 0\)\.$"):
        Tensor("A", np.zeros(1)).__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize("method", ["to_dlpack", "__dlpack__"])
@pytest.mark.parametrize(
    "tensor",
    [Tensor("A", np.array([b"a"], dtype=object)), received(dtypes.BYTES, (1,), b"\1\0\0\0a")],
    ids=["own", "received"],
)
def test_string_tensors_are_refused(tensor: Tensor, method: str) -> None:
    """Model API, 2.2."""
    with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
        getattr(tensor, method)()


# ---------------------------------------------------------------------------------------------- out: inputs


@pytest.mark.parametrize("numpy_first", [True, False], ids=["numpy first", "DLPack first"])
def test_numpy_and_dlpack_show_the_same_memory_of_an_input(numpy_first: bool) -> None:
    """Model API, 5.3."""
    tensor = received(dtypes.INT32, (2, 1), struct.pack("=2i", 1, 2))
    if numpy_first:
        array = tensor.as_numpy()
        capsule = tensor.to_dlpack()
    else:
        capsule = tensor.to_dlpack()
        array = tensor.as_numpy()
    assert shown(capsule) == (array.ctypes.data, (1, 0), (0, 32, 1), [2, 1], False)
    assert shown(tensor.to_dlpack()).address == array.ctypes.data


def test_a_large_input_is_shown_where_it_arrived() -> None:
    """Model API, 5.3: the worker gives a view of shared memory."""
    memory = np.zeros(100, np.uint8)
    tensor = Tensor._of_request("IN", dtypes.FP64, (2,), None, lambda: memory[64:80])
    assert shown(tensor.to_dlpack()).address == memory.ctypes.data + 64


def test_an_empty_input_is_exported() -> None:
    assert shown(received(dtypes.FP32, (2, 0), b"").to_dlpack()).shape == [2, 0]


def test_bf16_passes_through_without_numpy() -> None:
    """Model API, 5.1."""
    data = struct.pack("<2H", 0x3F80, 0x4000)
    tensor = received(dtypes.BF16, (2,), data)
    assert shown(tensor.to_dlpack()).type == (4, 16, 1)
    passed = Tensor.from_dlpack("OUT", tensor)
    assert passed.triton_dtype() == 14
    assert passed.shape() == [2]
    assert bytes(passed._buffer()) == data
    assert shown(passed.to_dlpack()) == shown(tensor.to_dlpack())
    with pytest.raises(TritonModelException) as caught:
        passed.as_numpy()
    assert str(caught.value) == (
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    )


# ---------------------------------------------------------------------------------------------- in: what works


@pytest.mark.parametrize("by", ["array", "capsule"])
@pytest.mark.parametrize("dtype", NUMERIC)
def test_a_numpy_array_comes_in_without_a_copy(dtype: str, by: str) -> None:
    """model_api.md row 118; Triton crashes."""
    array = np.arange(6).reshape(2, 3).astype(dtype)
    if by == "array":
        tensor = Tensor.from_dlpack("A", array)
    else:
        if dtype == "bool" and np.lib.NumpyVersion(np.__version__) < "1.25.0":
            pytest.skip("this numpy exports no bool")
        tensor = Tensor.from_dlpack("A", array.__dlpack__())
    assert (tensor.name(), tensor.shape(), tensor.is_cpu()) == ("A", [2, 3], True)
    assert shown(tensor.to_dlpack()).address == array.ctypes.data
    assert tensor.as_numpy().dtype == dtype
    assert tensor.as_numpy().tolist() == array.tolist()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("by", ["array", "capsule"])
def test_scalars_and_empty_tensors_come_in(shape: tuple[int, ...], by: str) -> None:
    array = np.full(shape, 5.0)
    tensor = Tensor.from_dlpack("A", array if by == "array" else array.__dlpack__())
    assert tensor.shape() == list(shape)
    assert tensor.as_numpy().tolist() == array.tolist()
    assert bytes(tensor._buffer()) == array.tobytes()


def test_a_read_only_array_comes_in() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    assert shown(Tensor.from_dlpack("A", array).to_dlpack()).address == array.ctypes.data


def test_as_numpy_of_an_import_is_a_copy_of_its_own() -> None:
    """Model API, 6.2."""
    array = np.zeros(3)
    tensor = Tensor.from_dlpack("A", array)
    tensor.as_numpy()[0] = 5
    assert tensor.as_numpy().tolist() == [5, 0, 0]
    assert array.tolist() == [0, 0, 0]
    assert bytes(tensor._buffer()) == array.tobytes()


def test_what_the_producer_writes_later_goes_out() -> None:
    array = np.zeros(3)
    tensor = Tensor.from_dlpack("A", array)
    tensor.as_numpy()
    array[2] = 8
    assert bytes(tensor._buffer()) == array.tobytes()


def test_a_name_may_be_bytes() -> None:
    assert Tensor.from_dlpack("é".encode(), np.zeros(1)).name() == "é"


def test_producers_are_asked_for_a_versioned_capsule_without_a_stream(library: Library) -> None:
    """Model API, 6.2."""
    array = np.zeros((2, 3), np.float32)
    producer = Producer(library.capsule(array, version=(1, 1)))
    tensor = Tensor.from_dlpack("A", producer)
    assert producer.asked == {"stream": None, "max_version": (1, 0)}
    assert shown(tensor.to_dlpack()) == (array.ctypes.data, (1, 0), (2, 32, 1), [2, 3], False)
    assert name_of(producer._capsule) == "used_dltensor_versioned"


def test_a_producer_older_than_versions_is_asked_without_one(library: Library) -> None:
    array = np.zeros(3, np.float32)
    producer = OldProducer(library.capsule(array))
    tensor = Tensor.from_dlpack("A", producer)
    assert producer.asked == {"stream": None}
    assert shown(tensor.to_dlpack()).address == array.ctypes.data


def test_what_a_producer_raises_comes_through() -> None:
    class Unwilling(Producer):
        def __dlpack__(self, **keywords: Any) -> Any:
            raise BufferError("not today")

    with pytest.raises(BufferError, match=r"^not today$"):
        Tensor.from_dlpack("A", Unwilling(None))


def test_data_begin_at_the_byte_offset(library: Library) -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = Tensor.from_dlpack("A", library.capsule(array, shape=(2,), byte_offset=8))
    assert tensor.as_numpy().tolist() == [2, 3]
    assert shown(tensor.to_dlpack()).address == array.ctypes.data + 8


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), (3, 1)),
        ((1, 3), (77, 1)),
        ((3, 1), (1, 5)),
        ((2, 1, 3), (3, 0, 1)),
        ((1,), (9,)),
        ((0, 2), (7, 7)),
        ((), ()),
    ],
    ids=str,
)
def test_strides_of_single_and_empty_dimensions_do_not_matter(
    library: Library, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Model API, 6.2."""
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor.from_dlpack("A", library.capsule(array, shape=shape, strides=strides))
    count = int(np.prod(shape))
    assert tensor.as_numpy().tolist() == array[:count].reshape(shape).tolist()


# ---------------------------------------------------------------------------------------------- in: what is refused


@pytest.mark.parametrize("source", [None, 5, [1.0]], ids=repr)
def test_what_is_no_producer_is_refused(source: Any) -> None:
    """model_api.md row 118."""
    with pytest.raises(TritonModelException) as caught:
        Tensor.from_dlpack("a", source)
    assert str(caught.value) == (
        "Provided tensor is not supported. Tensor must be a DLPack capsule         "
        "or have `__dlpack__` and `__dlpack_device__` attributes"
    )
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor.from_dlpack("", source)


@pytest.mark.parametrize("arguments", [(), ("A",), (None, np.zeros(1)), (7, np.zeros(1))], ids=repr)
def test_arguments_of_a_wrong_type_are_a_type_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="from_dlpack"):
        Tensor.from_dlpack(*arguments)


@pytest.mark.parametrize("arguments", [("B", np.zeros(1)), (np.zeros(1),)], ids=["both", "source"])
def test_from_dlpack_is_called_on_the_class_only(arguments: tuple[Any, ...]) -> None:
    """Model API, 2.2."""
    with pytest.raises(TypeError, match="from_dlpack"):
        Tensor("A", np.zeros(1)).from_dlpack(*arguments)


@pytest.mark.parametrize("by", ["array", "capsule"])
@pytest.mark.parametrize("index", [np.s_[:, :2], np.s_[::2], np.s_[0, ::2], np.s_[::-1, 0]], ids=str)
def test_memory_that_is_not_in_c_order_is_refused(index: Any, by: str) -> None:
    """model_api.md row 118; Triton reads a slice of one dimension wrongly instead."""
    array = np.arange(12.0).reshape(4, 3)[index]
    with pytest.raises(TritonModelException, match=NOT_CONTIGUOUS):
        Tensor.from_dlpack("a", array if by == "array" else array.__dlpack__())


@pytest.mark.parametrize("device_type", [4, 8, 13], ids=["OpenCL", "VPI", "managed CUDA"])
def test_another_kind_of_device_is_refused(library: Library, device_type: int) -> None:
    """Model API, 6.2."""
    capsule = library.capsule(np.zeros(1, np.float32), device=(device_type, 0))
    with pytest.raises(
        TritonModelException, match=rf"^DLDevice type {device_type} is not support by Python backend\.$"
    ):
        Tensor.from_dlpack("a", capsule)


@pytest.mark.parametrize(
    "type_code",
    [(5, 64, 1), (2, 32, 2), (4, 16, 2), (2, 8, 1), (0, 4, 1), (6, 1, 1), (10, 8, 1), (3, 64, 1)],
    ids=["complex64", "2 × FP32", "2 × BF16", "float8", "int4", "1-bit bool", "float8_e4m3fn", "handle"],
)
def test_another_data_type_is_refused(library: Library, type_code: tuple[int, int, int]) -> None:
    """Model API, 6.2."""
    with pytest.raises(TritonModelException, match=r"^Dtype is invalid\.$"):
        Tensor.from_dlpack("a", library.capsule(np.zeros(4, np.float32), type_code=type_code))


def test_bf16_of_another_width_is_refused(library: Library) -> None:
    """Model API, 6.2."""
    with pytest.raises(TritonModelException, match=r"^Expected BF16 tensor to have 16 bits, but had: 32$"):
        Tensor.from_dlpack("a", library.capsule(np.zeros(4, np.float32), type_code=(4, 32, 1)))


@pytest.mark.parametrize("dtype", ["complex64", "U1", "S1", "O", ">f4", "M8[s]"])
def test_a_numpy_array_of_another_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(TritonModelException, match=r"^Dtype is invalid\.$"):
        Tensor.from_dlpack("a", np.zeros(2, dtype))


def test_a_later_major_version_is_refused(library: Library) -> None:
    capsule = library.capsule(np.zeros(1, np.float32), version=(2, 3))
    with pytest.raises(TritonModelException, match=r"^DLPack capsule has version 2\.3, expected version 1\.$"):
        Tensor.from_dlpack("a", capsule)


def test_a_producer_that_returns_no_capsule_is_refused() -> None:
    with pytest.raises(
        TritonModelException, match=r"^`__dlpack__` returned <class 'int'>, expected a DLPack capsule\.$"
    ):
        Tensor.from_dlpack("a", Producer(5))


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["unversioned", "versioned"])
def test_a_capsule_can_be_used_only_once(library: Library, version: tuple[int, int] | None) -> None:
    """model_api.md row 118."""
    capsule = library.capsule(np.zeros(1, np.float32), version=version)
    kept = Tensor.from_dlpack("a", capsule)
    used = "used_dltensor" if version is None else "used_dltensor_versioned"
    assert name_of(capsule) == used
    with pytest.raises(TritonModelException, match=f"found '{used}'. A DLPack capsule can be used only once"):
        Tensor.from_dlpack("a", capsule)
    assert kept.as_numpy().tolist() == [0]


def test_a_capsule_that_numpy_used_is_refused() -> None:
    capsule = np.zeros(1).__dlpack__()
    np.from_dlpack(Producer(capsule))  # type: ignore[arg-type]
    with pytest.raises(TritonModelException, match="found 'used_dltensor'"):
        Tensor.from_dlpack("a", capsule)


# ---------------------------------------------------------------------------------------------- giving back


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["unversioned", "versioned"])
def test_memory_is_given_back_once_after_the_last_use(library: Library, version: tuple[int, int] | None) -> None:
    """Model API, 6.2."""
    tensor = Tensor.from_dlpack("A", library.capsule(np.ones(3, np.float32), version=version))
    seen = np.from_dlpack(tensor)
    outgoing = tensor._buffer()
    del tensor
    gc.collect()
    assert library.given_back == 0
    del seen
    gc.collect()
    assert library.given_back == 0
    del outgoing
    gc.collect()
    assert library.given_back == 1


def test_memory_may_be_given_back_by_another_thread(library: Library) -> None:
    tensors = [Tensor.from_dlpack("A", library.capsule(np.ones(3, np.float32)))]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert library.given_back == 1


def test_a_refused_capsule_stays_its_owners(library: Library) -> None:
    capsule = library.capsule(np.zeros(1, np.float32), device=(8, 0))
    with pytest.raises(TritonModelException):
        Tensor.from_dlpack("a", capsule)
    gc.collect()
    assert name_of(capsule) == "dltensor"
    assert library.given_back == 0


def test_memory_without_a_deleter_is_only_forgotten(library: Library) -> None:
    tensor = Tensor.from_dlpack("A", library.capsule(np.ones(3, np.float32), has_deleter=False))
    assert tensor.as_numpy().tolist() == [1, 1, 1]
    del tensor
    gc.collect()
    assert library.given_back == 0


def test_capsules_and_imports_may_outlive_the_interpreter() -> None:
    """A callback into Python would end such a process with a segmentation fault."""
    code = """
        import builtins
        import numpy as np
        from pytriton_lite.worker.pb_utils import Tensor

        tensor = Tensor("A", np.zeros(1000))
        builtins.kept = [
            tensor,
            tensor.to_dlpack(),
            np.from_dlpack(tensor),
            Tensor.from_dlpack("B", np.ones(1000).__dlpack__()),
            Tensor.from_dlpack("C", Tensor.from_dlpack("D", tensor)),
        ]
        builtins.kept.append(builtins.kept)
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda call: call.__name__)
def test_a_tensor_is_neither_copied_nor_pickled(duplicate: Any) -> None:
    """Model API, section 2."""
    with pytest.raises(TypeError, match=r"^cannot pickle 'c_python_backend_utils\.Tensor' object$"):
        duplicate(Tensor.from_dlpack("A", np.zeros(1)))


# ---------------------------------------------------------------------------------------------- other devices


def test_a_capsule_of_gpu_memory_is_held_as_it_is(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model API, 2.2 and 6.2; nothing here touches the memory, so a pretended GPU will do."""
    monkeypatch.setenv(devices.PRETENDED, "2")
    memory = np.zeros(3, np.float32)
    tensor = Tensor.from_dlpack("A", library.capsule(memory, device=(2, 1)))
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 1)
    assert shown(tensor.to_dlpack()) == (memory.ctypes.data, (2, 1), (2, 32, 1), [3], False)
    with pytest.raises(TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumPy\.$"):
        tensor.as_numpy()
    with pytest.raises(BufferError, match=r"^Tensor 'A' is stored in GPU and cannot be copied for DLPack\.$"):
        tensor.__dlpack__(copy=True)


def test_what_producers_have_queued_is_waited_for(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model API, 6.2: a producer is told of a stream that is waited for; of a bare capsule nothing is known but the device."""
    monkeypatch.setenv(devices.PRETENDED, "1")
    device = devices.device(0)
    assert isinstance(device, PretendDevice)
    device.synchronized.clear()
    memory = np.zeros(3, np.float32)
    producer = Producer(library.capsule(memory, device=(2, 0)), device=(2, 0))
    Tensor.from_dlpack("A", producer)
    assert producer.asked["stream"] == device.side_stream()
    assert device.synchronized == [device.side_stream()]
    Tensor.from_dlpack("A", library.capsule(memory, device=(2, 0)))
    assert device.synchronized == [device.side_stream(), None]


def test_pinned_memory_is_host_memory(library: Library) -> None:
    """Model API, 2.2."""
    memory = np.ones(3, np.float32)
    producer = Producer(library.capsule(memory, device=(3, 1)), device=(3, 1))
    tensor = Tensor.from_dlpack("A", producer)
    assert producer.asked["stream"] is None
    assert tensor.is_cpu()
    assert tensor.__dlpack_device__() == (3, 1)
    assert shown(tensor.to_dlpack()).device == (3, 1)
    assert tensor.as_numpy().tolist() == [1, 1, 1]


@pytest.mark.skipif(bool(devices.visible_device_ids()), reason="this machine has a CUDA device")
def test_gpu_memory_without_a_driver_is_a_triton_model_exception(library: Library) -> None:
    capsule = library.capsule(np.zeros(3, np.float32), device=(2, 0))
    with pytest.raises(TritonModelException, match="CUDA device 0"):
        Tensor.from_dlpack("A", Producer(capsule, device=(2, 0)))
    assert name_of(capsule) == "dltensor"
    with pytest.raises(TritonModelException, match="CUDA device 0"):
        Tensor.from_dlpack("A", capsule)


# ---------------------------------------------------------------------------------------------- what an output sends


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("shape", [(2, 3), (), (2, 0)], ids=str)
def test_the_outgoing_bytes_are_those_of_the_array_without_a_copy(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    outgoing = Tensor("A", array)._buffer()
    assert (outgoing.format, outgoing.ndim) == ("B", 1)
    assert bytes(outgoing) == array.tobytes()
    if array.size:
        assert np.frombuffer(outgoing, np.uint8).ctypes.data == array.ctypes.data


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray])
def test_the_outgoing_bytes_of_a_subclass_are_those_of_its_memory(kind: Any) -> None:
    array = np.arange(4).reshape(2, 2).view(kind)
    outgoing = Tensor("A", array)._buffer()
    assert (outgoing.ndim, bytes(outgoing)) == (1, np.asarray(array).tobytes())


def test_the_outgoing_bytes_of_strings_are_serialised() -> None:
    assert bytes(Tensor("A", np.array(["é"], dtype=object))._buffer()) == b"\2\0\0\0\xc3\xa9"
    assert bytes(received(dtypes.BYTES, (1,), b"\1\0\0\0a")._buffer()) == b"\1\0\0\0a"


def test_the_outgoing_bytes_of_an_import_are_the_producers() -> None:
    array = np.ones(3, np.float32)
    outgoing = Tensor.from_dlpack("A", array)._buffer()
    assert (outgoing.format, outgoing.nbytes) == ("B", 12)
    assert np.frombuffer(outgoing, np.uint8).ctypes.data == array.ctypes.data


# ---------------------------------------------------------------------------------------------- through a server

PASSES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            outputs = []
            for tensor in request.inputs():
                again = pb_utils.Tensor.from_dlpack("OUT" + tensor.name()[2:], tensor.to_dlpack())
                if again.triton_dtype() != 14:
                    again.as_numpy()[...] = 0  # a copy: what goes out is the memory that was given
                outputs.append(again)
            return pb_utils.InferenceResponse(outputs)
"""
WIRE_TYPES = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"]
WIRE_TYPES.append("BF16")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("models")
    inputs = "".join(
        f'input {{ name: "IN_{name}" data_type: TYPE_{name} dims: [ -1 ] optional: true }}\n'
        f'output {{ name: "OUT_{name}" data_type: TYPE_{name} dims: [ -1 ] }}\n'
        for name in WIRE_TYPES
    )
    write_model(repository, "passes", PASSES, f'backend: "python"\n{inputs}')
    with RunningServer(repository) as running:
        yield running


def infer_binary(server: RunningServer, datatype: str, shape: list[int], data: bytes) -> tuple[Any, bytes]:
    """The response's JSON and the bytes behind it."""
    tensor = {
        "name": f"IN_{datatype}",
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    reply = server.post("/v2/models/passes/infer", head + data, {"Inference-Header-Content-Length": str(len(head))})
    assert reply.status == 200, reply.error
    length = int(reply.headers.get("inference-header-content-length", len(reply.body)))  # without it, nothing follows
    return json.loads(reply.body[:length]), reply.body[length:]


@pytest.mark.parametrize("count", [3, 0, 10_000], ids=["small", "empty", "large"])
@pytest.mark.parametrize("name", WIRE_TYPES)
def test_dlpack_carries_every_type_through_a_model(server: RunningServer, name: str, count: int) -> None:
    """model_api.md row 109; small tensors travel in a message, large ones in shared memory."""
    data = bytes(range(1, 1 + dtypes.BY_NAME[name].itemsize)) * count
    answer, returned = infer_binary(server, name, [count], data)
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == (f"OUT_{name}", name, [count])
    assert returned == data
