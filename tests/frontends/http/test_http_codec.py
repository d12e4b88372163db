"""Bytes to requests and responses to bytes, without a connection."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import PackedForm, Tensor, element_count
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.http import codec, json_slices
from pytriton_lite.frontends.http.codec import KnownDocuments, OutputForms
from pytriton_lite.ipc.messages import form_of

LIMIT = 64 << 20
NO_REGIONS = Regions(is_allowed=False)
JSON_FORMS = OutputForms(default=False, listed={})
BINARY_FORMS = OutputForms(default=True, listed={})
NO_JSON = (dtypes.FP16, dtypes.BF16)
WITH_JSON = [datatype for datatype in dtypes.ALL if datatype not in NO_JSON]
UNSIGNED = [dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64]
SIGNED = [dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64]
SOURCES = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)


def decode(document: Any, binary: bytes = b"", limit: int = LIMIT) -> InferenceRequest:
    return decode_forms(document, binary, limit)[0]


def decode_forms(document: Any, binary: bytes = b"", limit: int = LIMIT) -> tuple[InferenceRequest, OutputForms]:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return codec.decode(
        text,
        model_name="M",
        version=None,
        available=len(binary),
        binary=memoryview(binary),
        max_input_size=limit,
        regions=NO_REGIONS,
    )


def refusal(document: Any, binary: bytes = b"", limit: int = LIMIT) -> tuple[int, str]:
    with pytest.raises(InferenceError) as caught:
        decode(document, binary, limit)
    return {ErrorCode.INTERNAL: 500, ErrorCode.INVALID_ARG: 400, ErrorCode.NOT_FOUND: 404, ErrorCode.UNSUPPORTED: 501}[
        caught.value.code
    ], caught.value.message


def tensor(data: Any, *, datatype: str = "FP32", shape: Any = (4,), name: Any = "X", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, "data": data, **more}


def one(data: Any, *, datatype: str = "FP32", shape: Any = (4,)) -> dict[str, Any]:
    return {"inputs": [tensor(data, datatype=datatype, shape=shape)]}


def packed(size: Any, *, datatype: str = "FP32", shape: Any = (4,), name: str = "X") -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": list(shape), "datatype": datatype, "parameters": parameters}


def read(document: Any, binary: bytes = b"") -> bytes:
    (got,) = decode(document, binary).inputs
    assert got.data is not None
    assert len(got.data) == got.nbytes
    return bytes(got.data)


def write(*tensors: Tensor, forms: OutputForms = JSON_FORMS, parameters: Any = None, request_id: str = "") -> Any:
    head, parts = codec.encode(InferenceResponse("M", 3, request_id, list(tensors), parameters or {}), forms)
    return head, [bytes(part) for part in parts]


# JSON tensors


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[1, [2]], 3, [[[4]]]], [[[[1]]], [[2, 3]], [4, []]]])
def test_only_the_leaves_of_nested_data_count(data: Any) -> None:
    """http.md row 45."""
    assert read(one(data, datatype="INT32")) == struct.pack("<4i", 1, 2, 3, 4)


def test_fp32_takes_integers_infinities_and_what_is_too_large() -> None:
    """http.md row 46."""
    got = struct.unpack(
        "<6f", read(b'{"inputs":[{"name":"X","shape":[6],"datatype":"FP32","data":[NaN,Inf,-Infinity,1e40,-1e40,7]}]}')
    )
    assert math.isnan(got[0])
    assert got[1:] == (math.inf, -math.inf, math.inf, -math.inf, 7.0)


@pytest.mark.parametrize(
    ("datatype", "sent", "got"),
    [
        ("UINT8", 256, 0),
        ("UINT16", 65537, 1),
        ("UINT32", 2**32 + 5, 5),
        ("UINT64", 2**64 - 1, 2**64 - 1),
        ("INT8", 128, -128),
        ("INT16", -32769, 32767),
        ("INT32", 2**31, -(2**31)),
        ("INT64", -(2**63), -(2**63)),
    ],
)
def test_integers_out_of_range_wrap_around(datatype: str, sent: int, got: int) -> None:
    """http.md row 48."""
    numpy = dtypes.BY_NAME[datatype].numpy
    assert np.frombuffer(read(one([sent, 1], datatype=datatype, shape=[2])), numpy).tolist() == [got, 1]


NOT_UNSIGNED = "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
NOT_NUMBER = "Unable to parse 'data': attempt to access JSON non-number as double"
NOT_BOOLEAN = "Unable to parse 'data': attempt to access JSON non-boolean as boolean"


@pytest.mark.parametrize(
    ("datatype", "leaf", "text"),
    [
        ("BOOL", 1, NOT_BOOLEAN),
        ("BOOL", None, NOT_BOOLEAN),
        ("UINT8", -1, NOT_UNSIGNED),
        ("UINT32", 1.0, NOT_UNSIGNED),
        ("UINT64", 2**64, NOT_UNSIGNED),
        ("UINT16", True, NOT_UNSIGNED),
        ("INT64", 1000.0, NOT_SIGNED),
        ("INT64", 2**63, NOT_SIGNED),
        ("INT8", 2**63, NOT_SIGNED),
        ("INT32", True, NOT_SIGNED),
        ("INT16", "1", NOT_SIGNED),
        ("FP32", "1", NOT_NUMBER),
        ("FP32", True, NOT_NUMBER),
        ("FP64", None, NOT_NUMBER),
        ("FP64", {}, NOT_NUMBER),
        ("BYTES", 1, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    ],
)
def test_a_leaf_of_the_wrong_type_is_refused(datatype: str, leaf: Any, text: str) -> None:
    """http.md row 49."""
    assert refusal(one([leaf], datatype=datatype, shape=[1])) == (500, text)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(datatype: str) -> None:
    """http.md rows 50 and 51."""
    assert refusal(one([1], datatype=datatype, shape=[1])) == (
        400,
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input X",
    )
    with pytest.raises(InferenceError) as caught:
        write(Tensor("Y", dtypes.BY_NAME[datatype], (1,), b"\0\0"))
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    )


@pytest.mark.parametrize("datatype", ["fp32", "FLOAT", ""])
def test_an_unknown_datatype_is_refused_with_json_data(datatype: str) -> None:
    """http.md row 39."""
    assert refusal(one([1], datatype=datatype, shape=[1])) == (400, "invalid datatype for input X")


def test_an_unknown_datatype_with_binary_data_is_for_the_engine_to_refuse() -> None:
    (got,) = decode({"inputs": [packed(4, datatype="fp32", shape=[1])]}, b"1234").inputs
    assert got.datatype is dtypes.INVALID


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5], [1, 2, 3], [], [1, 2, 3, 4, "five"]])
def test_the_number_of_leaves_must_be_the_product_of_the_shape(data: Any) -> None:
    """http.md row 44."""
    assert refusal(one(data)) == (500, "Unable to parse 'data': Shape does not match true shape of 'data' field")


@pytest.mark.parametrize("data", [[], [1], ["x"], "x", None])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "FP16", "float"])
def test_data_of_an_empty_shape_are_not_looked_at(data: Any, datatype: str) -> None:
    """http.md row 53."""
    assert read(one(data, datatype=datatype, shape=[3, 0])) == b""


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize(("datatype", "leaf", "prefix"), [("INT32", 1, "Unable to parse 'data': "), ("BYTES", "a", "")])
def test_nesting_is_accepted_up_to_99_arrays(datatype: str, leaf: Any, prefix: str) -> None:
    """http.md row 54."""
    assert read(one(nested(99, leaf), datatype=datatype, shape=[1]))
    text = f"{prefix}JSON nesting depth exceeds maximum allowed limit (100)"
    assert refusal(one(nested(100, leaf), datatype=datatype, shape=[1])) == (400, text)
    assert refusal(one([leaf, nested(99, leaf)], datatype=datatype, shape=[2])) == (400, text)
    assert read(one([leaf, nested(98, leaf)], datatype=datatype, shape=[2]))


def test_strings_become_length_prefixed_utf8_and_invalid_bytes_stay() -> None:
    document = b'{"inputs":[{"name":"X","shape":[3],"datatype":"BYTES","data":["a",["\xc3\xa9"],"\xff\xfe"]}]}'
    assert bytes_tensor.decode_list(read(document)) == [b"a", "é".encode(), b"\xff\xfe"]


@pytest.mark.parametrize("large_bytes", [json_slices.SMALL_BYTES, 0], ids=["as a list", "in slices"])
@pytest.mark.parametrize("data", [["a", "", "b"], [["a", "\u00e9"], "b", "c"], []])
def test_strings_come_to_the_engine_counted(data: Any, large_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are, whatever the shape says."""
    monkeypatch.setattr(json_slices, "SMALL_BYTES", large_bytes)
    (got,) = decode(one(data, datatype="BYTES", shape=[3])).inputs
    assert got.elements == bytes_tensor.count_elements(got.content(), 10)


