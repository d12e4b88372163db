"""The core's checks of a request (scheduling spec, section 1; HTTP spec, 7.7), text by text."""

from __future__ import annotations

import struct

import pytest

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, Origin, ParameterValue
from pytriton_lite.core.tensor import PackedForm, Tensor
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.ipc.messages import form_of

NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

PREFIX = "[request id: q] "

PLAIN = """
  input { name: "A" data_type: TYPE_FP32 dims: 4 }
  input { name: "B" data_type: TYPE_FP32 dims: 4 }
  output { name: "O" data_type: TYPE_FP32 dims: 4 }
  output { name: "P" data_type: TYPE_FP32 dims: 4 }
"""
ONE = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "O" data_type: TYPE_FP32 dims: 4 }'
FREE = 'input { name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] } output { name: "O" data_type: TYPE_FP32 dims: 4 }'
TEXT = 'input { name: "X" data_type: TYPE_STRING dims: -1 } output { name: "O" data_type: TYPE_FP32 dims: 4 }'
OPTIONAL = """
  input { name: "A" data_type: TYPE_FP32 dims: 4 }
  input { name: "B" data_type: TYPE_FP32 dims: 4 optional: true }
  output { name: "O" data_type: TYPE_FP32 dims: 4 }
"""


def admission(tensors: str, *, max_batch_size: int = 0) -> Admission:
    text = f'name: "m" backend: "python" max_batch_size: {max_batch_size} {tensors}'
    return Admission(ModelConfig.from_message(parse_model_config(text, source="config.pbtxt")))


def fp32(name: str, *shape: int, datatype: DataType = dtypes.FP32, nbytes: int | None = None) -> Tensor:
    size = 4
    for dim in shape:
        size *= dim
    return Tensor(name, datatype, shape, bytes(size if nbytes is None else nbytes))


def text_tensor(*shape: int, data: bytes) -> Tensor:
    return Tensor("X", dtypes.BYTES, shape, data)


def request(*inputs: Tensor, request_id: str = "q", outputs: tuple[str, ...] = ()) -> InferenceRequest:
    return InferenceRequest("m", None, request_id=request_id, inputs=list(inputs), requested_outputs=list(outputs))


def refusal(rules: Admission, asked: InferenceRequest) -> str:
    with pytest.raises(InferenceError) as caught:
        rules.check(asked)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


# ---------------------------------------------------------------------------------------------- what is taken


@pytest.mark.parametrize(
    ("rules", "asked", "batch_size"),
    [
        pytest.param(admission(PLAIN), request(fp32("A", 4), fp32("B", 4)), 1, id="no batching"),
        pytest.param(admission(PLAIN), request(fp32("B", 4), fp32("A", 4)), 1, id="inputs in any order"),
        pytest.param(admission(PLAIN), request(fp32("A", 4), fp32("B", 4), outputs=("P", "O")), 1, id="outputs"),
        pytest.param(admission(ONE, max_batch_size=4), request(fp32("X", 1, 4)), 1, id="batch of one"),
        pytest.param(admission(ONE, max_batch_size=4), request(fp32("X", 4, 4)), 4, id="the largest batch"),
        pytest.param(admission(FREE), request(fp32("X", 7, 3)), 1, id="-1 takes any size"),
        pytest.param(admission(FREE), request(fp32("X", 0, 3)), 1, id="-1 takes no size at all"),
        pytest.param(admission(TEXT), request(text_tensor(2, data=bytes_tensor.encode([b"a", b""]))), 1, id="strings"),
        pytest.param(admission(TEXT), request(text_tensor(0, data=b"")), 1, id="no strings"),
        pytest.param(admission(OPTIONAL), request(fp32("A", 4)), 1, id="without its optional input"),
        pytest.param(admission(OPTIONAL), request(fp32("A", 4), fp32("B", 4)), 1, id="with its optional input"),
        pytest.param(admission("", max_batch_size=4), request(), 1, id="a model without inputs"),
    ],
)
def test_a_good_request_passes_with_its_batch_size(rules: Admission, asked: InferenceRequest, batch_size: int) -> None:
    assert rules.check(asked) == batch_size


