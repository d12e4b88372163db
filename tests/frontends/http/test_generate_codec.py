"""Flat JSON objects to requests and responses to flat JSON objects, without a connection (HTTP spec, section 15)."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ParameterValue
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.frontends.http import generate_codec

LIMIT = 64 << 20
STATUS = {ErrorCode.INTERNAL: 500, ErrorCode.INVALID_ARG: 400}
NO_ID = "[request id: <id_unknown>] "
NO_SHAPE = "The schema can not convert input '{}' to tensor with proper shape"
NOT_A_PARAMETER = "parameter '{}' has invalid type. It should be either 'int', 'bool', or 'string'."
NESTED = "Converting keyword: 'parameters': "
DATA = "Unable to parse 'data': attempt to access JSON "
BYTES = "Unable to parse JSON bytes array: attempt to access JSON non-string as string"


def config_of(*inputs: tuple[str, str, str], max_batch_size: int = 0) -> ModelConfig:
    """Inputs as (name, config type, dims)."""
    text = f'name: "m" max_batch_size: {max_batch_size}\n' + "\n".join(
        f'input {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}' for name, datatype, dims in inputs
    )
    return ModelConfig.from_message(parse_model_config(text, source="the test"))


TEXT = config_of(("text", "STRING", "1"), ("n", "INT32", "-1"))


def decode(document: Any, config: ModelConfig = TEXT, limit: int = LIMIT) -> InferenceRequest:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return generate_codec.decode(text, model_name="M", version=None, config=config, max_input_size=limit)


def refusal(document: Any, config: ModelConfig = TEXT, limit: int = LIMIT) -> tuple[int, str]:
    with pytest.raises(InferenceError) as caught:
        decode(document, config, limit)
    return STATUS[caught.value.code], caught.value.message


def strings(tensor: Tensor) -> list[bytes]:
    assert tensor.datatype is dtypes.BYTES
    assert tensor.data is not None
    return bytes_tensor.decode_list(tensor.data)


# ------------------------------------------------------------------------------------------------------ the mapping


def test_inputs_become_tensors_and_everything_else_parameters() -> None:
    request = decode({"text": "hi", "temperature": 0.5, "n": [1, 2], "stop": True, "top_k": 3, "lang": "en"})
    assert [(tensor.name, tensor.shape) for tensor in request.inputs] == [("text", (1,)), ("n", (2,))]
    assert strings(request.inputs[0]) == [b"hi"]
    assert bytes(request.inputs[1].data or b"") == struct.pack("<2i", 1, 2)
    assert request.parameters == {"temperature": 0.5, "stop": True, "top_k": 3, "lang": "en"}
    assert type(request.parameters["stop"]) is bool
    assert (request.model_name, request.version, request.requested_outputs) == ("M", None, [])


@pytest.mark.parametrize(
    "name", ["sequence_id", "sequence_start", "priority", "timeout", "binary_data_output", "triton_x", "headers", ""]
)
def test_no_name_is_reserved(name: str) -> None:
    request = decode({name: 7})
    assert request.parameters == {name: 7}
    assert (request.correlation_id, request.priority, request.timeout_us, request.sequence_flags) == (0, 0, 0, 0)


def test_members_of_parameters_count_as_if_they_stood_outside() -> None:
    request = decode({"a": 1, "parameters": {"text": "hi", "b": 2, "parameters": 3}, "c": 4})
    assert [tensor.name for tensor in request.inputs] == ["text"]
    assert list(request.parameters.items()) == [("a", 1), ("b", 2), ("parameters", 3), ("c", 4)]


def test_a_parameter_given_inside_and_outside_has_the_later_value() -> None:
    assert decode({"t": 2, "parameters": {"t": 1}}).parameters == {"t": 1}
    assert decode({"parameters": {"t": 1}, "t": 2}).parameters == {"t": 2}


def test_a_parameter_given_twice_in_one_object_has_its_first_value() -> None:
    assert decode(b'{"t":1,"t":"2"}').parameters == {"t": 1}
    assert math.isnan(float(decode(b'{"parameters":{"t":NaN,"t":null}}').parameters["t"]))


def test_a_name_that_comes_again_and_again_has_the_value_of_its_last_place() -> None:
    """Which is its first value, put there again."""
    document = b'{"t":1,"t":9,"t":9,"parameters":{"t":2,"t":9,"u":3},"t":9,"u":4,"parameters":0,"parameters":0}'
    assert decode(document).parameters == {"t": 2, "u": 3}
    assert decode(document[:-1] + b',"t":9}').parameters == {"t": 1, "u": 3}


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_document_of_repeated_names_costs_no_more_than_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one could otherwise keep the server busy for minutes."""
    mapped: list[str] = []
    convert = generate_codec.custom_parameter

    def counted(key: str, value: object) -> ParameterValue:
        mapped.append(key)
        return convert(key, value)

    monkeypatch.setattr(generate_codec, "custom_parameter", counted)
    members = ",".join(f'"p{number}":{number}' for number in range(100))
    repeated = ',"parameters":0,"t":0' * 100
    decode(f'{{"t":1,"parameters":{{{members}}}{repeated}}}'.encode())
    assert len(mapped) == 3 * 100 + 3


