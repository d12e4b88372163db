"""``pb_utils`` as a library: names, tables, tensors, responses, errors (model API, sections 2 and 5)."""

from __future__ import annotations

import enum
import importlib
import json
import pickle
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.api_errors import error_of
from pytriton_lite.worker.loader import install_pb_utils
from pytriton_lite.worker.pb_utils import (
    InferenceRequest,
    InferenceResponse,
    Logger,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
)
from pytriton_lite.worker.process import Host, install

NUMPY_TYPES = {
    1: ("TYPE_BOOL", np.bool_),
    2: ("TYPE_UINT8", np.uint8),
    3: ("TYPE_UINT16", np.uint16),
    4: ("TYPE_UINT32", np.uint32),
    5: ("TYPE_UINT64", np.uint64),
    6: ("TYPE_INT8", np.int8),
    7: ("TYPE_INT16", np.int16),
    8: ("TYPE_INT32", np.int32),
    9: ("TYPE_INT64", np.int64),
    10: ("TYPE_FP16", np.float16),
    11: ("TYPE_FP32", np.float32),
    12: ("TYPE_FP64", np.float64),
    13: ("TYPE_STRING", np.object_),
}
"""The table of section 5.1, once more by hand: the product's own is under test."""


def make_request(*inputs: Tensor, **fields: Any) -> InferenceRequest:
    """A request as the worker makes it, with *fields* in place of the defaults."""
    defaults: dict[str, Any] = {
        "model_name": "m",
        "model_version": 1,
        "request_id": "",
        "correlation_id": 0,
        "flags": 0,
        "timeout_us": 0,
        "parameters": "",
        "requested_outputs": frozenset({"OUT"}),
    }
    return InferenceRequest._received(**{**defaults, **fields}, inputs=list(inputs))


def input_tensor(name: str, datatype: dtypes.DataType, shape: tuple[int, ...], data: bytes) -> Tensor:
    """An input as the worker makes it: its bytes are read when the model asks for the array."""
    return Tensor._of_request(name, datatype, shape, None, lambda: bytearray(data))


# ---------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "name",
    [
        "InferenceRequest",
        "InferenceResponse",
        "Logger",
        "MetricFamily",
        "ModelConfig",
        "PreferredMemory",
        "TRITONSERVER_MEMORY_CPU",
        "TRITONSERVER_MEMORY_GPU",
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
        "TRITONSERVER_REQUEST_RELEASE_ALL",
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
        "TRITON_STRING_TO_NUMPY",
        "Tensor",
        "TritonError",
        "TritonModelException",
        "deserialize_bytes_tensor",
        "get_input_config_by_name",
        "get_input_tensor_by_name",
        "get_model_dir",
        "get_output_config_by_name",
        "get_output_tensor_by_name",
        "is_model_ready",
        "json",
        "load_model",
        "np",
        "numpy_to_triton_type",
        "serialize_byte_tensor",
        "struct",
        "triton_string_to_numpy",
        "triton_to_numpy_type",
        "unload_model",
        "using_decoupled_model_transaction_policy",
    ],
)
def test_every_name_of_the_reference_is_there(name: str) -> None:
    """Model API, 2.1 to 2.10, and the modules that leak from Triton's own file."""
    assert hasattr(pb_utils, name)
    assert name in pb_utils.__all__


COMPILED_CLASSES = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
]


@pytest.mark.parametrize("name", COMPILED_CLASSES)
def test_compiled_classes_name_the_compiled_module(name: str) -> None:
    """Model API, 1.2."""
    assert getattr(pb_utils, name).__module__ == "c_python_backend_utils"