def test_a_header_alone_is_checked_by_its_declared_sizes() -> None:
    """Before the bytes are there: a wrong size is found, the structure of strings is not asked for."""
    assert admission(ONE).check(request(Tensor("X", dtypes.FP32, (4,), None, 16))) == 1
    assert admission(TEXT).check(request(Tensor("X", dtypes.BYTES, (4,), None, 1 << 30))) == 1
    assert refusal(admission(ONE), request(Tensor("X", dtypes.FP32, (4,), None, 1 << 30))).endswith(
        "Expected 16, got 1073741824"
    )


@pytest.mark.parametrize("origin", [Origin.ENSEMBLE, Origin.MODEL])
def test_elements_that_workers_have_written_are_not_looked_at(origin: Origin) -> None:
    asked = request(text_tensor(2, data=b"no elements"))
    assert "expected 2 string elements" in refusal(admission(TEXT), asked)
    asked.origin = origin
    assert admission(TEXT).check(asked) == 1


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("rules", "asked", "text"),
    [
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 5, 4)),
            f"{PREFIX}inference request batch-size must be <= 4 for 'm'",
            id="scheduling.md row 6",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 5, 4), request_id=""),
            "[request id: <id_unknown>] inference request batch-size must be <= 4 for 'm'",
            id="scheduling.md row 7",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 1, 3)),
            f"{PREFIX}unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [1,3]. {NOTE}",
            id="scheduling.md row 8",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 2)),
            f"{PREFIX}unexpected shape for input 'X' for model 'm'. Expected [-1,4], got [2]. {NOTE}",
            id="rank with batching",
        ),
        pytest.param(
            admission(ONE),
            request(fp32("X", 2, 4)),
            f"{PREFIX}unexpected shape for input 'X' for model 'm'. Expected [4], got [2,4]. ",
            id="scheduling.md row 9",
        ),
        pytest.param(
            admission(FREE),
            request(fp32("X", 2)),
            f"{PREFIX}unexpected shape for input 'X' for model 'm'. Expected [-1,-1], got [2]. ",
            id="rank of free dims",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X")),
            f"{PREFIX}input 'X' has no shape but model requires batch dimension for 'm'",
            id="scheduling.md row 10",
        ),
        pytest.param(
            admission(PLAIN, max_batch_size=4),
            request(fp32("A", 1, 4), fp32("B", 2, 4)),
            f"{PREFIX}input 'B' batch size does not match other inputs for 'm'",
            id="scheduling.md row 11",
        ),
        pytest.param(
            admission(ONE),
            request(fp32("X", 4, datatype=dtypes.INT32)),
            f"{PREFIX}inference input 'X' data-type is 'INT32', but model 'm' expects 'FP32'",
            id="scheduling.md row 12",
        ),
        pytest.param(
            admission(ONE),
            request(fp32("X", 4, datatype=dtypes.INVALID)),
            f"{PREFIX}inference input 'X' data-type is '<invalid>', but model 'm' expects 'FP32'",
            id="a data type that nobody knows",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 0, 4)),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 16, got 0",
            id="scheduling.md row 13",
        ),
        pytest.param(
            admission(ONE, max_batch_size=4),
            request(fp32("X", 0, 4, nbytes=16)),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 0, got 16",
            id="a batch of none with the bytes of one",
        ),
        pytest.param(
            admission(TEXT, max_batch_size=4),
            request(text_tensor(0, 2, data=b"")),
            f"{PREFIX}expected 2 string elements for inference input 'X' for model 'm', got 0",
            id="a batch of no strings",
        ),
        pytest.param(
            admission(TEXT, max_batch_size=4),
            request(text_tensor(0, 1, data=bytes(4))),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 0, got 4",
            id="a batch of no strings with the bytes of one",
        ),
        pytest.param(
            admission(ONE),
            request(fp32("X", 4, nbytes=12)),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected 16, got 12",
            id="byte size",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4), fp32("B", 4), outputs=("O", "ZZ")),
            "unexpected inference output 'ZZ' for model 'm'",
            id="scheduling.md row 14",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4), fp32("B", 4), outputs=("O", "P", "O")),
            f"{PREFIX}output 'O' already exists in request",
            id="output twice",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4), fp32("A", 4)),
            f"{PREFIX}input 'A' already exists in request",
            id="scheduling.md row 15",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4)),
            f"{PREFIX}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) "
            "['B']. Please provide all required input(s).",
            id="too few inputs",
        ),
        pytest.param(
            admission(PLAIN),
            request(),
            f"{PREFIX}expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['A','B']. Please provide all required input(s).",
            id="no inputs at all",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4), fp32("B", 4), fp32("FOO", 4)),
            f"{PREFIX}expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','FOO'], but missing required "
            "input(s) ]. Please provide all required input(s).",
            id="too many inputs, with the lone bracket",
        ),
        pytest.param(
            admission(OPTIONAL),
            request(),
            f"{PREFIX}expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but missing "
            "required input(s) ['A']. Please provide all required input(s).",
            id="a model with optional inputs",
        ),
        pytest.param(
            admission(OPTIONAL),
            request(fp32("B", 4)),
            f"{PREFIX}expected number of inputs between 1 and 2 but got 1 inputs for model 'm'. Got input(s) ['B'], but "
            "missing required input(s) ['A']. Please provide all required input(s).",
            id="the optional input alone, stricter than Triton (model_config.md 4.4)",
        ),
        pytest.param(
            admission(PLAIN),
            request(fp32("A", 4), fp32("FOO", 4)),
            "unexpected inference input 'FOO' for model 'm'",
            id="unknown input",
        ),
        pytest.param(
            admission(FREE),
            request(fp32("X", -1, 4, nbytes=16)),
            f"{PREFIX}All input dimensions should be specified for input 'X' for model 'm', got [-1,4]",
            id="a dimension of -1",
        ),
        pytest.param(
            admission(TEXT),
            request(text_tensor(1, data=bytes_tensor.encode([b"a", b"b", b"c"]))),
            f"{PREFIX}unexpected number of string elements 2 for inference input 'X' for model 'm', expecting 1",
            id="too many strings",
        ),
        pytest.param(
            admission(TEXT),
            request(text_tensor(2, data=bytes_tensor.encode([b"a"]))),
            f"{PREFIX}expected 2 string elements for inference input 'X' for model 'm', got 1",
            id="too few strings",
        ),
        pytest.param(
            admission(TEXT),
            request(text_tensor(2, data=bytes_tensor.encode([b"a"]) + b"\x01\x00")),
            f"{PREFIX}incomplete string length indicator for inference input 'X' for model 'm', expecting 4 bytes but only "
            "2 bytes available. Please make sure the string length indicator is in one buffer.",
            id="length prefix cut",
        ),
        pytest.param(
            admission(TEXT),
            request(text_tensor(1, data=struct.pack("<I", 10) + b"abc")),
            "incomplete string data for inference input 'X', expecting string of length 10 but only 3 bytes available",
            id="last string cut",
        ),
    ],
)
def test_a_refusal_has_the_text_of_the_spec(rules: Admission, asked: InferenceRequest, text: str) -> None:
    assert refusal(rules, asked) == text