@pytest.mark.parametrize("value", [None, [], {}, [1]])
def test_a_parameter_is_a_scalar(value: Any) -> None:
    assert refusal({"x": value}) == (400, NOT_A_PARAMETER.format("x"))
    assert refusal({"parameters": {"x": value}}) == (400, NESTED + NOT_A_PARAMETER.format("x"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9223372036854775807", (1 << 63) - 1),
        ("-9223372036854775808", -(1 << 63)),
        ("9223372036854775808", 2.0**63),
        ("18446744073709551616", 2.0**64),
        ("1" + "0" * 5000 + "e-4990", 1e10),
        ("1e3", 1000.0),
        ("-Infinity", -math.inf),
    ],
)
def test_numbers_keep_their_kind_where_64_bits_hold_them(text: str, value: ParameterValue) -> None:
    got = decode(b'{"x":%s}' % text.encode()).parameters["x"]
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize("value", [None, [], 1, "s"])
def test_parameters_must_be_an_object(value: Any) -> None:
    text = "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
    assert refusal({"parameters": value}) == (500, text)


def test_a_model_with_an_input_called_parameters_cannot_be_given_any() -> None:
    config = config_of(("parameters", "STRING", "1"))
    text = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refusal({"parameters": "v"}, config) == (400, text)
    assert decode({"x": 1}, config).inputs == []


def test_the_id_is_the_requests_and_a_parameter() -> None:
    request = decode({"id": "abc"})
    assert (request.request_id, request.parameters) == ("abc", {"id": "abc"})
    assert decode({"parameters": {"id": "abc"}}).request_id == ""
    assert decode({"id": "a\0b"}).request_id == "a"


def test_an_input_may_be_called_id() -> None:
    request = decode({"id": "abc"}, config_of(("id", "STRING", "1")))
    assert (request.request_id, request.parameters, strings(request.inputs[0])) == ("abc", {}, [b"abc"])


@pytest.mark.parametrize("value", [1, None, ["x"]])
def test_the_id_must_be_a_string_before_anything_else_is_looked_at(value: Any) -> None:
    text = "Unable to parse 'id': attempt to access JSON non-string as string"
    assert refusal({"parameters": 1, "id": value}) == (500, text)


@pytest.mark.parametrize("document", [b"[]", b"null", b'"x"', b"3", b"[{}]"])
def test_a_document_that_is_no_object_has_no_members(document: bytes) -> None:
    assert refusal(document) == (500, "attempt to get members for non-object")


@pytest.mark.parametrize(
    ("document", "detail"),
    [
        (b"", "The document is empty. at 0"),
        (b"{", "Missing a name for object member. at 1"),
        (b'{"a":1} x', "The document root must not be followed by other values. at 8"),
        (b'{"a":1e400}', "Number too big to be stored in double. at 5"),
        (b'{"a":"\x01"}', "Invalid encoding in string. at 6"),
        (b'{"a":"\\ud800"}', "The surrogate pair in string is invalid. at 6"),
    ],
)
def test_what_is_no_json_is_refused_in_tritons_words(document: bytes, detail: str) -> None:
    assert refusal(document) == (500, f"failed to parse the request JSON buffer: {detail}")


@pytest.mark.parametrize("document", [b'\xef\xbb\xbf{"text":"a"}', b' {"text":"a","x":NaN}', b'{"text":"a"}\0junk'])
def test_the_json_dialect_is_that_of_infer(document: bytes) -> None:
    assert strings(decode(document).inputs[0]) == [b"a"]