@pytest.mark.parametrize("name", [*COMPILED_CLASSES, "MemoryType", "MetricKind", "shared_memory"])
def test_the_compiled_half_can_be_imported_by_its_own_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Model API, 1.2."""
    for module in ("triton_python_backend_utils", "c_python_backend_utils"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    install_pb_utils("repo/m/1")
    compiled = importlib.import_module("c_python_backend_utils")
    assert getattr(compiled, name) is getattr(pb_utils, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRITONSERVER_REQUEST_FLAG_SEQUENCE_START", 1),
        ("TRITONSERVER_REQUEST_FLAG_SEQUENCE_END", 2),
        ("TRITONSERVER_RESPONSE_COMPLETE_FINAL", 1),
        ("TRITONSERVER_REQUEST_RELEASE_ALL", 1),
        ("TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", 2),
    ],
)
def test_the_flags_are_plain_numbers(name: str, value: int) -> None:
    """Model API, 2.1."""
    flag = getattr(pb_utils, name)
    assert type(flag) is int
    assert flag == value


ENUMERATIONS = (pb_utils.Logger.LogLevel, pb_utils.MemoryType, pb_utils.MetricKind)


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=lambda found: found.__qualname__)
def test_members_of_enumerations_equal_their_numbers_and_each_other(enumeration: type[enum.Enum]) -> None:
    """What Triton's bindings say of each of these expressions."""
    for number, member in enumerate(enumeration):
        assert member == number
        assert number == member
        assert member == np.int64(number) == float(number)
        assert member != number + 1
        assert member != str(number)
        assert {number: "found"}[member] == "found"
        assert [int(member), range(4)[member]] == [number, number]
        assert pickle.loads(pickle.dumps(member)) is member
        assert not isinstance(member, int)
    assert pb_utils.Logger.WARNING == pb_utils.MetricFamily.GAUGE
    assert (enumeration.__module__, repr(pb_utils.Logger.INFO)) == ("c_python_backend_utils", "<LogLevel.INFO: 0>")


def test_kinds_of_memory_have_numbers_and_are_none() -> None:
    """Model API, 2.1."""
    assert pb_utils.TRITONSERVER_MEMORY_GPU.value == 0
    assert pb_utils.TRITONSERVER_MEMORY_CPU.value == 1
    assert not isinstance(pb_utils.TRITONSERVER_MEMORY_GPU, int)
    assert pb_utils.MemoryType.TRITONSERVER_MEMORY_CPU is pb_utils.TRITONSERVER_MEMORY_CPU


def test_preferred_memory_takes_a_kind_and_a_device() -> None:
    """Model API, 2.7."""
    PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
    PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1)
    PreferredMemory(preferred_memory_type=pb_utils.TRITONSERVER_MEMORY_GPU, preferred_device_id=0)


@pytest.mark.parametrize("arguments", [(), (1,), (None,), (pb_utils.TRITONSERVER_MEMORY_CPU, "0")], ids=repr)
def test_preferred_memory_of_wrong_types_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    """Model API, 2.7."""
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        PreferredMemory(*arguments)


@pytest.mark.parametrize("name", ["InferenceResponseSender", "Logger", "ResponseIterator"])
def test_what_is_only_ever_returned_cannot_be_made(name: str) -> None:
    """Model API, 2.1, 2.5 and 2.8."""
    with pytest.raises(TypeError):
        getattr(pb_utils, name)()


def test_the_shared_memory_tells_its_room() -> None:
    """Model API, 1.2."""
    assert pb_utils.shared_memory.free_memory() > 0


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        pytest.param(Tensor("A", np.zeros(1)), "dtype", id="Tensor.dtype"),
        pytest.param(Tensor("A", np.zeros(1)), "dims", id="Tensor.dims"),
        pytest.param(Tensor("A", np.zeros(1)), "__array__", id="Tensor.__array__"),
        pytest.param(make_request(), "model_name", id="InferenceRequest.model_name"),
        pytest.param(make_request(), "model_version", id="InferenceRequest.model_version"),
        pytest.param(make_request().get_response_sender(), "close", id="InferenceResponseSender.close"),
        pytest.param(TritonModelException("e"), "message", id="TritonModelException.message"),
    ],
)
def test_an_attribute_that_never_existed_is_an_ordinary_attribute_error(thing: Any, name: str) -> None:
    """Model API, 2.2 to 2.6: tutorials know some that Triton never had."""
    with pytest.raises(AttributeError, match=f"object has no attribute '{name}'$"):
        getattr(thing, name)


