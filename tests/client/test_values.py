"""What is given for an input, to the tensor that the model takes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import TensorSpec, array_of
from pytriton_lite.client.values import from_values, read_text
from pytriton_lite.core import dtypes


def spec(datatype: dtypes.DataType, *shape: int) -> TensorSpec:
    return TensorSpec("IN", datatype, shape)


@pytest.mark.parametrize(
    ("wanted", "text", "values"),
    [
        (spec(dtypes.FP32, 3), "1,2.5,-3e2", [1, 2.5, -300]),
        (spec(dtypes.FP32, 2, 2), "1,2,3,4", [[1, 2], [3, 4]]),
        (spec(dtypes.FP32, -1, 2), "1,2,3,4", [[1, 2], [3, 4]]),
        (spec(dtypes.FP32, -1, 2), "1,2", [[1, 2]]),
        (spec(dtypes.FP32, -1, -1, 3), "1,2,3,4,5,6", [[[1, 2, 3], [4, 5, 6]]]),
        (spec(dtypes.FP32, -1, 2, 2), "[[1,2],[3,4]]", [[[1, 2], [3, 4]]]),
        (spec(dtypes.FP32, 1), "NaN", [float("nan")]),
        (spec(dtypes.FP32), "7", 7),
        (spec(dtypes.INT8, 2), "127,-128", [127, -128]),
        (spec(dtypes.UINT64, 1), "18446744073709551615", [2**64 - 1]),
        (spec(dtypes.UINT64, 2), "18446744073709551615,1", [2**64 - 1, 1]),
        (spec(dtypes.UINT64, 2, 1), "[[9223372036854775813],[7.0]]", [[2**63 + 5], [7]]),
        (spec(dtypes.INT64, 2), "9007199254740993,1.0", [2**53 + 1, 1]),
        (spec(dtypes.INT32, 2), "[1.0, 2]", [1, 2]),
        (spec(dtypes.INT8, 2, 0), "[[],[]]", [[], []]),
        (spec(dtypes.FP64, 2), "100000000000000000000000,1.5", [1e23, 1.5]),
        (spec(dtypes.FP32, 1), "100000000000000000000000", [1e23]),
        (spec(dtypes.BF16, 1), "18446744073709551616", [2.0**64]),
        (spec(dtypes.BOOL, 2), "true,0", [True, False]),
        (spec(dtypes.BF16, 2), "1.5,-2", [1.5, -2]),
        (spec(dtypes.FP32, 0), "[]", []),
        (spec(dtypes.BYTES, 1), "a, b", [b"a, b"]),
        (spec(dtypes.BYTES, -1, 1), "text", [[b"text"]]),
        (spec(dtypes.BYTES, 2), '["a","b"]', [b"a", b"b"]),
        (spec(dtypes.BYTES, 1), "[sic]", [b"[sic]"]),
    ],
)
def test_a_text_is_the_tensor_that_it_can_be_meant_as(wanted: TensorSpec, text: str, values: Any) -> None:
    tensor = read_text(wanted, text)
    np.testing.assert_array_equal(array_of(tensor), np.array(values, dtype=array_of(tensor).dtype))
    assert tensor.datatype is wanted.datatype
    assert len(tensor.shape) == len(wanted.shape)


@pytest.mark.parametrize(
    ("wanted", "text", "says"),
    [
        (spec(dtypes.FP32, 3), "1,2", r"expects shape \[3\], got \[2\]"),
        (spec(dtypes.FP32, 2, 2), "[[1,2,3]]", r"expects shape \[2,2\], got \[1,3\]"),
        (spec(dtypes.FP32, -1, -1), "[[1],[2,3]]", "different lengths"),
        (spec(dtypes.FP32, 1), "x", "expected FP32 values"),
        (spec(dtypes.FP32, 1), '["x"]', "got the string 'x'"),
        (spec(dtypes.FP32, 1), "null", "null"),
        (spec(dtypes.FP32, 2), "1.5,null", "null"),
        (spec(dtypes.INT32, 2), "1.5,null", "null"),
        (spec(dtypes.FP64, 1), "1" + "0" * 400, "too large for FP64"),
        (spec(dtypes.FP16, 2), "1,70000", "70000 is too large for FP16"),
        (spec(dtypes.BF16, 1), "1e39", "is too large for BF16"),
        (spec(dtypes.UINT64, 2), "-1,18446744073709551615", "-1 is no UINT64, expected 0 to 18446744073709551615"),
        (spec(dtypes.UINT64, 1), "18446744073709551616", "18446744073709551616 is no UINT64"),
        (spec(dtypes.INT64, 2), "9223372036854775808,1.0", "9223372036854775808 is no INT64"),
        (spec(dtypes.BOOL, 1), "18446744073709551616", "BOOL values"),
        (spec(dtypes.FP32, 1), "[" * 100_000 + "]" * 100_000, "expected FP32 values"),
        (spec(dtypes.INT8, 1), "128", "128 is no INT8, expected -128 to 127"),
        (spec(dtypes.UINT8, 1), "-1", "-1 is no UINT8"),
        (spec(dtypes.INT32, 1), "1.5", "whole numbers for INT32, got 1.5"),
        (spec(dtypes.INT32, 1), "NaN", "whole numbers for INT32, got nan"),
        (spec(dtypes.BOOL, 1), "2", "BOOL values"),
        (spec(dtypes.BYTES, 2), '["a",["b"]]', "strings"),
        (spec(dtypes.BYTES, 1), "[1]", "expected strings, got int"),
        (spec(dtypes.FP32, 1), "@nowhere.npy", "cannot read nowhere.npy"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was_expected(wanted: TensorSpec, text: str, says: str) -> None:
    with pytest.raises(ClientError, match=says) as raised:
        read_text(wanted, text)
    assert "'IN'" in str(raised.value)


def test_a_shape_that_is_given_is_taken() -> None:
    assert read_text(spec(dtypes.FP32, -1, -1), "1,2,3,4", [2, 2]).shape == (2, 2)
    with pytest.raises(ClientError, match=r"4 elements do not fill shape \[3,2\]"):
        read_text(spec(dtypes.FP32, -1, -1), "1,2,3,4", [3, 2])


def damaged() -> bytes:
    """An archive whose directory is right, and one of whose compressed blocks is not."""
    file = io.BytesIO()
    np.savez_compressed(file, IN=np.arange(1000))
    content = bytearray(file.getvalue())
    content[60:90] = bytes(byte ^ 0xFF for byte in content[60:90])
    return bytes(content)


def endless() -> bytes:
    """A head that announces more than any memory has."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)})
    return file.getvalue()