@pytest.mark.parametrize("data", [None, 1, "abc", {"a": 1}])
def test_data_must_be_an_array(data: Any) -> None:
    text = "Unable to parse 'data': attempt to access JSON non-array as array"
    assert refusal(one(data)) == (500, text)
    assert refusal(one(data, datatype="BYTES")) == (500, text)
    assert refusal(one(data, datatype="FP16")) == (500, text)


# Shapes


@pytest.mark.parametrize("dim", [-1, "4", 4.0, True, None])
def test_a_dimension_must_be_an_unsigned_integer(dim: Any) -> None:
    """http.md row 41."""
    text = "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert refusal(one([1], shape=[dim])) == (500, text)


def test_a_shape_must_be_an_array() -> None:
    document = {"inputs": [{"name": "X", "datatype": "FP32", "shape": 4, "data": [1]}]}
    assert refusal(document) == (500, "Unable to parse 'shape': attempt to access JSON non-array as array")


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ([2**64 - 1], "JSON input 'X' has a byte_size (18446744073709551612 bytes) that exceeds the maximum allowed value"
         " of 67108864 bytes. Use --http-max-input-size to increase the limit."),
        ([2**63], "invalid shape for input 'X': shape [-9223372036854775808] contains one or more invalid dimensions"),
        ([2**62, 4], "invalid shape for input 'X': shape [4611686018427387904,4] causes total element count to exceed "
         "maximum size of 9223372036854775807"),
        ([2**62], "byte size overflow for input 'X': element count (4611686018427387904) * data type size (4) exceeds "
         "maximum allowed size (9223372036854775807)"),
        ([2**40], "JSON input 'X' has a byte_size (4398046511104 bytes) that exceeds the maximum allowed value of 67108864 "
         "bytes. Use --http-max-input-size to increase the limit."),
    ],
)  # fmt: skip
def test_a_shape_too_large_is_refused_before_anything_is_allocated(shape: list[int], text: str) -> None:
    """http.md rows 42 and 43."""
    assert refusal(one([1], shape=shape)) == (400, text)