@pytest.mark.parametrize("name", ["Tenser", "Response", "DataType", "infer"])
def test_a_name_that_never_existed_is_an_ordinary_attribute_error(name: str) -> None:
    """Model API, 9."""
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'$"):
        getattr(pb_utils, name)


@pytest.mark.parametrize(
    "thing",
    [Tensor("A", np.zeros(1)), InferenceResponse([]), TritonError("e"), make_request()],
    ids=lambda thing: type(thing).__name__,
)
def test_no_attribute_can_be_set_on_objects(thing: Any) -> None:
    """Model API, section 2."""
    with pytest.raises(AttributeError):
        thing.colour = "blue"


def test_objects_are_compared_by_identity() -> None:
    """Model API, section 2."""
    array = np.zeros(1)
    first, second = Tensor("A", array), Tensor("A", array)
    assert first == first
    assert first != second
    assert len({first, second}) == 2


@pytest.mark.parametrize(
    "thing",
    [Tensor("A", np.zeros(1)), InferenceResponse([]), make_request()],
    ids=lambda thing: type(thing).__name__,
)
def test_a_model_may_keep_what_it_knows_of_an_object_as_long_as_that_lives(thing: Any) -> None:
    known = weakref.WeakKeyDictionary({thing: "seen"})
    assert known[thing] == "seen"


# ---------------------------------------------------------------------------------------------- data type tables


@pytest.mark.parametrize("number", NUMPY_TYPES)
def test_numbers_and_numpy_types_stand_for_each_other(number: int) -> None:
    """Model API, 5.1."""
    numpy_type = NUMPY_TYPES[number][1]
    assert np.dtype(pb_utils.triton_to_numpy_type(number)) == np.dtype(numpy_type)
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
    assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == number


@pytest.mark.parametrize("number", [-1, 0, 14, 99])
def test_other_numbers_have_no_numpy_type(number: int) -> None:
    assert pb_utils.triton_to_numpy_type(number) is None


def test_bytes_type_is_a_string_tensor() -> None:
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13


@pytest.mark.parametrize("other", [np.dtype("S3"), str, bool, "float32", np.complex64, np.dtype(np.complex128)])
def test_other_numpy_types_have_no_number(other: Any) -> None:
    """Model API, 2.1."""
    assert pb_utils.numpy_to_triton_type(other) is None


@pytest.mark.parametrize(("config_name", "numpy_type"), NUMPY_TYPES.values())
def test_config_names_have_their_numpy_type(config_name: str, numpy_type: type) -> None:
    assert np.dtype(pb_utils.triton_string_to_numpy(config_name)) == np.dtype(numpy_type)
    assert pb_utils.TRITON_STRING_TO_NUMPY[config_name] is pb_utils.triton_string_to_numpy(config_name)


def test_type_bool_is_the_builtin_by_name_and_numpys_by_number() -> None:
    """As in Triton 2.51."""
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_to_numpy_type(1) is np.bool_


@pytest.mark.parametrize("name", ["TYPE_BF16", "FP32", "TYPE_NOPE", ""])
def test_other_config_names_are_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy(name)


# ---------------------------------------------------------------------------------------------- BYTES


def test_elements_that_are_not_bytes_become_their_utf8_text() -> None:
    """model_api.md row 111."""
    array = np.array(["é", 1, None, 2.5, True, b"\xff"], dtype=object)
    serialized = pb_utils.serialize_byte_tensor(array)
    expected = [b"\xc3\xa9", b"1", b"None", b"2.5", b"True", b"\xff"]
    assert serialized == b"".join(struct.pack("<I", len(element)) + element for element in expected)
    assert pb_utils.deserialize_bytes_tensor(serialized).tolist() == expected