def test_invalid_utf_8_reaches_a_tensor_as_it_is_and_a_parameter_replaced() -> None:
    request = decode(b'{"text":"x\xffy","k\xff":"v\xff"}')
    assert strings(request.inputs[0]) == [b"x\xffy"]
    assert request.parameters == {"k\ufffd": "v\ufffd"}


@pytest.mark.parametrize(
    ("document", "prefix"),
    [
        (b'{"n":1,"n":2}', ""),
        (b'{"n":1,"parameters":{"n":2}}', NESTED),
        (b'{"parameters":{"n":1},"n":2}', ""),
        (b'{"parameters":{"n":1,"n":2}}', NESTED),
        (b'{"parameters":{"n":1},"parameters":{"x":2}}', NESTED),
        (b'{"n":1,"n":2,"x":Inf}', ""),
    ],
)
def test_an_input_cannot_be_given_twice(document: bytes, prefix: str) -> None:
    assert refusal(document) == (400, f"{prefix}{NO_ID}input 'n' already exists in request")


def test_the_refusal_of_a_second_input_names_the_request() -> None:
    assert refusal(b'{"n":1,"n":2,"id":"late"}') == (400, "[request id: late] input 'n' already exists in request")


def test_the_first_fault_of_the_document_is_reported() -> None:
    assert refusal(b'{"x":null,"n":"s"}') == (400, NOT_A_PARAMETER.format("x"))
    assert refusal(b'{"n":"s","x":null}') == (500, DATA + "non-signed-integer as signed-integer")


# ------------------------------------------------------------------------------------------------------ tensors


@pytest.mark.parametrize(
    ("dims", "values", "shape"),
    [
        ("-1, 1", [1, 2], (2, 1)),
        ("-1, -1, 2", [1, 2, 3, 4], (1, 2, 2)),
        ("2, -1, 2, -1", [0] * 8, (2, 1, 2, 2)),
        ("2, 3", [0] * 6, (2, 3)),
        ("1", 7, (1,)),
        ("1, 1", [7], (1, 1)),
        ("-1", 7, (1,)),
        ("-1", [], (0,)),
        ("-1, -1, 2", [], (1, 0, 2)),
        ("2, 3", [1, 2, 3], None),
        ("1", [1, 2], None),
        ("-1, 2", 1, None),
        ("2", [], None),
        ("1", [], None),
        ("2", {"a": 1}, None),
        ("2, 3", [[1, 2, 3], [4, 5, 6]], None),
    ],
)
def test_elements_fill_the_fixed_dims_and_then_the_innermost_variable_one(
    dims: str, values: Any, shape: tuple[int, ...] | None
) -> None:
    config = config_of(("x", "INT32", dims))
    if shape is None:
        assert refusal({"x": values}, config) == (400, NO_SHAPE.format("x"))
    else:
        tensor = decode({"x": values}, config).inputs[0]
        assert tensor.shape == shape
        assert tensor.nbytes == 4 * element_count(shape)


@pytest.mark.parametrize(("values", "shape"), [("a", (1, 1)), (["a", "b"], (2, 1)), ([], (0, 1))])
def test_the_batch_is_a_variable_dim_in_front(values: Any, shape: tuple[int, ...]) -> None:
    config = config_of(("x", "STRING", "1"), max_batch_size=4)
    assert decode({"x": values}, config).inputs[0].shape == shape


@given(st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=4), st.integers(0, 40))
def test_a_shape_either_holds_all_elements_or_none_does(dims: list[int], count: int) -> None:
    config = config_of(("x", "UINT8", ", ".join(map(str, dims))))
    fixed = math.prod(dim for dim in dims if dim != -1)
    fits = count % fixed == 0 and (-1 in dims or count == fixed)
    if not fits:
        assert refusal({"x": [0] * count}, config) == (400, NO_SHAPE.format("x"))
        return
    shape = decode({"x": [0] * count}, config).inputs[0].shape
    assert element_count(shape) == count
    assert all(wanted in (-1, got) for wanted, got in zip(dims, shape))
    variable = [got for wanted, got in zip(dims, shape) if wanted == -1]
    assert variable[:-1] == [1] * len(variable[:-1])