def test_a_shape_of_many_huge_dimensions_is_not_multiplied_out() -> None:
    assert refusal(one([1], shape=[2**62] * 100_000))[0] == 400


def test_the_data_of_an_empty_shape_are_not_looked_at() -> None:
    """As Triton has it; no model can take such a tensor, and the engine says so (7.7)."""
    assert read(one([7], shape=[])) == b""


# Structure


@pytest.mark.parametrize("document", [[], "x", 1, None, {}])
def test_a_document_without_inputs_is_refused(document: Any) -> None:
    """http.md row 32."""
    text = "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"
    assert refusal(document) == (500, text)


@pytest.mark.parametrize("inputs", [None, {}])
def test_inputs_must_be_an_array(inputs: Any) -> None:
    text = "Unable to parse 'inputs': attempt to access JSON non-array as array"
    assert refusal({"inputs": inputs}) == (500, text)


@pytest.mark.parametrize("item", [{"name": "X"}, 1, None, "x", {"parameters": None}, {"parameters": {}}])
def test_an_input_needs_a_source(item: Any) -> None:
    """http.md row 37."""
    assert refusal({"inputs": [item]}) == (400, f"{SOURCES} no field is set")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (("data", "binary_data_size"), "set 'data' 'binary_data_size'"),
        (("data", "shared_memory_region"), "set 'data' 'shared_memory_region'"),
        (("binary_data_size", "shared_memory_region"), "set 'binary_data_size' 'shared_memory_region'"),
        (
            ("data", "binary_data_size", "shared_memory_region"),
            "set 'data' 'binary_data_size' 'shared_memory_region'",
        ),
    ],
)
def test_an_input_may_have_one_source_only(keys: tuple[str, ...], text: str) -> None:
    item: dict[str, Any] = {"parameters": {key: 1 for key in keys if key != "data"}}
    if "data" in keys:
        item["data"] = []
    assert refusal({"inputs": [item]}) == (400, f"{SOURCES} {text}")


@pytest.mark.parametrize("key", ["name", "datatype", "shape"])
def test_a_missing_member_of_an_input_is_named(key: str) -> None:
    item = tensor([1, 2, 3, 4])
    del item[key]
    text = f"Unable to parse '{key}': attempt to access non-existing object member '{key}'"
    assert refusal({"inputs": [item]}) == (500, text)


@pytest.mark.parametrize("key", ["name", "datatype"])
def test_name_and_datatype_are_strings(key: str) -> None:
    item = {**tensor([1, 2, 3, 4]), key: []}
    text = f"Unable to parse '{key}': attempt to access JSON non-string as string"
    assert refusal({"inputs": [item]}) == (500, text)


def test_the_first_fault_in_array_order_is_the_one_told() -> None:
    """http.md section 7.3: inputs come one after the other, then leftover bytes, then outputs."""
    good, bad = tensor([1, 2, 3, 4]), tensor([1])
    assert "true shape" in refusal({"inputs": [bad, {}], "outputs": None})[1]
    assert "additional input data" in refusal({"inputs": [good], "outputs": None}, b"1")[1]
    assert "'outputs'" in refusal({"inputs": [good], "outputs": None})[1]
    assert "'id'" in refusal({"id": 1, "parameters": None, "inputs": None})[1]
    assert "request params" in refusal({"id": "", "parameters": None, "inputs": None})[1]


def test_unknown_keys_are_ignored_at_every_level() -> None:
    item = tensor([1, 2, 3, 4], parameters={"color": None}, model="x")
    output = {"name": "Y", "parameters": {"color": []}, "z": 1}
    request = decode({"inputs": [item], "outputs": [output], "model_name": 3})
    assert [one.name for one in request.inputs] == ["X"]
    assert request.requested_outputs == ["Y"]
    assert request.parameters == {}