def test_serialisation_follows_c_order() -> None:
    array = np.array([[b"a", b"b"], [b"c", b"d"]], dtype=object).T
    assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(array)).tolist() == [
        b"a",
        b"c",
        b"b",
        b"d",
    ]


def test_fixed_width_strings_lose_trailing_zero_bytes_only() -> None:
    """Model API, 5.2: numpy's doing."""
    array = np.array([b"a\0b", b"c\0"], dtype="S3")
    assert pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(array)).tolist() == [b"a\0b", b"c"]


def test_an_empty_array_serialises_to_an_empty_tuple() -> None:
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=object)) == ()


def test_a_numeric_array_does_not_serialise() -> None:
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None


def test_deserialised_elements_lie_in_a_flat_object_array() -> None:
    array = pb_utils.deserialize_bytes_tensor(b"\x01\0\0\0a\0\0\0\0")
    assert array.dtype == np.object_
    assert array.tolist() == [b"a", b""]
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)


@pytest.mark.parametrize("cut", [b"\x01\0", b"\x05\0\0\0ab"], ids=["length", "element"])
def test_truncated_data_are_a_struct_error(cut: bytes) -> None:
    with pytest.raises(struct.error):
        pb_utils.deserialize_bytes_tensor(cut)


# ---------------------------------------------------------------------------------------------- Tensor


@pytest.mark.parametrize(("config_name", "numpy_type"), list(NUMPY_TYPES.values())[:12])
def test_a_contiguous_numeric_array_is_kept_itself(config_name: str, numpy_type: type) -> None:
    """Model API, 2.2."""
    array = np.zeros((2, 3), dtype=numpy_type)
    tensor = Tensor("A", array)
    assert tensor.as_numpy() is array
    assert tensor.name() == "A"
    assert tensor.shape() == [2, 3]
    assert NUMPY_TYPES[tensor.triton_dtype()][0] == config_name
    assert tensor.is_cpu()


def test_a_scalar_array_has_an_empty_shape() -> None:
    tensor = Tensor("A", np.array(1.5))
    assert tensor.shape() == []
    assert tensor.as_numpy() == 1.5


def test_a_noncontiguous_array_is_copied_at_construction() -> None:
    """model_api.md rows 113 and 114."""
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = Tensor("A", array.T)
    array[0, 0] = 99
    assert tensor.as_numpy().flags.c_contiguous
    assert tensor.as_numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensor.as_numpy() is tensor.as_numpy()


def test_a_string_array_is_given_back_itself() -> None:
    array = np.array(["a", b"b"], dtype=object)
    tensor = Tensor("A", array)
    assert tensor.as_numpy() is array
    assert tensor.triton_dtype() == 13


def test_a_name_may_be_utf8_bytes() -> None:
    assert Tensor("é".encode(), np.zeros(1)).name() == "é"


def test_a_tensor_can_be_subclassed() -> None:
    class Named(Tensor):
        pass

    assert isinstance(Named("A", np.zeros(1)), Tensor)


@pytest.mark.parametrize(
    "arguments",
    [(), ("A",), ("A", None), ("A", [1, 2]), ("A", np.float32(1)), ("A", 1), (None, np.zeros(1)), (7, np.zeros(1))],
    ids=repr,
)
def test_arguments_of_a_wrong_type_are_a_type_error(arguments: tuple[Any, ...]) -> None:
    """model_api.md row 117."""
    with pytest.raises(TypeError, match=r"__init__\(\)"):
        Tensor(*arguments)


def test_arguments_are_positional_only() -> None:
    with pytest.raises(TypeError):
        Tensor(name="A", array=np.zeros(1))  # type: ignore[call-arg]