def test_arrays_in_arrays_are_flattened_when_the_outer_one_says_how_many() -> None:
    config = config_of(("x", "INT32", "2, 3"), ("s", "STRING", "1"))
    tensor = decode({"x": [[1], 2, [3], [[4]], 5, 6]}, config).inputs[0]
    assert bytes(tensor.data or b"") == struct.pack("<6i", *range(1, 7))
    assert strings(decode({"s": [["a"]]}, config).inputs[0]) == [b"a"]


@pytest.mark.parametrize("values", [[[]], [[1, 2]], [[1], []]])
def test_arrays_in_arrays_that_hold_another_number_are_refused(values: Any) -> None:
    config = config_of(("x", "INT32", "-1"))
    assert refusal({"x": values}, config) == (
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    )


def test_how_many_strings_there_are_inside_is_for_the_core_to_say() -> None:
    tensor = decode({"text": [["a", "b"]]}).inputs[0]
    assert (tensor.shape, strings(tensor)) == ((1,), [b"a", b"b"])


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        ("BOOL", 1, DATA + "non-boolean as boolean"),
        ("UINT8", -1, DATA + "non-unsigned-integer as unsigned-integer"),
        ("UINT64", 1 << 64, DATA + "non-unsigned-integer as unsigned-integer"),
        ("INT8", 1.5, DATA + "non-signed-integer as signed-integer"),
        ("INT64", 1 << 63, DATA + "non-signed-integer as signed-integer"),
        ("INT32", True, DATA + "non-signed-integer as signed-integer"),
        ("FP32", "x", DATA + "non-number as double"),
        ("FP64", None, DATA + "non-number as double"),
        ("FP32", {"a": 1}, DATA + "non-number as double"),
        ("STRING", 1, BYTES),
        ("STRING", ["a", 1], BYTES),
        ("STRING", {}, BYTES),
        ("STRING", None, BYTES),
    ],
)
def test_elements_must_be_of_the_inputs_type(datatype: str, value: Any, text: str) -> None:
    assert refusal({"x": value}, config_of(("x", datatype, "-1"))) == (500, text)


def test_strings_are_looked_at_before_the_shape_and_numbers_behind_it() -> None:
    assert refusal({"x": [1, 2]}, config_of(("x", "STRING", "1"))) == (500, BYTES)
    assert refusal({"x": ["a", "b"]}, config_of(("x", "INT32", "1"))) == (400, NO_SHAPE.format("x"))


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(datatype: str) -> None:
    text = f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input x"
    assert refusal({"x": 1.0}, config_of(("x", datatype, "-1"))) == (400, text)


@pytest.mark.parametrize(
    ("datatype", "values", "packed"),
    [
        ("BOOL", [True, False], b"\1\0"),
        ("UINT8", [256, 255], b"\0\xff"),
        ("UINT64", (1 << 64) - 1, b"\xff" * 8),
        ("INT8", [128, -129], b"\x80\x7f"),
        ("FP64", 3, struct.pack("<d", 3.0)),
        ("FP32", 1e40, struct.pack("<f", math.inf)),
    ],
)
def test_values_are_packed_as_those_of_infer(datatype: str, values: Any, packed: bytes) -> None:
    assert bytes(decode({"x": values}, config_of(("x", datatype, "-1"))).inputs[0].data or b"") == packed


def test_all_inputs_together_may_be_so_large() -> None:
    config = config_of(("a", "STRING", "1"), ("b", "INT32", "-1"))
    assert decode({"a": "12345", "b": [1, 2]}, config, limit=17).inputs
    text = (
        "request size of 17 bytes with input 'b' of size 8 bytes exceeds the maximum allowed input size of 16. Use "
        "--http-max-input-size to increase the limit."
    )
    assert refusal({"a": "12345", "b": [1, 2]}, config, limit=16) == (400, text)
    assert refusal({"a": "12345", "parameters": {"b": [1, 2]}}, config, limit=16) == (400, NESTED + text)


@pytest.mark.parametrize("depth", [2000, 100_000])
def test_deep_nesting_is_refused_not_a_crash(depth: int) -> None:
    status, text = refusal(b'{"n":' + b"[" * depth + b"]" * depth + b"}")
    assert (status, "nesting" in text) == (500, True)


def test_tensor_data_may_be_nested_as_deep_as_those_of_infer() -> None:
    def nested(depth: int) -> bytes:
        return b'{"n":' + b"[" * depth + b"1" + b"]" * depth + b"}"

    assert decode(nested(99)).inputs[0].shape == (1,)
    assert refusal(nested(100))[1] == "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)"