# Id and parameters


def test_the_id_is_kept_and_cut_at_a_nul() -> None:
    assert decode({"id": "abc", **one([1, 2, 3, 4])}).request_id == "abc"
    assert decode({"id": "ab\0c", **one([1, 2, 3, 4])}).request_id == "ab"


@pytest.mark.parametrize("value", [1, None, [], True])
def test_an_id_is_a_string(value: Any) -> None:
    """http.md row 26."""
    text = "Unable to parse 'id': attempt to access JSON non-string as string"
    assert refusal({"id": value, "inputs": []}) == (500, text)


def test_invalid_utf8_never_reaches_the_engine_as_an_unpaired_surrogate() -> None:
    document = b'{"id":"\xff","parameters":{"k\xff":"v\xff"},"inputs":[],"outputs":[{"name":"n\xff"}]}'
    request = decode(document)
    texts = [request.request_id, *request.parameters, *request.parameters.values(), *request.requested_outputs]
    assert texts == ["\ufffd", "k\ufffd", "v\ufffd", "n\ufffd"]


def test_scheduling_parameters_are_taken_out_and_the_others_go_to_the_model() -> None:
    parameters = {
        "sequence_id": 5,
        "sequence_start": True,
        "sequence_end": True,
        "priority": 2,
        "timeout": 1000,
        "binary_data_output": True,
        "s": "text",
        "i": -(2**63),
        "b": False,
        "f": 0.5,
        "big": 2**63,
        "headers": "mine",
    }
    request, forms = decode_forms({"parameters": parameters, "inputs": []})
    assert request.correlation_id == 5
    assert request.sequence_flags == SEQUENCE_START | SEQUENCE_END
    assert (request.priority, request.timeout_us) == (2, 1000)
    assert forms.default is True
    custom = {"s": "text", "i": -(2**63), "b": False, "f": 0.5, "big": 2.0**63, "headers": "mine"}
    assert request.parameters == custom
    assert [type(value) for value in request.parameters.values()] == [type(value) for value in custom.values()]


def test_a_correlation_id_may_be_text_of_128_characters() -> None:
    assert decode({"parameters": {"sequence_id": "s" * 128}, "inputs": []}).correlation_id == "s" * 128
    text = "string correlation ID cannot be longer than 128 characters"
    assert refusal({"parameters": {"sequence_id": "s" * 129}, "inputs": []}) == (501, text)


@pytest.mark.parametrize(
    ("key", "value", "phrase"),
    [
        ("sequence_id", -1, "non-string as string"),
        ("sequence_id", True, "non-string as string"),
        ("sequence_start", 1, "non-boolean as boolean"),
        ("sequence_end", None, "non-boolean as boolean"),
        ("priority", -1, "non-unsigned-integer as unsigned-integer"),
        ("timeout", 1.0, "non-unsigned-integer as unsigned-integer"),
        ("binary_data_output", 1, "non-boolean as boolean"),
    ],
)
def test_a_scheduling_parameter_of_the_wrong_type_is_refused(key: str, value: Any, phrase: str) -> None:
    text = f"Unable to parse '{key}': attempt to access JSON {phrase}"
    assert refusal({"parameters": {key: value}, "inputs": []}) == (500, text)


@pytest.mark.parametrize("value", [None, [], {}])
def test_a_custom_parameter_is_a_scalar(value: Any) -> None:
    """http.md row 79."""
    text = "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'."
    assert refusal({"parameters": {"a": value}, "inputs": []}) == (400, text)


def test_parameters_of_the_triton_prefix_are_reserved() -> None:
    """http.md row 80."""
    text = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
    assert refusal({"parameters": {"triton_x": 1}, "inputs": []}) == (400, text)


@pytest.mark.parametrize("value", [None, []])
def test_parameters_must_be_an_object(value: Any) -> None:
    text = "failed to get request params.: attempt to get members for non-object"
    assert refusal({"parameters": value, "inputs": []}) == (500, text)


# Binary tensors


def test_binary_and_json_inputs_mix_and_binary_ones_are_views_of_the_body() -> None:
    """http.md row 60."""
    binary = struct.pack("<4f", 1, 2, 3, 4) + b"abcd"
    items = [packed(16, name="A"), tensor([5, 6, 7, 8], name="B"), packed(4, name="C", datatype="UINT8")]
    request = decode({"inputs": items}, binary)
    assert [bytes(got.data or b"") for got in request.inputs] == [binary[:16], struct.pack("<4f", 5, 6, 7, 8), b"abcd"]
    assert isinstance(request.inputs[0].data, memoryview)
    assert request.inputs[0].data.obj is binary


def test_missing_binary_bytes_are_counted() -> None:
    """http.md row 61."""
    text = "unexpected size for input 'B', expecting 4 additional bytes for model 'M'"
    assert refusal({"inputs": [packed(16, name="A"), packed(16, name="B")]}, bytes(28)) == (400, text)
    assert "expecting 16 additional" in refusal({"inputs": [packed(16)]})[1]