def test_an_empty_name_is_refused() -> None:
    """model_api.md row 117."""
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor("", np.zeros(1))


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a"]),
        np.zeros(1, dtype=np.complex64),
        np.zeros(1, dtype=">f4"),
        np.zeros(1, dtype="datetime64[s]"),
        np.zeros(1, dtype=np.longdouble),
        np.zeros(1, dtype=[("a", "f4")]),
    ],
    ids=lambda array: array.dtype.str,
)
def test_other_numpy_dtypes_are_refused(array: Any) -> None:
    """model_api.md row 117."""
    with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\.$"):
        Tensor("A", array)


def test_what_lies_below_a_mask_is_not_sent() -> None:
    with pytest.raises(
        TritonModelException, match=r"^Tensor 'A': masked elements have no values .* filled\(\) does\.$"
    ):
        Tensor("A", np.ma.array([1, 2, 3], mask=[0, 1, 0]))  # type: ignore[no-untyped-call]
    assert Tensor("A", np.ma.array([1, 2, 3])).as_numpy().tolist() == [1, 2, 3]  # type: ignore[no-untyped-call]


def test_bf16_input_cannot_become_numpy() -> None:
    """model_api.md row 110."""
    tensor = input_tensor("A", dtypes.BF16, (2,), b"\0\0\0\0")
    assert tensor.triton_dtype() == 14
    with pytest.raises(TritonModelException) as caught:
        tensor.as_numpy()
    assert str(caught.value) == (
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
    )


def test_an_input_array_is_writeable_and_the_same_each_time() -> None:
    """Model API, 5.3."""
    tensor = input_tensor("A", dtypes.INT32, (2, 1), np.array([1, 2], dtype=np.int32).tobytes())
    array = tensor.as_numpy()
    array[0, 0] = 5
    assert tensor.as_numpy() is array
    assert array.tolist() == [[5], [2]]


def test_a_string_input_is_an_object_array_of_bytes() -> None:
    tensor = input_tensor("A", dtypes.BYTES, (2, 1), b"\x01\0\0\0a\x02\0\0\0\xff\0")
    assert tensor.as_numpy().dtype == np.object_
    assert tensor.as_numpy().tolist() == [[b"a"], [b"\xff\0"]]


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
@pytest.mark.parametrize("datatype", [dtypes.FP32, dtypes.BYTES], ids=str)
def test_an_empty_input_has_its_shape(datatype: dtypes.DataType, shape: tuple[int, ...]) -> None:
    """Model API, 5.3."""
    array = input_tensor("A", datatype, shape, b"").as_numpy()
    assert array.shape == shape
    assert array.dtype == datatype.numpy


# ---------------------------------------------------------------------------------------------- requests, helpers


def test_tensors_are_found_by_name() -> None:
    a, b = Tensor("A", np.zeros(1)), Tensor("B", np.zeros(1))
    request, response = make_request(a, b), InferenceResponse([a, b])
    assert pb_utils.get_input_tensor_by_name(request, "B") is b
    assert pb_utils.get_input_tensor_by_name(request, "C") is None
    assert pb_utils.get_output_tensor_by_name(response, "A") is a
    assert pb_utils.get_output_tensor_by_name(response, "C") is None


def test_the_list_of_inputs_is_new_each_time() -> None:
    request = make_request(Tensor("A", np.zeros(1)))
    tensors = request.inputs()
    request.inputs().clear()
    assert request.inputs() == tensors


def test_a_bare_request_has_the_values_that_stand_for_none() -> None:
    """Model API, 2.3."""
    request = make_request()
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request.parameters() == "{}"


