"""Documents parsed in slices are the documents that they are when parsed at once, and what is too much is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.http import json_dialect, json_slices
from pytriton_lite.frontends.http.json_dialect import Members, load_members, loads
from pytriton_lite.frontends.http.json_slices import DocumentError, LargeArray

TEXTS = st.text(alphabet='ab"\\[]{},: é\n', max_size=6)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = NUMBERS | TEXTS | st.booleans() | st.none()
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=60,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large, and pieces are a few bytes long."""
    make_small(monkeypatch.setattr)


def make_small(setattr_: Callable[[object, str, object], None]) -> None:
    setattr_(json_slices, "SMALL_BYTES", 0)
    setattr_(json_slices, "LONG_BYTES", 5)
    setattr_(json_slices, "PIECE_BYTES", 7)


def whole(value: object) -> object:
    """*value* with every array in it read, and flat; lists elsewhere stay."""
    if isinstance(value, LargeArray):
        return ["flat", *leaves(list(value.slices()))]
    if isinstance(value, Members):
        return [(name, whole(member)) for name, member in value.pairs]
    if isinstance(value, dict):
        return {name: whole(member) for name, member in value.items()}
    return [whole(item) for item in value] if isinstance(value, list) else value


def leaves(value: object) -> list[object]:
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def alike(found: object, expected: object) -> bool:
    """Whether *found*, a result of `whole`, is *expected* but for arrays that are flat."""
    if isinstance(found, list) and found[:1] == ["flat"] and isinstance(expected, list):
        return found[1:] == leaves(expected)
    if isinstance(found, dict) and isinstance(expected, dict):
        return list(found) == list(expected) and all(alike(found[name], expected[name]) for name in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return type(found) is type(expected) and found == expected


def in_small(work: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch.setattr)
        return work()


@given(document=VALUES, indent=st.sampled_from([None, 0, 1]), ascii_only=st.booleans())
def test_a_document_in_slices_is_the_same_document(document: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    kind, found = outcome(lambda: in_small(lambda: whole(loads(text))))
    assert kind == "document"
    assert alike(found, loads(text))
    _, members = outcome(lambda: in_small(lambda: whole(load_members(text))))
    assert alike(as_dicts(members), as_dicts(whole(load_members(text))))


def as_dicts(value: object) -> object:
    """Pairs as dicts, for `alike`."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {name: as_dicts(member) for name, member in value}
    return [as_dicts(item) for item in value] if isinstance(value, list) else value


@given(document=VALUES, seed=st.integers(0, 2**32))
def test_what_is_no_document_is_none_in_slices_either(document: Any, seed: int) -> None:
    text = bytearray(json.dumps({"a": document, "b": [1, 2, [3, "x"]]}).encode())
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        if chance.random() < 0.5:
            del text[at]
        else:
            text[at] = chance.choice(b'[]{},:"\\1a N')
    expected = outcome(lambda: whole(loads(bytes(text))))
    found = outcome(lambda: in_small(lambda: whole(loads(bytes(text)))))
    assert found[0] == expected[0]
    if found[0] == "document":
        assert alike(found[1], expected[1])


def outcome(work: Callable[[], object]) -> tuple[str, object]:
    try:
        return "document", work()
    except DocumentError as error:
        return "error", f"{error.detail} at {error.offset}"
    except InferenceError as error:
        return "error", error.message.removeprefix("failed to parse the request JSON buffer: ")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":[1,2,3,4,5,6], "b":[1,2,3,4,5,6], "c" 1}', "Missing a colon after a name of object member. at 43"),
        (b'{"a":[1,2,3,4,5,6,7,8,9,,1]}', "Invalid value. at 24"),
        (b'{"a":[1,2,3,4,5,6,7,8,9,]}', "Invalid value. at 24"),
        (b'{"a":[,1,2,3,4,5,6,7,8,9]}', "Invalid value. at 6"),
        (b'{"a":[1,2,3,4,5,6,7,8,9 1]}', "Missing a comma or ']' after an array element. at 24"),
        (b'{"a":["x","y","z","\\q","w"]}', "Invalid escape character in string. at 19"),
    ],
)
def test_an_error_is_told_where_it_is(text: bytes, message: str) -> None:
    assert outcome(lambda: whole(loads(text))) == ("error", message)


def test_numbers_that_standard_json_has_not_are_read_in_slices() -> None:
    text = b'{"data":[' + b"1.5,NaN,-Infinity,2," * 20_000 + b"3]}"
    document = loads(text)
    assert isinstance(document, dict)
    found = leaves(list(document["data"].slices()))
    assert (len(found), str(found[:5])) == (80_001, "[1.5, nan, -inf, 2, 1.5]")


def test_the_elements_of_an_array_are_counted_without_parsing_it() -> None:
    text = json.dumps({"a": [[1, 2], "x,]", 3] * 10_000}).encode()
    document = loads(text)
    assert isinstance(document, dict)
    assert document["a"].count() == 30_000


@pytest.mark.parametrize("gap", [b"", b"\n      "])
def test_a_list_of_objects_may_begin_where_a_piece_ends(gap: bytes) -> None:
    data = json.dumps([1.25] * 40_000).encode()
    text = b'{"id":"","outputs":[%b{"name":"OUT"}],"inputs":[%b{"name":"IN","data":%b}]}' % (gap, gap, data)
    for begin in (b'"outputs":[', b'"inputs":['):
        behind = text.index(begin) + len(begin)
        for more in range(len(gap) + 2):
            padding = b"x" * (json_slices.PIECE_BYTES - behind - len(gap) - 1 + more)
            document = loads(text.replace(b'"id":""', b'"id":"%b"' % padding))
            assert isinstance(document, dict)
            assert document["outputs"] == [{"name": "OUT"}]
            assert leaves(list(document["inputs"][0]["data"].slices())) == [1.25] * 40_000


MANY = 300_000
TOO_MUCH = {
    "objects": b'{"inputs":[' + b"{}," * MANY + b"{}]}",
    "inputs": b'{"inputs":[' + b'{"name":"IN"},' * MANY + b"{}]}",
    "parameters": b'{"parameters":{' + b",".join(b'"%x":1' % at for at in range(MANY)) + b"}}",
    "lists": b"[" + b"[]," * MANY + b"[]]",
    "closings": b"{" + b"]" * MANY + b"}",
    "numbers in no member": b"[" + b"1," * MANY + b"1]",
    "deep objects": b'{"a":' * MANY + b"1" + b"}" * MANY,
    "short arrays": b'{"a":[' + b'{"b":[1,2]},' * MANY + b"{}]}",
    "an object at the end of an array": b'{"a":[' + b"1," * MANY + b"{}]}",
    "an object behind lists": b'{"a":[' + b"[]," * MANY + b"{}]}",
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_what_has_too_many_parts_is_refused(case: str) -> None:
    for load in (loads, load_members):
        with pytest.raises(InferenceError, match="the request's JSON has ") as refusal:
            load(TOO_MUCH[case])
        assert refusal.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize(
    "text",
    [
        *TOO_MUCH.values(),
        b'{"data":[' + b"1," * 2_000_000 + b"1]}",
        b'{"data":[' + b"[1,2]," * 500_000 + b"[]]}",
        b'{"data":[' + b"[]," * 1_000_000 + b"[]]}",
        b'{"data":[' + b'"a\\"]",' * 500_000 + b'""]}',
        b'{"data":[' + b"NaN," * 100_000 + b"1]}",
        b'{"data":[' + b"[" * 2_000_000,
    ],
    ids=[*TOO_MUCH, "numbers", "pairs", "empty lists", "strings", "no numbers", "brackets"],
)
def test_no_call_keeps_the_interpreter_for_long(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that parses has little to parse: other threads have their turn in between."""
    longest = 0

    class Orjson:
        JSONDecodeError = orjson.JSONDecodeError

        @staticmethod
        def loads(data: Any) -> object:
            nonlocal longest
            longest = max(longest, len(data))
            return orjson.loads(data)

    monkeypatch.setattr(json_dialect, "orjson", Orjson)
    outcome(lambda: read_through(loads(text)))
    assert longest <= 3 * json_slices.PIECE_BYTES


def read_through(value: object) -> None:
    """Have every array in it read, and forgotten slice by slice."""
    for member in value.values() if isinstance(value, dict) else []:
        if isinstance(member, LargeArray):
            for elements in member.slices():
                assert elements is not None


def test_a_document_weighs_what_it_takes_to_parse_it() -> None:
    strings = json.dumps({"inputs": [{"data": ["x" * 100] * 1000}]}).encode()
    numbers = json.dumps({"inputs": [{"data": [1] * 30_000}]}).encode()
    lists = b'{"x":[' + b"[]," * 30_000 + b"1]}"
    assert json_slices.is_small(strings)
    assert json_slices.is_small(bytearray(strings))
    assert json_slices.is_small(memoryview(strings))
    assert not json_slices.is_small(numbers)
    assert not json_slices.is_small(lists)
    assert json_slices.weight(b"[" * 100) == 100
    assert json_slices.weight(strings * 3) == len(strings) * 3