@pytest.mark.parametrize(
    ("request_id", "parameters", "what"),
    [
        pytest.param(
            "", {"a": "x", "prompt": "\u00e9" * (1 << 18)}, "262152; the longest is parameter 'prompt'", id="value"
        ),
        pytest.param("", {"k" * (1 << 18): True, "n": 1}, f"262145; the longest is parameter '{'k' * 64}'", id="name"),
        pytest.param("i" * (1 << 18), {"n": 1}, "262145; the longest is the id", id="id"),
    ],
)
def test_an_id_and_parameters_that_are_too_long_together_are_refused_without_them(
    request_id: str, parameters: dict[str, ParameterValue], what: str
) -> None:
    asked = request(fp32("X", 4), request_id=request_id)
    asked.parameters = parameters
    assert refusal(admission(ONE), asked) == (
        f"id and parameters of a request to model 'm' may have 262144 characters together, got {what}. Send large values as "
        "inputs"
    )


def test_an_id_and_parameters_may_have_256_ki_characters_together() -> None:
    asked = request(fp32("X", 4), request_id="i" * 1000)
    asked.parameters = {"prompt": "\u00e9" * ((1 << 18) - 1007), "n": 1}
    assert admission(ONE).check(asked) == 1


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        pytest.param(
            (1 << 62, 4),
            f"{PREFIX}input byte size mismatch for input 'X' for model 'm'. Expected {1 << 66}, got 0",
            id="the size is counted without overflow",
        ),
        pytest.param(
            (1 << 62, 0),
            "invalid shape for input 'X': shape [4611686018427387904,0] causes total element count to exceed maximum size "
            "of 9223372036854775807",
            id="numpy cannot hold it, empty as it is",
        ),
        pytest.param(
            (0, 1 << 63),
            "invalid shape for input 'X': shape [0,9223372036854775808] causes total element count to exceed maximum size "
            "of 9223372036854775807",
            id="no message can hold it",
        ),
    ],
)
def test_a_shape_that_overflows_is_refused(shape: tuple[int, ...], text: str) -> None:
    assert refusal(admission(FREE), request(Tensor("X", dtypes.FP32, shape, b""))) == text