def test_leftover_binary_bytes_are_refused() -> None:
    """http.md row 62."""
    text = "unexpected additional input data for model 'M'"
    assert refusal({"inputs": [packed(16)]}, bytes(18)) == (400, text)
    assert refusal(one([1, 2, 3, 4]), b"x") == (400, text)


@pytest.mark.parametrize("size", [-1, 4.0, "4", True, None, 2**64])
def test_binary_data_size_is_an_unsigned_integer(size: Any) -> None:
    text = "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert refusal({"inputs": [packed(size)]}, bytes(4)) == (500, text)


def test_a_header_alone_gives_sizes_without_data_until_the_bytes_are_attached() -> None:
    document = json.dumps(
        {"inputs": [packed(16, name="A"), tensor([1, 2, 3, 4], name="B"), packed(0, name="C")]}
    ).encode()
    request, _ = codec.decode(
        document, model_name="M", version=None, available=16, binary=None, max_input_size=LIMIT, regions=NO_REGIONS
    )
    assert [(got.nbytes, got.data is None) for got in request.inputs] == [(16, True), (16, False), (0, False)]
    assert codec.missing_bytes(request) == 16
    codec.attach(request, memoryview(b"0123456789abcdef"))
    assert [bytes(got.data or b"") for got in request.inputs] == [
        b"0123456789abcdef",
        struct.pack("<4f", 1, 2, 3, 4),
        b"",
    ]


# Requested outputs


def test_a_listed_output_has_its_own_form_and_the_default_is_for_the_others() -> None:
    """http.md row 59."""
    outputs = [{"name": "A"}, {"name": "B", "parameters": {"binary_data": True}}]
    request, forms = decode_forms({"parameters": {"binary_data_output": True}, "inputs": [], "outputs": outputs})
    assert request.requested_outputs == ["A", "B"]
    assert dict(forms.listed) == {"A": False, "B": True}
    assert forms.default is True


@pytest.mark.parametrize("outputs", [None, {}])
def test_outputs_must_be_an_array(outputs: Any) -> None:
    text = "Unable to parse 'outputs': attempt to access JSON non-array as array"
    assert refusal({"inputs": [], "outputs": outputs}) == (500, text)


@pytest.mark.parametrize("output", [{}, "OUTPUT0", 1])
def test_an_output_needs_a_name(output: Any) -> None:
    text = "Unable to parse 'name': attempt to access non-existing object member 'name'"
    assert refusal({"inputs": [], "outputs": [output]}) == (500, text)


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"binary_data": 1}, 500, "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"),
        ({"shared_memory_region": "r"}, 404, "Unable to find shared memory region: 'r'"),
        (
            {"shared_memory_region": "r", "binary_data": True},
            400,
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
        ({"shared_memory_region": "r", "binary_data": False}, 404, "Unable to find shared memory region: 'r'"),
        (
            {"shared_memory_region": "r", "classification": 1},
            400,
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            {"classification": -1},
            500,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"classification": True},
            500,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
    ],
)
def test_output_parameters_are_checked(parameters: Any, status: int, text: str) -> None:
    """http.md rows 78 and 90, as far as the extensions are served."""
    assert refusal({"inputs": [], "outputs": [{"name": "Y", "parameters": parameters}]}) == (status, text)


@pytest.mark.parametrize(("asked", "kept"), [(3, 3), (0, None), (1 << 40, None), ((1 << 32) + 2, 2)])
def test_of_the_number_of_classes_32_bits_count(asked: int, kept: int | None) -> None:
    request = decode({"inputs": [], "outputs": [{"name": "Y", "parameters": {"classification": asked}}]})
    assert request.classes == (None if kept is None else {"Y": kept})


@pytest.mark.parametrize("classes", [0, 2**40])
def test_a_classification_of_zero_classes_is_none(classes: int) -> None:
    outputs = [{"name": "Y", "parameters": {"classification": classes}}]
    assert decode({"inputs": [], "outputs": outputs}).requested_outputs == ["Y"]


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"shared_memory_region": "nope"}, 404, "Unable to find shared memory region: 'nope'"),
        (
            {"shared_memory_region": 1},
            500,
            "Unable to parse 'shared_memory_region': attempt to access JSON non-string as string",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_offset": -1},
            500,
            "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"shared_memory_region": "r", "shared_memory_byte_size": "x"},
            500,
            "Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
    ],
)
def test_an_input_in_a_region_that_nobody_registered_is_refused(parameters: Any, status: int, text: str) -> None:
    """http.md row 90."""
    item = {"name": "X", "shape": [4], "datatype": "FP32", "parameters": parameters}
    assert refusal({"inputs": [item]}) == (status, text)


# Responses