# ------------------------------------------------------------------------------------------------------ responses


def encode(*outputs: Tensor, request_id: str = "", **parameters: ParameterValue) -> bytes:
    return generate_codec.encode(InferenceResponse("gen", 1, request_id, list(outputs), parameters))


def output(name: str, datatype: DataType, shape: tuple[int, ...], *values: Any) -> Tensor:
    if datatype is dtypes.BYTES:
        return Tensor(name, datatype, shape, bytes_tensor.encode(list(values)))
    return Tensor(name, datatype, shape, np.array(values, datatype.numpy).tobytes())


def test_a_response_is_a_flat_object_with_sorted_keys() -> None:
    text = output("text_output", dtypes.BYTES, (1,), b"hi0")
    vector = output("vec", dtypes.FP32, (2,), 0.0, 1.5)
    assert encode(vector, text) == b'{"model_name":"gen","model_version":"1","text_output":"hi0","vec":[0.0,1.5]}'


def test_keys_are_sorted_by_the_bytes_of_their_utf_8() -> None:
    names = ["é", "a", "_", "Z", "\U0001f600", "\uffff"]
    body = encode(*(output(name, dtypes.INT32, (1,), 1) for name in names))
    keys = list(json.loads(body))
    assert keys == sorted(keys, key=str.encode)
    assert set(keys) == {*names, "model_name", "model_version"}


@pytest.mark.parametrize(
    ("datatype", "shape", "values", "text"),
    [
        (dtypes.INT64, (1, 1), [-5], b"-5"),
        (dtypes.INT64, (), [-5], b"-5"),
        (dtypes.FP32, (1,), [0.1], b"0.10000000149011612"),
        (dtypes.FP32, (1,), [math.nan], b"NaN"),
        (dtypes.FP64, (2,), [math.inf, -math.inf], b"[Infinity,-Infinity]"),
        (dtypes.BOOL, (1,), [True], b"true"),
        (dtypes.UINT8, (2, 2), [1, 2, 3, 4], b"[1,2,3,4]"),
        (dtypes.INT32, (0,), [], b"[]"),
        (dtypes.BYTES, (1,), ['a"\n\x01é'.encode()], '"a\\"\\n\\u0001é"'.encode()),
        (dtypes.BYTES, (1,), [b"a\xff\x01"], b'"a\xff\\u0001"'),
        (dtypes.BYTES, (2,), [b"\xff", b"c"], b'["\xff","c"]'),
    ],
)
def test_an_output_is_a_flat_array_or_its_only_element(
    datatype: DataType, shape: tuple[int, ...], values: list[Any], text: bytes
) -> None:
    expected = b'{"model_name":"gen","model_version":"1","o":' + text + b"}"
    assert encode(output("o", datatype, shape, *values)) == expected


def test_parameters_and_the_id_stand_beside_the_outputs() -> None:
    body = encode(output("o", dtypes.INT32, (1,), 1), request_id="7", p=True, f=math.inf, s="x", i=3)
    assert body == b'{"f":Infinity,"i":3,"id":"7","model_name":"gen","model_version":"1","o":1,"p":true,"s":"x"}'


def test_names_of_the_server_win_over_those_of_parameters_and_those_over_outputs() -> None:
    outputs = [output(name, dtypes.INT32, (1,), 1) for name in ("id", "model_name", "p")]
    assert (
        encode(*outputs, request_id="7", p=2, model_version=5)
        == b'{"id":"7","model_name":"gen","model_version":"1","p":2}'
    )
    assert json.loads(encode(*outputs))["id"] == 1


@pytest.mark.parametrize("datatype", [dtypes.FP16, dtypes.BF16])
def test_half_precision_outputs_have_no_json_form(datatype: DataType) -> None:
    with pytest.raises(InferenceError) as caught:
        encode(Tensor("o", datatype, (1,), b"\0\0"))
    assert caught.value.code is ErrorCode.INVALID_ARG
    text = f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    assert caught.value.message == text


def test_an_event_is_one_line_of_data() -> None:
    body = encode(output("o", dtypes.BYTES, (1,), b"two\nlines\r"))
    assert generate_codec.event(body) == b"data: " + body + b"\n\n"
    assert b"\n" not in body
    assert b"\r" not in body