def test_a_shape_of_strings_that_overflows_is_refused() -> None:
    rules = admission('input { name: "X" data_type: TYPE_STRING dims: [ -1, -1 ] }')
    assert refusal(rules, request(text_tensor(1 << 61, 0, data=b""))).startswith("invalid shape for input 'X'")
    assert refusal(rules, request(text_tensor(1 << 61, 4, data=b""))) == (
        f"{PREFIX}expected {1 << 63} string elements for inference input 'X' for model 'm', got 0"
    )


# ---------------------------------------------------------------------------------------------- which rule is first

FAULTS: list[tuple[str, InferenceRequest]] = [
    ("input 'A' already exists", request(fp32("A"), fp32("A"), outputs=("ZZ", "ZZ"))),
    ("unexpected inference output 'ZZ'", request(fp32("FOO"), outputs=("ZZ", "ZZ"))),
    ("output 'O' already exists", request(fp32("FOO"), outputs=("O", "O"))),
    ("expected 2 inputs but got 1", request(fp32("FOO"))),
    ("unexpected inference input 'FOO'", request(fp32("A"), fp32("FOO", 9))),
    ("input 'A' has no shape", request(fp32("A"), fp32("B", 9))),
    ("input 'B' batch size does not match", request(fp32("A", 9), fp32("B", 8))),
    ("batch-size must be <= 4", request(fp32("A", 9, -1, nbytes=0), fp32("B", 9))),
    ("data-type is 'INT8'", request(fp32("A", 1, -1, nbytes=0, datatype=dtypes.INT8), fp32("B", 1))),
    ("unexpected shape for input 'A'", request(fp32("A", 1, 9, -1, nbytes=0), fp32("B", 1))),
    ("All input dimensions", request(fp32("A", 1, -1, nbytes=0), fp32("B", 1))),  # as 2.51 was seen to do
    ("byte size mismatch for input 'A'", request(fp32("A", 1, 4, nbytes=0), fp32("B", 1))),
]


@pytest.mark.parametrize(("text", "asked"), [pytest.param(text, asked, id=text) for text, asked in FAULTS])
def test_of_several_faults_the_first_of_the_table_is_told(text: str, asked: InferenceRequest) -> None:
    """Each request breaks its own rule and some of those that come after it in section 1."""
    assert text in refusal(admission(PLAIN, max_batch_size=4), asked)


# ---------------------------------------------------------------------------------------------- who may share a batch


def shape_key(tensors: str, *inputs: Tensor) -> object:
    return admission(tensors, max_batch_size=4).shape_key(request(*inputs))


VARIABLE = 'input { name: "X" data_type: TYPE_FP32 dims: -1 }'
RAGGED = 'input { name: "X" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }'


def test_requests_of_one_variable_shape_may_share_whatever_their_batch_sizes() -> None:
    """scheduling.md rows 34 and 35."""
    assert shape_key(VARIABLE, fp32("X", 1, 4)) == shape_key(VARIABLE, fp32("X", 3, 4))
    assert shape_key(VARIABLE, fp32("X", 1, 4)) != shape_key(VARIABLE, fp32("X", 1, 5))


def test_ragged_requests_may_share() -> None:
    """scheduling.md row 36."""
    assert shape_key(RAGGED, fp32("X", 1, 4)) == shape_key(RAGGED, fp32("X", 1, 5))


def test_requests_share_only_with_the_same_optional_inputs() -> None:
    """scheduling.md row 37, with the names in any order."""
    both = shape_key(OPTIONAL, fp32("A", 1, 4), fp32("B", 1, 4))
    assert both == shape_key(OPTIONAL, fp32("B", 1, 4), fp32("A", 1, 4))
    assert both != shape_key(OPTIONAL, fp32("A", 1, 4))