def test_keys_of_a_response_stand_in_tritons_order() -> None:
    """http.md row 25."""
    got = Tensor("Y", dtypes.INT32, (2,), struct.pack("<2i", 1, -2))
    head, parts = write(got, request_id="abc", parameters={"p": 1, "q": "x", "r": True, "s": 0.5})
    assert head == (
        b'{"id":"abc","model_name":"M","model_version":"3","parameters":{"p":1,"q":"x","r":true,"s":0.5},'
        b'"outputs":[{"name":"Y","datatype":"INT32","shape":[2],"data":[1,-2]}]}'
    )
    assert parts == []


def test_an_empty_id_and_no_parameters_leave_no_keys() -> None:
    """http.md row 24."""
    assert write()[0] == b'{"model_name":"M","model_version":"3","outputs":[]}'


def data_text(got: Tensor) -> bytes:
    head: bytes = write(got)[0]
    return head.partition(b'"data":')[2].removesuffix(b"}]}")


def test_fp32_is_widened_and_not_finite_values_are_written_out() -> None:
    """http.md rows 46 and 47."""
    values = struct.pack("<6f", 0.1, 2, -0.0, math.nan, math.inf, -math.inf)
    expected = b"[0.10000000149011612,2.0,-0.0,NaN,Infinity,-Infinity]"
    assert data_text(Tensor("Y", dtypes.FP32, (6,), values)) == expected
    assert data_text(Tensor("Y", dtypes.FP64, (2,), struct.pack("<2d", 0.1, math.nan))) == b"[0.1,NaN]"


def test_booleans_are_true_and_false() -> None:
    assert data_text(Tensor("Y", dtypes.BOOL, (3,), b"\1\0\7")) == b"[true,false,true]"


def test_bytes_that_are_no_utf8_are_copied_raw() -> None:
    elements = [b'\xff"\\\n\xfe', "é".encode(), b""]
    text = data_text(Tensor("Y", dtypes.BYTES, (3,), bytes_tensor.encode(elements)))
    assert text == b'["\xff\\"\\\\\\n\xfe","\xc3\xa9",""]'


def test_an_output_that_does_not_fill_its_shape_is_refused() -> None:
    for got in (
        Tensor("Y", dtypes.FP32, (2,), bytes(4)),
        Tensor("Y", dtypes.BYTES, (2,), bytes_tensor.encode([b"a"])),
        Tensor("Y", dtypes.BYTES, (1,), b"\5\0\0\0ab"),
    ):
        with pytest.raises(InferenceError) as caught:
            write(got)
        assert caught.value.code is ErrorCode.INTERNAL
        assert caught.value.message == "output tensor shape does not match size of output for 'Y'"


def test_binary_outputs_follow_in_order_and_empty_ones_leave_only_their_size() -> None:
    """http.md rows 58 and 66."""
    tensors = [
        Tensor("A", dtypes.FP32, (1,), memoryview(b"aaaa")),
        Tensor("B", dtypes.FP32, (0,), b""),
        Tensor("C", dtypes.INT8, (2,), b"\1\2"),
        Tensor("D", dtypes.BF16, (1,), b"dd"),
    ]
    forms = OutputForms(default=True, listed={"C": False})
    head, parts = write(*tensors, forms=forms)
    assert parts == [b"aaaa", b"dd"]
    entries = json.loads(head)["outputs"]
    assert [entry.get("parameters") for entry in entries] == [
        {"binary_data_size": 4},
        {"binary_data_size": 0},
        None,
        {"binary_data_size": 2},
    ]
    assert [entry.get("data") for entry in entries] == [None, None, [1, 2], None]


def test_a_large_binary_output_is_not_copied() -> None:
    data = memoryview(bytes(1 << 20))
    _, parts = codec.encode(
        InferenceResponse("M", 1, "", [Tensor("Y", dtypes.UINT8, (1 << 20,), data)], {}), BINARY_FORMS
    )
    assert parts[0] is data


# Documents like those before


