"""``model_warmup``: the requests that it stands for, and what cannot be made (model_config.md, 4.9)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytriton_lite.config.model_config import parse_model_config
from pytriton_lite.config.warm_up import WarmUpData, WarmUpSample, sample_tensors, samples_from_message
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor

NO_ID = "[request id: <id_unknown>] "


def samples(text: str) -> tuple[WarmUpSample, ...]:
    return samples_from_message(parse_model_config(text, source="config.pbtxt").model_warmup)


def sample(*inputs: str) -> WarmUpSample:
    """One of one request, whose inputs are ``name data_type, the other fields``."""
    text = ""
    for given in inputs:
        head, _, fields = given.partition(",")
        name, data_type = head.split()
        text += f'inputs {{ key: "{name}" value {{ data_type: {data_type} {fields} }} }} '
    (found,) = samples(f'model_warmup {{ name: "w" batch_size: 1 {text} }}')
    return found


def tensors(
    given: WarmUpSample, model_dir: Path = Path(), *, batching: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    return sample_tensors(
        given, declared=frozenset({"IN"}), has_batch_dimension=batching, model_name="m", model_dir=model_dir
    )


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "floats").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (tmp_path / "warmup" / "texts").write_bytes(bytes_tensor.encode(["a", "bc"]))
    (tmp_path / "warmup" / "cut").write_bytes(b"\5\0\0\0ab")
    return tmp_path


def test_a_sample_says_how_often_and_with_what() -> None:
    (first, second) = samples(
        'model_warmup { name: "a" batch_size: 2 count: 3 inputs { key: "Y" value { dims: 2 zero_data: false } } '
        'inputs { key: "X" value { data_type: TYPE_INT8 dims: [ ] input_data_file: "f" } } } '
        "model_warmup { batch_size: 1 }"
    )
    assert (first.name, first.batch_size, first.count) == ("a", 2, 3)
    assert [(i.name, i.datatype, i.dims, i.data, i.filename) for i in first.inputs] == [
        ("X", dtypes.INT8, (), WarmUpData.FILE, "f"),
        ("Y", dtypes.INVALID, (2,), WarmUpData.ZERO, ""),
    ]
    assert (second.name, second.batch_size, second.count, second.inputs) == ("", 1, 1, ())


def test_a_sample_without_requests_is_skipped() -> None:
    """model_config.md row 71, however wrong it is."""
    assert samples('model_warmup { batch_size: 0 count: 3 inputs { key: "" value { dims: -1 } } }') == ()


def test_declared_inputs_and_what_stands_beside_them() -> None:
    inputs, others = tensors(
        sample("IN TYPE_FP32, dims: [2] zero_data: true", "START TYPE_INT32, dims: [1] zero_data: true")
    )
    assert [(t.name, t.datatype, t.shape, t.data) for t in inputs] == [("IN", dtypes.FP32, (1, 2), bytes(8))]
    assert [(t.name, t.datatype, t.shape, t.data) for t in others] == [("START", dtypes.INT32, (1, 1), bytes(4))]


def test_without_batching_dims_are_the_shape() -> None:
    inputs, _ = tensors(sample("IN TYPE_FP32, dims: [2, 3] zero_data: true"), batching=False)
    assert inputs[0].shape == (2, 3)


@pytest.mark.parametrize("data", ["zero_data: true", "random_data: true", "zero_data: false", "random_data: false"])
def test_strings_of_zeros_or_at_random_are_empty(data: str) -> None:
    """model_config.md row 73; that a choice is there counts, not its value."""
    inputs, _ = tensors(sample(f"IN TYPE_STRING, dims: [2] {data}"))
    assert (inputs[0].shape, inputs[0].data) == ((1, 2), bytes(8))


@pytest.mark.parametrize("datatype", [t for t in dtypes.ALL if t is not dtypes.BYTES], ids=str)
def test_random_data_are_other_bytes_each_time_and_values_that_a_client_could_send(datatype: DataType) -> None:
    given = sample(f"IN {datatype.config_name}, dims: [20000] random_data: true")
    (first,), _ = tensors(given)
    (second,), _ = tensors(given)
    assert first.data is not None
    assert second.data is not None
    assert first.nbytes == 20000 * datatype.itemsize
    assert bytes(first.data) != bytes(second.data)
    if datatype.numpy is None:  # BF16 is the upper half of an FP32
        values = np.frombuffer(first.data, np.uint16).astype(np.uint32) << 16
        assert np.isfinite(values.view(np.float32)).all()
    elif datatype is dtypes.BOOL:
        assert set(bytes(first.data)) == {0, 1}
    elif datatype.numpy.kind == "f":
        assert (abs(np.frombuffer(first.data, datatype.numpy)) < 2).all()
    else:
        assert len(set(bytes(first.data))) == 256


def test_a_file_gives_what_it_has_at_the_beginning(model_dir: Path) -> None:
    inputs, others = tensors(
        sample(
            'IN TYPE_FP32, dims: [4] input_data_file: "floats"', 'S TYPE_STRING, dims: [2] input_data_file: "/texts"'
        ),
        model_dir,
    )
    assert inputs[0].data == np.arange(4, dtype=np.float32).tobytes()
    assert others[0].data is not None
    assert bytes_tensor.decode_list(others[0].data) == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param(
            "IN TYPE_FP32, dims: [2, -1] zero_data: true",
            "warmup setting expects all variable-size dimensions are specified for input 'IN'",
            id="row 75, a variable size",
        ),
        pytest.param(
            f"IN TYPE_FP32, dims: {[1] * 255} zero_data: true",
            "warmup setting has 255 dimensions for input 'IN', expected less than 255",
            id="too many dimensions",
        ),
        pytest.param(
            "IN TYPE_FP32, dims: [4]",
            NO_ID + "warmup setting expects input 'IN' to have input_data_type set",
            id="row 75, no data",
        ),
        pytest.param(
            'IN TYPE_FP32, dims: [8] input_data_file: "floats"',
            NO_ID + "warmup setting expects 32 bytes, but the data provided from floatsonly has 24 bytes",
            id="row 74",
        ),
        pytest.param(
            "X TYPE_INVALID, dims: [2] zero_data: true",
            "warmup setting expects input 'X', which model 'm' does not declare, to have a data_type and dims from 0 on, got "
            "TYPE_INVALID and [2]",
            id="a type that is none, 2.51 dies of it",
        ),
        pytest.param(
            "X TYPE_FP32, dims: [2, -3] zero_data: true",
            "warmup setting expects input 'X', which model 'm' does not declare, to have a data_type and dims from 0 on, got "
            "TYPE_FP32 and [2, -3]",
            id="a size that is none, 2.51 dies of it",
        ),
        pytest.param(
            'X TYPE_STRING, dims: [1] input_data_file: "cut"',
            "incomplete string data for inference input 'X', expecting string of length 5 but only 2 bytes available",
            id="a text that is cut off",
        ),
    ],
)
def test_what_cannot_be_made_fails_the_load(given: str, text: str, model_dir: Path) -> None:
    with pytest.raises(InferenceError) as caught:
        tensors(sample(given), model_dir)
    assert (caught.value.code, caught.value.message) == (ErrorCode.INVALID_ARG, text)


def test_a_nameless_input_without_data_fails_the_load() -> None:
    (nameless,) = samples("model_warmup { batch_size: 1 inputs { } }")
    with pytest.raises(InferenceError, match="warmup setting expects input '' to have input_data_type set"):
        tensors(nameless)


@pytest.mark.parametrize("name", ["nope", "", "\\000"])
def test_a_file_that_cannot_be_read_fails_the_load(model_dir: Path, name: str) -> None:
    with pytest.raises(InferenceError, match="failed to open text file for read") as caught:
        tensors(sample(f'IN TYPE_FP32, dims: [4] input_data_file: "{name}"'), model_dir)
    assert caught.value.code is ErrorCode.INTERNAL


def test_more_than_there_is_memory_for_fails_the_load() -> None:
    with pytest.raises(InferenceError, match="asks for 4000000000000000000 bytes, more than there is memory for"):
        tensors(sample("IN TYPE_FP32, dims: [1000000000000000000] random_data: true"))