def test_the_order_of_inputs_does_not_keep_requests_apart() -> None:
    two = VARIABLE + 'input { name: "Y" data_type: TYPE_FP32 dims: -1 }'
    assert shape_key(two, fp32("X", 1, 4), fp32("Y", 1, 5)) == shape_key(two, fp32("Y", 2, 5), fp32("X", 2, 4))
    assert shape_key(two, fp32("X", 1, 4), fp32("Y", 1, 5)) != shape_key(two, fp32("X", 1, 5), fp32("Y", 1, 4))


def test_outputs_ids_and_parameters_do_not_keep_requests_apart() -> None:
    """scheduling.md row 38: with fixed dims there is nothing to compare."""
    rules = admission(PLAIN, max_batch_size=4)
    inputs = [fp32("A", 1, 4), fp32("B", 1, 4)]
    asked = InferenceRequest("m", None, request_id="z", inputs=inputs, requested_outputs=["O"], parameters={"k": 1})
    assert rules.shape_key(asked) == rules.shape_key(request(*inputs)) is None


# ---------------------------------------------------------------------------------------------- forms of packed inputs


def packed_like(*inputs: Tensor, form: PackedForm | None = None, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    """A request with *inputs* packed; with *form*, one that was met before."""
    form = form or form_of(inputs)
    assert form is not None
    return InferenceRequest(
        "m",
        None,
        request_id="q",
        packed=form.pack([tensor.content() for tensor in inputs]),
        requested_outputs=list(outputs),
    )


def test_what_is_found_of_a_form_is_what_is_found_of_each_request_of_it() -> None:
    rules = admission(FREE, max_batch_size=8)
    form = form_of([fp32("X", 3, 2, 5)])
    for _ in range(3):
        sent = packed_like(fp32("X", 3, 2, 5), form=form)
        assert rules.check(sent) == 3
        assert rules.shape_key(sent) == rules.shape_key(request(fp32("X", 3, 2, 5)))
    assert rules.shape_key(packed_like(fp32("X", 3, 2, 4))) != rules.shape_key(sent)


def test_a_form_that_was_taken_is_not_unpacked_again() -> None:
    rules = admission(ONE)
    form = form_of([fp32("X", 4)])
    rules.check(packed_like(fp32("X", 4), form=form))
    sent = packed_like(fp32("X", 4), form=form)
    rules.check(sent)
    assert sent.packed is not None and sent._inputs is None


@pytest.mark.parametrize("inputs", [[fp32("X", 5)], [fp32("Y", 4)], [fp32("X", 4, nbytes=12)], []])
def test_a_form_that_was_refused_is_refused_again(inputs: list[Tensor]) -> None:
    rules = admission(ONE)
    form = form_of(inputs)
    texts = set()
    for _ in range(2):
        with pytest.raises(InferenceError) as caught:
            rules.check(packed_like(*inputs, form=form))
        texts.add(caught.value.message)
    with pytest.raises(InferenceError) as caught:
        rules.check(request(*inputs))
    assert texts == {caught.value.message}


@pytest.mark.parametrize("outputs", [("N",), ("O", "O")])
def test_requested_outputs_are_looked_at_for_each_request_of_a_form(outputs: tuple[str, ...]) -> None:
    rules = admission(ONE)
    form = form_of([fp32("X", 4)])
    rules.check(packed_like(fp32("X", 4), form=form, outputs=("O",)))
    with pytest.raises(InferenceError, match="output"):
        rules.check(packed_like(fp32("X", 4), form=form, outputs=outputs))


def test_strings_are_looked_at_in_each_request_of_a_form() -> None:
    rules = admission(TEXT)
    good, bad = bytes_tensor.encode([b"abc"]), b"\xff\0\0\0abc"
    form = form_of([text_tensor(1, data=good)])
    assert rules.check(packed_like(text_tensor(1, data=good), form=form)) == 1
    with pytest.raises(InferenceError):
        rules.check(packed_like(text_tensor(1, data=bad), form=form))


def test_forms_are_forgotten_rather_than_kept_without_end() -> None:
    rules = admission(FREE)
    for number in range(1, 1500):
        rules.check(packed_like(fp32("X", 1, number % 700 + 1)))
        assert len(rules._forms) <= 512