@given(
    documents=st.lists(
        st.fixed_dictionaries(
            {
                "inputs": st.lists(
                    st.fixed_dictionaries(
                        {
                            "name": st.sampled_from(["A", "B", "Ä"]),
                            "datatype": st.sampled_from(["BOOL", "UINT8", "INT32", "FP32", "FP16", "BYTES", "FP"]),
                            "shape": st.sampled_from([[2], [1, 2], [True, 2], [1.0, 2], [0], [], [-1], 2, "2", None]),
                            "data": st.sampled_from(
                                [
                                    *(
                                        [1, 2],
                                        [3, 4],
                                        [[5, 6]],
                                        [7, [8]],
                                        [True, False],
                                        [1.5, 2],
                                        [300, -1],
                                        [1],
                                        [1, 2, 3],
                                    ),
                                    *([1, 2, True], ["a", "b"], [], [1 << 70, 1], {}, None),
                                ]
                            ),
                        },
                        optional={"parameters": st.sampled_from([{}, {"x": 1}, {"binary_data_size": 2}])},
                    ),
                    max_size=2,
                )
            },
            optional={
                "id": st.sampled_from(["one", "two", 3]),
                "parameters": st.sampled_from([{"binary_data_output": True}, {"x": 1}, {"triton_x": 1}]),
                "outputs": st.sampled_from(
                    [[], [{"name": "Y"}], [{"name": "Y", "parameters": {"binary_data": True}}], [{"name": 1}]]
                ),
            },
        ),
        min_size=2,
        max_size=6,
    )
)
@example(documents=[{"inputs": [tensor([1, 2], datatype="INT32", shape=[1, 2])]}] * 2)
@example(documents=[{"inputs": [tensor([1, 2], datatype="INT32", shape=shape)]} for shape in ([1, 2], [True, 2])])
def test_a_document_like_one_before_is_read_as_if_it_were_the_first(documents: list[dict[str, Any]]) -> None:
    """The same request and forms of outputs, or the same refusal, in whatever they differ."""
    known = KnownDocuments()
    for document in documents:
        assert outcome(document, known) == outcome(document, None)


def test_documents_that_differ_in_their_numbers_have_inputs_of_one_form() -> None:
    """So that neither the engine nor what writes to a worker looks at them anew; their answers have a template, too."""
    known = KnownDocuments()
    requests = [decode_known(one([at] * 4), known) for at in range(3)]
    assert requests[0][0].packed is None
    forms = {id(request.packed.form) for request, _ in requests[1:] if request.packed is not None}
    assert len(forms) == 1
    assert [np.frombuffer(request.inputs[0].content(), np.float32).tolist() for request, _ in requests] == [
        [0.0] * 4,
        [1.0] * 4,
        [2.0] * 4,
    ]
    assert requests[0][1] is requests[1][1] is requests[2][1]


def decode_known(document: Any, known: KnownDocuments | None) -> tuple[InferenceRequest, OutputForms]:
    return codec.decode(
        json.dumps(document).encode(),
        model_name="M",
        version=None,
        available=0,
        binary=None,
        max_input_size=LIMIT,
        regions=NO_REGIONS,
        known=known,
    )


def outcome(document: Any, known: KnownDocuments | None) -> object:
    try:
        request, forms = decode_known(document, known)
    except InferenceError as error:
        return error.code, error.message
    inputs = [(t.name, t.datatype, t.shape, bytes(t.content())) for t in request.inputs]
    asked = request.request_id, request.parameters, request.requested_outputs
    return inputs, asked, forms.default, forms.listed


# Answers like those before


