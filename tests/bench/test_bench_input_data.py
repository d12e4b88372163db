"""Rows to be sent: generated, and perf_analyzer's files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.bench.input_data import MOST_ROWS, DataOptions, Row, Streams, batched, make_streams
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import ModelMetadata, TensorSpec, array_of
from pytriton_lite.core import dtypes


def model(*inputs: TensorSpec) -> ModelMetadata:
    return ModelMetadata("m", ("1",), "python", inputs, (TensorSpec("OUT", dtypes.FP32, (2,)),))


NUMBERS = model(TensorSpec("A", dtypes.FP32, (2,)), TensorSpec("B", dtypes.INT8, (1,)))
TEXTS = model(TensorSpec("T", dtypes.BYTES, (1,)))


def values(row: Row) -> list[Any]:
    return [array_of(tensor).tolist() for tensor in row.inputs]


def test_random_rows_differ_from_each_other_and_are_the_same_each_time() -> None:
    (rows,) = make_streams(NUMBERS, batches=False, options=DataOptions())
    assert len({bytes(row.inputs[0].content()) for row in rows}) == MOST_ROWS
    (again,) = make_streams(NUMBERS, batches=False, options=DataOptions())
    assert values(rows[7]) == values(again[7])


def test_large_rows_are_fewer() -> None:
    (rows,) = make_streams(model(TensorSpec("A", dtypes.FP32, (1 << 20,))), batches=False, options=DataOptions())
    assert 1 < len(rows) <= 16


@pytest.mark.parametrize("datatype", [one for one in dtypes.ALL if one is not dtypes.BYTES], ids=repr)
def test_every_type_has_random_and_zero_rows(datatype: dtypes.DataType) -> None:
    for source in ("random", "zero"):
        (rows,) = make_streams(model(TensorSpec("A", datatype, (3,))), batches=False, options=DataOptions(source))
        assert rows[0].inputs[0].nbytes == 3 * datatype.itemsize
    assert values(rows[0]) == [[0, 0, 0]]


def test_strings_have_the_length_or_the_text_that_was_asked_for() -> None:
    (rows,) = make_streams(TEXTS, batches=False, options=DataOptions(string_length=5))
    assert len(values(rows[0])[0][0]) == 5
    (rows,) = make_streams(TEXTS, batches=False, options=DataOptions(string_data="hello"))
    assert values(rows[0]) == [[b"hello"]]
    (rows,) = make_streams(TEXTS, batches=False, options=DataOptions("zero"))
    assert values(rows[0]) == [[b""]]


def test_an_open_shape_has_to_be_said_without_the_batch() -> None:
    metadata = model(TensorSpec("A", dtypes.FP32, (-1, -1, 2)))
    with pytest.raises(ClientError, match="say the lengths with --shape A:N,N"):
        make_streams(metadata, batches=True, options=DataOptions())
    (rows,) = make_streams(metadata, batches=True, options=DataOptions(shapes={"A": (3, 2)}))
    assert rows[0].inputs[0].shape == (3, 2)
    with pytest.raises(ClientError, match=r"the model expects \[-1,2\]"):
        make_streams(metadata, batches=True, options=DataOptions(shapes={"A": (3, 3)}))
    with pytest.raises(ClientError, match="no such input; it has A"):
        make_streams(metadata, batches=True, options=DataOptions(shapes={"X": (3,)}))


# perf_analyzer's files ----------------------------------------------------------------------------------------------


def read(folder: Path, document: Any, metadata: ModelMetadata = NUMBERS) -> Streams:
    path = folder / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return make_streams(metadata, batches=False, options=DataOptions(str(path)))


def test_rows_are_lists_objects_with_a_shape_and_base64(tmp_path: Path) -> None:
    raw = base64.b64encode(np.array([5, 6], np.float32).tobytes()).decode()
    data = [
        {"A": [1, 2], "B": [3]},
        {"A": {"content": [3, 4], "shape": [2]}, "B": {"content": [[4]]}},
        {"A": {"b64": raw}, "B": 5},
        {"A": {"b64": raw, "shape": [2]}, "B": {"content": {"b64": "Bg=="}, "shape": [1]}},
    ]
    (rows,) = read(tmp_path, {"data": data})
    assert [values(row) for row in rows] == [[[1, 2], [3]], [[3, 4], [4]], [[5, 6], [5]], [[5, 6], [6]]]


def test_strings_are_texts_or_base64(tmp_path: Path) -> None:
    data = [{"T": ["ä"]}, {"T": [{"b64": "AP8="}]}, {"T": {"b64": base64.b64encode(b"\2\0\0\0\0\xff").decode()}}]
    (rows,) = read(tmp_path, {"data": data}, TEXTS)
    assert [values(row) for row in rows] == [[["ä".encode()]], [[b"\0\xff"]], [[b"\0\xff"]]]


def test_base64_of_strings_has_their_lengths_as_perf_analyzers_files_have_them(tmp_path: Path) -> None:
    metadata = model(TensorSpec("T", dtypes.BYTES, (-1,)))
    text = base64.b64encode(b"\1\0\0\0a\2\0\0\0bc").decode()
    (rows,) = read(tmp_path, {"data": [{"T": {"b64": text}}, {"T": {"b64": text, "shape": [2]}}]}, metadata)
    assert [values(row) for row in rows] == [[[b"a", b"bc"]]] * 2
    with pytest.raises(ClientError, match=r"a string without that is \[{\"b64\": …}\]"):
        read(tmp_path, {"data": [{"T": {"b64": "AP8="}}]}, metadata)


def test_numbers_of_bfloat16_are_the_upper_halves_of_floats(tmp_path: Path) -> None:
    (rows,) = read(tmp_path, {"data": [{"A": [1, -2, 3.140625]}]}, model(TensorSpec("A", dtypes.BF16, (3,))))
    assert bytes(rows[0].inputs[0].data) == bytes.fromhex("803f 00c0 4940")


ROW = {"A": [1, 2], "B": [3]}


def test_lists_of_lists_are_sequences(tmp_path: Path) -> None:
    assert [len(rows) for rows in read(tmp_path, {"data": [[ROW] * 2, [ROW] * 3]})] == [2, 3]


def test_expected_outputs_stand_beside_their_rows(tmp_path: Path) -> None:
    (rows,) = read(tmp_path, {"data": [ROW], "validation_data": [{"OUT": [7, 8]}]})
    assert array_of(rows[0].expected[0]).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "no JSON: .* line 1"),
        ([], '"data"'),
        ({"data": []}, '"data"'),
        ({"data": ["x"]}, r"data\[0\]\[0\] is to be an object, got str"),
        ({"data": [{"A": [1, 2]}]}, r"data\[0\]\[0\] lacks 'B'"),
        ({"data": [{**ROW, "C": [1]}]}, "has no tensor 'C'; it has A, B"),
        ({"data": [{**ROW, "A": [1, 2, 3]}]}, r"data\[0\]\[0\].A: 3 values do not fill shape \[2\]"),
        ({"data": [{**ROW, "A": ["x", "y"]}]}, r"data\[0\]\[0\].A: expected FP32 values, got the string 'x'"),
        ({"data": [{**ROW, "A": ["1", "2"]}]}, r"data\[0\]\[0\].A: expected FP32 values, got the string '1'"),
        ({"data": [{**ROW, "A": [1e39, 2]}]}, r"too large for FP32"),
        ({"data": [{**ROW, "B": [300]}]}, "300 is no INT8"),
        ({"data": [{**ROW, "B": [1.7]}]}, "expected whole numbers for INT8, got 1.7"),
        ({"data": [{**ROW, "A": {"b64": "%"}}]}, "no base64"),
        ({"data": [{**ROW, "A": {"b64": "AAAA"}}]}, "3 bytes, expected 8"),
        ({"data": [{**ROW, "A": {"content": [1, 2], "shape": [-1]}}]}, '"shape" is to be a list of lengths'),
        ({"data": [ROW], "validation_data": [{"OUT": [1, 2]}] * 2}, "as many rows"),
        ({"data": [ROW], "validation_data": [{"NOPE": [1]}]}, "no tensor 'NOPE'"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(tmp_path: Path, document: Any, says: str) -> None:
    with pytest.raises(ClientError, match=says) as raised:
        read(tmp_path, document)
    assert "data.json" in str(raised.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(ClientError, match=r"nowhere.json: cannot read it: No such file .* expected random, zero"):
        make_streams(NUMBERS, batches=False, options=DataOptions("nowhere.json"))


def test_a_folder_has_a_file_for_each_input(tmp_path: Path) -> None:
    (tmp_path / "A").write_bytes(np.array([1, 2], np.float32).tobytes())
    with pytest.raises(ClientError, match="input 'B': cannot read"):
        make_streams(NUMBERS, batches=False, options=DataOptions(str(tmp_path)))
    (tmp_path / "B").write_bytes(b"\7")
    assert values(make_streams(NUMBERS, batches=False, options=DataOptions(str(tmp_path)))[0][0]) == [[1, 2], [7]]
    (tmp_path / "B").write_bytes(b"\7\7")
    with pytest.raises(ClientError, match="2 bytes, expected 1"):
        make_streams(NUMBERS, batches=False, options=DataOptions(str(tmp_path)))


# Batches ------------------------------------------------------------------------------------------------------------


def test_a_batch_has_the_rows_that_follow_each_other(tmp_path: Path) -> None:
    (rows,) = read(tmp_path, {"data": [{"A": [n, n], "B": [n]} for n in range(3)]})
    joined = batched(rows, 2, 2, batches=True)
    assert [tensor.shape for tensor in joined.inputs] == [(2, 2), (2, 1)]
    assert values(joined) == [[[2, 2], [0, 0]], [[2], [0]]]
    assert batched(rows, 1, 1, batches=False) is rows[1]


def test_rows_of_different_shapes_make_no_batch(tmp_path: Path) -> None:
    metadata = model(TensorSpec("A", dtypes.FP32, (-1,)))
    (rows,) = read(tmp_path, {"data": [{"A": [1]}, {"A": [1, 2]}]}, metadata)
    with pytest.raises(ClientError, match="different shapes"):
        batched(rows, 0, 2, batches=True)
