"""JSON as Triton reads it. The reference is RapidJSON itself, where its Python binding is installed."""

from __future__ import annotations

import json
import math
import sys
import time
from types import FrameType
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.http import json_dialect

PREFIX = "failed to parse the request JSON buffer: "


def refusal(text: bytes) -> str:
    with pytest.raises(InferenceError) as caught:
        json_dialect.loads(text)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX)


def test_nan_and_infinity_are_numbers() -> None:
    got: Any = json_dialect.loads(b"[NaN, Inf, Infinity, -Inf, -Infinity, 1]")
    assert math.isnan(got[0])
    assert got[1:] == [math.inf, math.inf, -math.inf, -math.inf, 1]


def test_a_byte_order_mark_and_blanks_around_the_document_are_accepted() -> None:
    assert json_dialect.loads(b'\xef\xbb\xbf \r\n\t{"a": 1} \n') == {"a": 1}


def test_invalid_utf8_in_a_string_comes_through_unchanged() -> None:
    got: Any = json_dialect.loads(b'{"a": "x\xff\xfe\xc3"}')
    assert got["a"].encode("utf-8", "surrogateescape") == b"x\xff\xfe\xc3"


def test_escapes_mean_the_same_beside_invalid_utf8() -> None:
    got: Any = json_dialect.loads(b'["\xff\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00"]')
    assert got[0][1:] == '"\\/\b\f\n\r\té\U0001f600'


@pytest.mark.parametrize("text", [b"18446744073709551616", b"[NaN,18446744073709551616]"])
def test_integers_beyond_64_bits_are_floats_in_both_parsers(text: bytes) -> None:
    got: Any = json_dialect.loads(text)
    number = got if isinstance(got, float) else got[1]
    assert type(number) is float
    assert number == 2.0**64


def test_the_last_of_duplicate_keys_counts_in_both_parsers() -> None:
    assert json_dialect.loads(b'{"a": 1, "a": 2}') == {"a": 2}
    assert json_dialect.loads(b'\xef\xbb\xbf{"a": 1, "a": 2}') == {"a": 2}


def test_comments_are_refused() -> None:
    assert refusal(b"[1, /* two */ 3]") == "Invalid value. at 4"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (b"", "The document is empty. at 0"),
        (b"  ", "The document is empty. at 2"),
        (b"{", "Missing a name for object member. at 1"),
        (b"{}x", "The document root must not be followed by other values. at 2"),
        (b"[1 2]", "Missing a comma or ']' after an array element. at 3"),
        (b'{"a":1 "b"}', "Missing a comma or '}' after an object member. at 7"),
        (b'{"a" 1}', "Missing a colon after a name of object member. at 5"),
        (b"[tru]", "Invalid value. at 4"),
        (b"[1.]", "Miss fraction part in number. at 3"),
        (b"[1e]", "Miss exponent in number. at 3"),
        (b"[1,2,3,1e400]", "Number too big to be stored in double. at 7"),
        (b'["\\x"]', "Invalid escape character in string. at 2"),
        (b'["\\u12g4"]', "Incorrect hex digit after \\u escape in string. at 2"),
        (b'["\\ud800"]', "The surrogate pair in string is invalid. at 2"),
        (b'["a\nb"]', "Invalid encoding in string. at 3"),
        (b'["abc', "Missing a closing quotation mark in string. at 5"),
    ],
)
def test_a_syntax_error_is_told_with_its_offset(text: bytes, detail: str) -> None:
    """http.md row 31."""
    assert refusal(text) == detail


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_bottomless_nesting_is_refused_and_not_a_recursion_error(opening: bytes) -> None:
    assert "levels of nesting" in refusal(opening * 10_000)


def test_as_deep_as_orjson_reads_the_other_parser_reads_too() -> None:
    deep = b"[" * json_dialect.MAX_DEPTH + b"]" * json_dialect.MAX_DEPTH
    assert orjson.loads(deep) is not None
    got: Any = json_dialect.loads(b"\xef\xbb\xbf" + deep)
    depth = 1
    while got:
        (got,) = got
        depth += 1
    assert depth == json_dialect.MAX_DEPTH


def test_one_nan_in_a_large_tensor_does_not_cost_seconds() -> None:
    numbers = [float(i) / 7 for i in range(200_000)]
    text = json.dumps({"data": [*numbers, math.nan, *numbers]}).encode()
    started = time.process_time()
    got: Any = json_dialect.loads(text)
    read = [number for piece in got["data"].slices() for number in piece]
    assert time.process_time() - started < 1
    assert read[:200_000] == numbers
    assert len(read) == 400_001


def test_numbers_in_front_of_one_that_is_too_big_are_not_tried_together_again() -> None:
    text = b'{"data":[NaN,' + b"1," * 4000 + b"1e999," + b"1," * 20_000 + b"1]}"
    tries = 0

    def count(frame: FrameType, event: str, function: Any) -> None:
        nonlocal tries
        tries += event == "c_call" and function is orjson.loads

    sys.setprofile(count)
    try:
        told = refusal(text)
    finally:
        sys.setprofile(None)
    assert told == "Number too big to be stored in double. at 8013"
    assert tries < 10


documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(documents)
def test_both_parsers_read_the_same_out_of_standard_json(document: Any) -> None:
    text = json.dumps(document).encode()
    assert repr(json_dialect.loads(text)) == repr(json_dialect.loads(b"\xef\xbb\xbf" + text))


SEED = '{"a":[1,2.5,-3e4,NaN,Inf,-Infinity],"b":"x\\u00e9\\ud83d\\ude00\\n","c":{"d":null,"e":[true,false]}}'
edits = st.lists(
    st.tuples(
        st.integers(0, len(SEED)),
        st.integers(0, 3),
        st.text('{}[]",:\\untrefalsNIy0123456789.-+eE \n\x01x', max_size=2),
    ),
    max_size=3,
)


@given(edits)
def test_mutated_documents_are_read_or_refused_as_rapidjson_does(edits: list[tuple[int, int, str]]) -> None:
    rapidjson = pytest.importorskip("rapidjson")
    text = SEED
    for at, removed, inserted in edits:
        text = text[:at] + inserted + text[at + removed :]
    try:
        expected = repr(rapidjson.loads(text, number_mode=rapidjson.NM_NAN))
    except rapidjson.JSONDecodeError as error:
        offset, _, detail = str(error).removeprefix("Parse error at offset ").partition(": ")
        assert refusal(text.encode()) == f"{detail} at {offset}"
    else:
        assert repr(json_dialect.loads(text.encode())) == expected


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_but_an_inference_error(text: bytes) -> None:
    try:
        json_dialect.loads(text)
    except InferenceError as error:
        assert error.message.startswith(PREFIX)
