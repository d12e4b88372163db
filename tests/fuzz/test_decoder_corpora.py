"""The decoders over the inputs that coverage-guided fuzzing has kept (tools/decoder_fuzz), and over changes of them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from pytriton_lite.core import bytes_tensor
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.frontends.grpc import http2_frames, parsing
from tools.decoder_fuzz import corpus
from tools.decoder_fuzz.targets import TARGETS

_CHANGED_INPUTS = 300


def changed(data: bytes, draw: random.Random) -> bytes:
    """*data* with a byte replaced, removed or doubled, or a piece of it cut out or repeated."""
    if not data:
        return draw.randbytes(4)
    at, end = sorted((draw.randrange(len(data)), draw.randrange(len(data) + 1)))
    piece = data[at:end]
    return draw.choice(
        (
            data[:at] + draw.randbytes(1) + data[at + 1 :],
            data[:at] + bytes((data[at] ^ 1 << draw.randrange(8),)) + data[at + 1 :],
            data[:at] + data[end:],
            data[:end] + piece + data[end:],
            data[:at],
        )
    )


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_of_a_decoder_finds_nothing(name: str) -> None:
    inputs = corpus.read(name)
    assert len(inputs) >= len(TARGETS[name].seeds), f"run the fuzzer for {name}"
    for data in inputs:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_of_a_decoder_find_nothing(name: str) -> None:
    draw = random.Random(name)
    inputs = corpus.read(name)
    for _ in range(_CHANGED_INPUTS):
        TARGETS[name].run(changed(draw.choice(inputs), draw))


def test_a_decoder_that_loses_an_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    intact = bytes_tensor.decode_list
    monkeypatch.setattr(bytes_tensor, "decode_list", lambda data: intact(data)[1:])
    with pytest.raises(AssertionError):
        TARGETS["bytes-tensor"].run(b"\1\1\0\0\0a")


def test_a_reader_of_messages_that_loses_a_tensor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    intact = parsing.parse_request
    monkeypatch.setattr(
        parsing, "parse_request", lambda data, large_bytes: intact(data, large_bytes=large_bytes)._replace(raw=[])
    )
    with pytest.raises(AssertionError):
        TARGETS["infer-protobuf"].run(TARGETS["infer-protobuf"].seeds[0])


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_frame_that_is_cut_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    intact = http2_frames.goaway
    monkeypatch.setattr(http2_frames, "goaway", lambda *arguments: intact(*arguments)[:-1])
    with pytest.raises((AssertionError, struct.error)):
        TARGETS["http2"].run(b"\0" + bytes(40))


def test_a_refusal_is_no_finding() -> None:
    with pytest.raises(InferenceError):
        bytes_tensor.check(b"\1", count=1, input_name="TEXT", model_name="fuzzed", prefix="")
    TARGETS["bytes-tensor"].run(b"\1\1")


def test_a_corpus_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    assert corpus.write("some", [b"bb", b"a", b"a", b""], tmp_path) == 3
    assert corpus.read("some", tmp_path) == [b"", b"a", b"bb"]