@given(
    outputs=st.lists(
        st.tuples(
            st.sampled_from(
                [dtypes.BOOL, dtypes.INT8, dtypes.UINT64, dtypes.FP16, dtypes.FP32, dtypes.FP64, dtypes.BYTES]
            ),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=3,
    ),
    asked=st.lists(st.sampled_from([True, False, None, "default"]), min_size=3, max_size=3),
    default=st.booleans(),
    ids=st.lists(st.text(max_size=5), min_size=2, max_size=3),
    data=st.data(),
)
def test_an_answer_by_a_template_is_the_answer_that_is_made_anew(
    outputs: Any, asked: Any, default: bool, ids: list[str], data: st.DataObject
) -> None:
    """NaN, infinities, what JSON cannot carry, shared memory: the same bytes, or the same refusal."""
    forms = OutputForms(
        default=default, listed={f"O{at}": form for at, form in enumerate(asked[: len(outputs)]) if form != "default"}
    )
    known = None
    for request_id in ids:
        tensors = []
        for at, (datatype, count) in enumerate(outputs):
            if datatype is dtypes.BYTES:
                content = bytes_tensor.encode([data.draw(st.binary(min_size=2, max_size=2)) for _ in range(count)])
            elif datatype is dtypes.BOOL:
                content = bytes(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
            else:
                size = count * datatype.itemsize
                content = data.draw(st.binary(min_size=size, max_size=size))
            tensors.append(Tensor(f"O{at}", datatype, (count,), content))
        known = known or form_of(tensors)
        assert known is not None
        packed = InferenceResponse("M", 3, request_id, None, {}, known.pack([t.content() for t in tensors]))
        plain = InferenceResponse("M", 3, request_id, tensors, {})
        assert answered(packed, forms) == answered(plain, OutputForms(default=forms.default, listed=forms.listed))


def answered(response: InferenceResponse, forms: OutputForms) -> Any:
    try:
        head, parts = codec.encode(response, forms)
    except InferenceError as error:
        return error.code, error.message
    return head, [bytes(part) for part in parts]


def test_answers_of_one_form_may_be_of_several_models_and_versions() -> None:
    tensor = Tensor("O", dtypes.UINT8, (1,), b"x")
    form = form_of([tensor])
    assert form is not None
    for model, version in (("m", 1), ("n", 1), ("n", 2), ("m", 1)):
        response = InferenceResponse(model, version, "", None, {}, form.pack([b"x"]))
        head = json.loads(answered(response, BINARY_FORMS)[0])
        assert (head["model_name"], head["model_version"]) == (model, str(version))


@pytest.mark.parametrize(("count", "is_short"), [(16 << 10, True), ((16 << 10) + 1, False)])
def test_numbers_that_are_many_are_written_in_pieces_whatever_their_form(count: int, is_short: bool) -> None:
    """On a system without memory files large tensors are packed, too."""
    content = bytes(count)
    form = PackedForm([("O", dtypes.UINT8, (count,))], [b""], [count])
    response = InferenceResponse("m", 1, "", None, {}, form.pack([content]))
    assert (JSON_FORMS.template(form, response).encode("", [content]) is not None) is is_short
    plain = InferenceResponse("m", 1, "", [Tensor("O", dtypes.UINT8, (count,), content)], {})
    assert answered(response, JSON_FORMS) == answered(plain, JSON_FORMS)


def test_parameters_of_an_answer_are_in_its_document() -> None:
    form = form_of([Tensor("O", dtypes.UINT8, (1,), b"x")])
    assert form is not None
    response = InferenceResponse("m", 1, "", None, {"p": 5}, form.pack([b"x"]))
    assert json.loads(answered(response, BINARY_FORMS)[0])["parameters"] == {"p": 5}


# Properties


def leaves_of(datatype: DataType) -> st.SearchStrategy[Any]:
    if datatype is dtypes.BOOL:
        return st.booleans()
    if datatype is dtypes.BYTES:
        return st.text()
    if datatype is dtypes.FP32:
        return st.floats(width=32)
    if datatype is dtypes.FP64:
        return st.floats()
    bits = datatype.itemsize * 8
    return st.integers(0, 2**bits - 1) if datatype in UNSIGNED else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def json_tensors(draw: st.DrawFn) -> tuple[DataType, list[int], list[Any]]:
    datatype = draw(st.sampled_from(WITH_JSON))
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    count = element_count(tuple(shape))
    return datatype, shape, draw(st.lists(leaves_of(datatype), min_size=count, max_size=count))


@given(json_tensors())
def test_what_json_can_carry_comes_back_the_same(case: tuple[DataType, list[int], list[Any]]) -> None:
    datatype, shape, leaves = case
    (got,) = decode(one(leaves, datatype=datatype.name, shape=shape)).inputs
    (entry,) = json.loads(write(got)[0])["outputs"]
    assert (entry["datatype"], entry["shape"]) == (datatype.name, shape)
    assert repr(entry["data"]) == repr(leaves)


@given(json_tensors())
def test_json_and_binary_give_the_same_tensor(case: tuple[DataType, list[int], list[Any]]) -> None:
    datatype, shape, leaves = case
    (by_json,) = decode(one(leaves, datatype=datatype.name, shape=shape)).inputs
    data = bytes(by_json.data or b"")
    document = {"inputs": [packed(len(data), datatype=datatype.name, shape=shape)]}
    (by_binary,) = decode(document, data).inputs
    assert by_binary.data == data
    assert write(by_binary, forms=BINARY_FORMS)[1] == ([data] if data else [])


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, 2**63, 2**64 - 1, 2**64, 1e300, math.nan, "", "X", "FP32", "BYTES", "INT8", "triton_x"])
    | st.floats()
)
keys = st.sampled_from(
    [
        "id", "inputs", "outputs", "parameters", "name", "shape", "datatype", "data", "binary_data_size", "binary_data",
        "shared_memory_region", "classification", "sequence_id", "priority", "timeout", "binary_data_output", "other",
    ]
)  # fmt: skip
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=5))
inputs = st.fixed_dictionaries(
    {
        "name": scalars | st.just("X"),
        "datatype": st.sampled_from([datatype.name for datatype in dtypes.ALL]) | scalars,
        "shape": st.lists(st.integers(0, 3), max_size=2) | anything,
    },
    optional={
        "data": st.lists(scalars, max_size=4) | anything,
        "parameters": st.dictionaries(keys, scalars, max_size=2) | anything,
    },
)
requests = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=3) | anything},
    optional={
        "id": scalars,
        "parameters": st.dictionaries(keys, scalars, max_size=3) | anything,
        "outputs": st.lists(st.dictionaries(keys, anything, max_size=3), max_size=2) | anything,
    },
)


@given(requests | anything, st.binary(max_size=20))
def test_no_document_raises_anything_but_an_inference_error(document: Any, binary: bytes) -> None:
    try:
        request = decode(document, binary)
    except InferenceError as error:
        if error.code is ErrorCode.INTERNAL:  # the statuses of section 1: 500 is for JSON's syntax and types alone
            assert error.message.startswith(("Unable to parse ", "Unable to set ", "failed to get request params."))
    else:
        assert all(got.data is not None and len(got.data) == got.nbytes for got in request.inputs)