def test_flags_can_be_set() -> None:
    request = make_request(flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
    request.set_flags(request.flags() | pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert request.flags() == 3
    with pytest.raises(TypeError):
        request.set_flags(-1)


def test_tensor_configurations_are_found_by_name() -> None:
    config = {"input": [{"name": "A", "dims": [1]}], "output": [{"name": "B"}]}
    assert pb_utils.get_input_config_by_name(config, "A") == {"name": "A", "dims": [1]}
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name(config, "B") == {"name": "B"}
    assert pb_utils.get_output_config_by_name({}, "B") is None


def test_decoupled_is_read_from_the_transaction_policy() -> None:
    """Model API, 2.1."""
    decoupled = pb_utils.using_decoupled_model_transaction_policy
    assert decoupled({"model_transaction_policy": {"decoupled": True}}) is True
    assert decoupled({"model_transaction_policy": {"decoupled": False}}) is False
    assert decoupled({}) is False
    with pytest.raises(KeyError):
        decoupled({"model_transaction_policy": {}})


# ---------------------------------------------------------------------------------------------- InferenceResponse


def test_the_list_of_outputs_is_new_each_time() -> None:
    tensor = Tensor("A", np.zeros(1))
    response = InferenceResponse(output_tensors=(tensor,))
    response.output_tensors().clear()
    assert response.output_tensors() == [tensor]
    assert not response.has_error()
    assert response.error() is None


def test_a_response_without_arguments_is_empty() -> None:
    assert InferenceResponse().output_tensors() == []


def test_a_response_carries_its_error() -> None:
    error = TritonError("msg")
    response = InferenceResponse([], error)
    assert response.has_error()
    assert response.error() is error


@pytest.mark.parametrize(
    "arguments",
    [(None,), ((tensor for tensor in ()),), ([5],), (["A"],), ([], "an error"), ([], ValueError("e"))],
    ids=["none", "generator", "int", "str", "error str", "exception"],
)
def test_a_response_of_wrong_types_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    """Model API, 2.4."""
    with pytest.raises(TypeError, match=r"^__init__\(\): incompatible constructor arguments\."):
        InferenceResponse(*arguments)


def test_none_among_the_outputs_is_refused() -> None:
    with pytest.raises(TritonModelException, match=r"^Output tensor for inference response should not be empty\.$"):
        InferenceResponse([None])  # type: ignore[list-item]


def test_response_parameters_are_json_text() -> None:
    """model_api.md row 138."""
    parameters: dict[str, bool | int | str] = {"bool": True, "str": "x", "int": 5}
    assert json.loads(InferenceResponse([], parameters=parameters).parameters()) == parameters


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"f": 0.5}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"f": None}, "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
        ({"f": [1]}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        ({1: 1}, "Expect parameters keys to have type str, found type <class 'int'>"),
        (["a"], ", got <class 'list'>"),
    ],
)
def test_other_response_parameters_are_refused(parameters: Any, text: str) -> None:
    """model_api.md row 138."""
    with pytest.raises(TritonModelException) as caught:
        InferenceResponse([], parameters=parameters)
    assert text in str(caught.value)


# ---------------------------------------------------------------------------------------------- errors


def test_error_of_the_server_that_triton_has_no_code_for_has_the_nearest() -> None:
    assert error_of(ErrorCode.RESOURCE_EXHAUSTED, "too much waits").code() == TritonError.UNAVAILABLE
    assert error_of(ErrorCode.DEADLINE_EXCEEDED, "it took too long").code() == TritonError.UNAVAILABLE
    assert error_of(ErrorCode.NOT_FOUND, "no").code() == TritonError.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UNKNOWN", 0),
        ("INTERNAL", 1),
        ("NOT_FOUND", 2),
        ("INVALID_ARG", 3),
        ("UNAVAILABLE", 4),
        ("UNSUPPORTED", 5),
        ("ALREADY_EXISTS", 6),
        ("CANCELLED", 7),
    ],
)
def test_error_codes_have_their_values(name: str, value: int) -> None:
    """Model API, 2.6; ``str`` and ``format`` asked of Triton 2.51."""
    code = getattr(TritonError, name)
    assert code == value
    assert int(code) == value
    assert code.name == name
    assert repr(code) == f"<__ErrorCode.{name}: {value}>"
    assert str(code) == f"{code}" == f"__ErrorCode.{name}"
    assert TritonError("msg", code).code() == code