def test_files_are_read_by_the_end_of_their_names(tmp_path: Path) -> None:
    values = np.array([[1, 2], [3, 4]], np.int64)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", IN=values, OTHER=values + 1)
    (tmp_path / "a.json").write_text("[[1, 2], [3, 4]]")
    (tmp_path / "a.txt").write_bytes(b"two\nlines\n")
    for name in ("a.npy", "a.npz", "a.json"):
        tensor = read_text(spec(dtypes.FP32, 2, 2), f"@{tmp_path / name}")
        assert array_of(tensor).tolist() == values.tolist()
    assert array_of(read_text(spec(dtypes.BYTES, 1), f"@{tmp_path / 'a.txt'}")).tolist() == [b"two\nlines\n"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.npy", b"no numpy", "no file of NumPy"),
        ("a.npz", b"PK\3\4 broken", "no file of NumPy"),
        ("a.npz", damaged(), "no file of NumPy"),
        ("a.npy", endless(), "no file of NumPy"),
        ("a.json", b"[1, 2", "no JSON: .* at line 1, column 6"),
        ("a.bin", b"\0\0\0\0", r"a file is .npy, .npz, .json or an image; got '.bin'"),
        ("a.png", b"no image", "no image"),
        ("a.png", b"P4 30000 30000\n", "a.png: Image size .* exceeds limit"),
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ClientError, match=says):
        read_text(spec(dtypes.FP32, 1), f"@{tmp_path / name}")


def test_a_pickle_in_a_file_of_numpy_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ClientError, match="allow_pickle"):
        read_text(spec(dtypes.FP32, 1), f"@{tmp_path / 'a.npy'}")


def test_an_archive_without_the_input_lists_what_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", A=np.zeros(1), B=np.zeros(1))
    with pytest.raises(ClientError, match="the arrays A, B"):
        read_text(spec(dtypes.FP32, 1), f"@{tmp_path / 'a.npz'}")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((-1, 3, 4, 5), (1, 3, 4, 5)),
        ((-1, 4, 5, 3), (1, 4, 5, 3)),
        ((3, 4, 5), (3, 4, 5)),
        ((4, 5, 1), (4, 5, 1)),
        ((4, 5), (4, 5)),
        ((-1, -1, -1, 3), (1, 6, 8, 3)),
        ((-1, -1, 3), (6, 8, 3)),
    ],
)
def test_an_image_has_the_layout_and_size_of_the_model(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 6), (255, 0, 0)).save(tmp_path / "red.png")
    tensor = read_text(TensorSpec("IN", dtypes.FP32, shape), f"@{tmp_path / 'red.png'}")
    assert tensor.shape == expected
    pixels = array_of(tensor)
    assert pixels.max() == (255 if 3 in expected else 76)  # red as grey


def test_base64_is_how_json_has_bytes() -> None:
    assert array_of(from_values(spec(dtypes.BYTES, 1), [{"b64": "AP8="}])).tolist() == [b"\0\xff"]
    with pytest.raises(ClientError, match="no base64"):
        from_values(spec(dtypes.BYTES, 1), [{"b64": "%"}])