def test_an_error_is_internal_unless_said() -> None:
    error = TritonError("msg")
    assert error.message() == "msg"
    assert error.code() == TritonError.INTERNAL


def test_an_error_is_no_exception() -> None:
    with pytest.raises(TypeError):
        raise TritonError("msg")  # type: ignore[misc]


@pytest.mark.parametrize("arguments", [(5,), (None,), ("msg", 3), ("msg", None)], ids=repr)
def test_an_error_of_wrong_types_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        TritonError(*arguments)


def test_the_exception_class_is_an_ordinary_exception() -> None:
    assert str(TritonModelException("text")) == "text"
    assert not hasattr(TritonModelException("text"), "message")


# ---------------------------------------------------------------------------------------------- Logger


class LogSpy(Host):
    """A host that keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, int, str]] = []

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        self.lines.append((level, filename, line, text))


@pytest.fixture
def log() -> Iterator[LogSpy]:
    spy = LogSpy()
    previous = install(spy)
    yield spy
    install(previous)


@pytest.mark.parametrize(
    ("method", "level"), [("log", 0), ("log_info", 0), ("log_warn", 1), ("log_error", 2), ("log_verbose", 3)]
)
def test_each_log_method_has_its_level(log: LogSpy, method: str, level: int) -> None:
    """Model API, 2.8."""
    getattr(Logger, method)("hello")
    ((got_level, filename, line, text),) = log.lines
    assert (got_level, filename, text) == (level, __file__, "hello")
    function = test_each_log_method_has_its_level.__code__
    assert line > function.co_firstlineno


@pytest.mark.parametrize(("name", "value"), [("INFO", 0), ("WARNING", 1), ("ERROR", 2), ("VERBOSE", 3)])
def test_log_takes_a_level(log: LogSpy, name: str, value: int) -> None:
    level = getattr(Logger, name)
    assert level is getattr(Logger.LogLevel, name)
    Logger.log("hello", level)
    Logger.log(message="hello", level=level)
    assert [line[0] for line in log.lines] == [value, value]


@pytest.mark.parametrize("arguments", [(5,), (None,), ("m", 0), ("m", None)], ids=repr)
def test_log_of_wrong_types_is_a_type_error(log: LogSpy, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        Logger.log(*arguments)
    assert log.lines == []


@pytest.mark.parametrize("method", ["log_info", "log_warn", "log_error", "log_verbose"])
def test_a_message_that_is_no_text_is_a_type_error(log: LogSpy, method: str) -> None:
    with pytest.raises(TypeError, match=rf"^{method}\(\)"):
        getattr(Logger, method)(5)
    assert log.lines == []


@pytest.mark.parametrize("method", ["log", "log_info", "log_warn", "log_error", "log_verbose"])
def test_a_message_may_be_bytes(log: LogSpy, method: str) -> None:
    getattr(Logger, method)(b"bytes")
    assert [line[-1] for line in log.lines] == ["bytes"]


def test_a_logger_cannot_be_made() -> None:
    with pytest.raises(TypeError, match=r"No constructor defined!$"):
        Logger()


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"large": 1 << 63}, "parameter 'large' of the response cannot be sent: it has more than 64 bits"),
        ({"small": -(1 << 63) - 1}, "parameter 'small' of the response cannot be sent: it has more than 64 bits"),
        ({"text": "\ud800"}, "parameter 'text' of the response cannot be sent: it has no text that UTF-8 can have"),
        ({"\ud800": 1}, "parameter '\\ud800' of the response cannot be sent: it has no text that UTF-8 can have"),
    ],
)
def test_parameters_of_a_response_are_such_as_the_protocols_have(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(TritonModelException) as caught:
        InferenceResponse([], parameters=parameters)
    assert str(caught.value) == text
    assert InferenceResponse([], parameters={"a": (1 << 63) - 1, "b": True, "ä": "ö"}).parameters()
