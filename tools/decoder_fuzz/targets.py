"""The decoders that read what strangers send, each as a function of bytes that raises only when the decoder is wrong.

A target feeds one decoder and checks what must hold for any input: errors are those that the decoder promises, what two
readers of one format find is the same, nothing is kept beyond the input. Whatever else is raised is a finding.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import hpack
import orjson

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.override import parse_config_override
from pytriton_lite.config.text import parse_model_config, read_config_text
from pytriton_lite.core import bytes_tensor
from pytriton_lite.core.errors import InferenceError, ProtocolError
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.grpc import codec as grpc_codec
from pytriton_lite.frontends.grpc import http2_frames as frames
from pytriton_lite.frontends.grpc import parsing
from pytriton_lite.frontends.grpc.http2_hpack import HeaderDecoder
from pytriton_lite.frontends.http import codec as http_codec
from pytriton_lite.frontends.http import generate_codec, json_dialect
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import LARGEST_FRAME, FrameReader
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest
from pytriton_lite.proto.message import DecodeError

_MAX_INPUT_BYTES = 1 << 20
_LONG_INTEGER = re.compile(rb"[\x80-\xff]{5}")
_CONFIG = """
name: "fuzzed"  backend: "python"
input { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }
input { name: "NUMBERS" data_type: TYPE_FP32 dims: [ -1 ] }
input { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
output { name: "ANSWER" data_type: TYPE_STRING dims: [ 1 ] }
"""


@dataclass(frozen=True)
class Target:
    """One decoder: its name, what runs it, and inputs to begin with where the corpus has none."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


@cache
def _regions() -> Regions:
    return Regions(is_allowed=True)


# ---------------------------------------------------------------------------------------------- HTTP bodies


def read_infer_document(data: bytes) -> None:
    """An infer body: two bytes say how much of the rest is the JSON part; what lies behind it are binary tensors."""
    if len(data) < 2:
        return
    split = 2 + min(int.from_bytes(data[:2], "little"), len(data) - 2)
    document, binary = data[2:split], memoryview(data)[split:]
    arguments: dict[str, Any] = {
        "model_name": "fuzzed",
        "version": None,
        "available": len(binary),
        "max_input_size": _MAX_INPUT_BYTES,
        "regions": _regions(),
    }
    try:
        request, _ = http_codec.decode(document, binary=binary, **arguments)
    except InferenceError:
        request = None
    try:
        later, _ = http_codec.decode(document, binary=None, **arguments)
    except InferenceError:
        assert request is None, "refused without its tensors, and taken with them"
        return
    assert request is not None, "taken without its tensors, and refused with them"
    assert http_codec.missing_bytes(later) <= len(binary)
    http_codec.attach(later, binary)
    for one, other in zip(request.inputs, later.inputs, strict=True):
        assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
        assert bytes(one.content()) == bytes(other.content())


def read_json(data: bytes) -> None:
    """Any JSON document: what orjson takes, our own parser reads in the same way."""
    try:
        value = json_dialect.loads(data)
    except InferenceError:
        return
    try:
        expected = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    assert _same(value, expected)
    parsed = json_dialect.load_members(data)
    assert _same(_without_members(parsed), expected), (parsed, expected)


def _without_members(value: object) -> object:
    """*value* with a dict for all `Members`, of which the last of equal names counts, as it does to orjson."""
    if isinstance(value, json_dialect.Members):
        return {name: _without_members(member) for name, member in value.pairs}
    if isinstance(value, list):
        return [_without_members(element) for element in value]
    return value


def _same(one: object, other: object) -> bool:
    """Equality in which NaN is itself, and an integer that does not fit 64 bits is its float."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, int) and isinstance(other, float):
        try:
            return float(one) == other
        except OverflowError:
            return math.isinf(other)
    return type(one) is type(other) and one == other


@cache
def _generate_config() -> ModelConfig:
    return ModelConfig.from_message(parse_model_config(_CONFIG, source="config.pbtxt"))


def read_generate_document(data: bytes) -> None:
    """A body of generate."""
    try:
        generate_codec.decode(
            data, model_name="fuzzed", version=None, config=_generate_config(), max_input_size=_MAX_INPUT_BYTES
        )
    except InferenceError:
        pass


# ---------------------------------------------------------------------------------------------- tensors


def read_bytes_tensor(data: bytes) -> None:
    """A BYTES tensor: what the check lets through can be decoded, and encodes to what it was."""
    if len(data) < 1:
        return
    count, tensor = data[0], data[1:]
    try:
        bytes_tensor.check(tensor, count=count, input_name="TEXT", model_name="fuzzed", prefix="")
    except InferenceError:
        return
    elements = bytes_tensor.decode_list(tensor)
    assert len(elements) == count
    assert bytes_tensor.encode(elements) == tensor
    assert bytes_tensor.decode_array(tensor, (count,)).tolist() == elements


# ---------------------------------------------------------------------------------------------- gRPC


def read_infer_message(data: bytes) -> None:
    """A ModelInferRequest: with tensors and numbers cut out, and as protobuf reads it whole."""
    try:
        whole = ModelInferRequest.FromString(data)
    except DecodeError:
        whole = None
    try:
        parsed = parsing.parse_request(data, large_bytes=0)
    except InferenceError:
        return  # it is too wide
    except DecodeError:
        assert whole is None, "protobuf takes what was refused"
        return
    assert whole is not None, "protobuf refuses what was read"
    assert [bytes(one) for one in parsed.raw] == list(whole.raw_input_contents)
    cut, message = [*parsed.typed.items()], parsed.message
    try:
        grpc_codec.decode_request(message, None, _regions(), raw=parsed.raw, typed=parsed.typed)
    except InferenceError:
        pass
    del whole.raw_input_contents[:]
    del message.raw_input_contents[:]
    for index, typed in cut:
        contents = whole.inputs[index].contents
        ((field, values),) = contents.ListFields() or ((None, ()),)
        assert field is None or field.number == typed.number
        assert _same(typed.values.tolist(), list(values)), (typed, values)
        contents.Clear()
        message.inputs[index].contents.Clear()
    assert message.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


# ---------------------------------------------------------------------------------------------- HTTP/2


def read_header_block(data: bytes) -> None:
    """A header block of HPACK: it is read as the library hpack does, and one that is said to leave the table alone does."""
    decoder, library = HeaderDecoder(64 << 10), hpack.Decoder(64 << 10)
    try:
        expected = list(library.decode(data, raw=True))
    except (hpack.HPACKError, IndexError, ValueError, OverflowError):
        expected = None
    try:
        fields, keeps_table = decoder.decode(data)
    except frames.ConnectionFault:
        # The library takes integers of any length.
        assert expected is None or _LONG_INTEGER.search(data), expected
        return
    assert fields == expected, (fields, expected)
    if keeps_table:
        assert library.header_table.dynamic_entries == hpack.Decoder().header_table.dynamic_entries
        assert decoder.decode(data) == (fields, True)


class _Wire(asyncio.Transport):
    """What a connection writes to: it keeps the bytes, and is closed when it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self.is_closed = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing is read by itself here."""

    resume_reading = pause_reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class _Http2:
    """The parts that serve HTTP/2 connections of an engine without models, in a loop that runs on demand."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.run_until_complete(self._build())

    async def _build(self) -> None:
        from pytriton_lite.engine.server import Server, ServerOptions
        from pytriton_lite.engine.workers.settings import WorkerSettings
        from pytriton_lite.frontends.grpc.calls import CallsInFlight
        from pytriton_lite.frontends.grpc.control_methods import ControlMethods
        from pytriton_lite.frontends.grpc.http2_call import Endpoint
        from pytriton_lite.frontends.grpc.options import GrpcOptions
        from pytriton_lite.frontends.grpc.servicer import Servicer

        workers = WorkerSettings(
            executable="/nonexistent", shm_prefix="fuzz", ring_bytes=1 << 20, hello_timeout_s=1, ready_timeout_s=1
        )
        self.calls = CallsInFlight()
        self.options = GrpcOptions(max_message_bytes=_MAX_INPUT_BYTES)
        server = Server(ServerOptions(repositories=(), workers=workers))
        self.endpoint = Endpoint(Servicer(server, ControlMethods(server)), self.calls, self.options)

    async def serve(self, data: bytes) -> bytes:
        """What a connection writes that gets *data*, in two pieces of which the first byte of *data* is the first's size."""
        from pytriton_lite.frontends.grpc.http2_connection import Http2Connection

        lost: list[object] = []
        connection = Http2Connection(
            self.endpoint,
            self.options,
            on_made=lambda _: None,
            on_lost=lost.append,
            on_told=lambda _: None,
            unread=UnreadBudget(None),
        )
        wire = _Wire()
        connection.connection_made(wire)
        cut = data[0] if data else 0
        for piece in (frames.PREFACE, data[1 : 1 + cut], data[1 + cut :]):
            if piece:
                connection.data_received(piece)
                await asyncio.sleep(0)
        for _ in range(8):  # what is done at the end of a turn, and what that begins
            await asyncio.sleep(0)
        connection.connection_lost(None)
        for _ in range(4):
            await asyncio.sleep(0)
        assert lost == [connection], "a connection is lost once"
        assert self.calls.count == 0, f"{self.calls.count} calls outlive their connection"
        return bytes(wire.written)


@cache
def _http2() -> _Http2:
    return _Http2()


def serve_http2(data: bytes) -> None:
    """Bytes behind the preface of HTTP/2: nothing is raised, no call outlives the connection, what is written are frames."""
    http2 = _http2()
    written = http2.loop.run_until_complete(http2.serve(data))
    at = 0
    while at < len(written):
        high, low, kind, _, _ = frames.read_head(written, at)
        assert kind in (frames.DATA, frames.HEADERS, frames.RST_STREAM, frames.SETTINGS, frames.PING, frames.GOAWAY, 8)
        at += frames.FRAME_HEAD_BYTES + (high << 16 | low)
    assert at == len(written)


def serve_http2_frames(data: bytes) -> None:
    """The same, but lengths are made to fit: kind, flags, stream and length in a byte each, then the payload."""
    built = bytearray(b"\xff") + frames.settings_frame({})
    at = 0
    while at + 4 <= len(data):
        kind, flags, stream, length = data[at : at + 4]
        payload = data[at + 4 : at + 4 + length]
        built += frames.frame(kind % 12, flags, stream % 16, payload)
        at += 4 + length
    serve_http2(bytes(built))


# ---------------------------------------------------------------------------------------------- configurations


def read_config(data: bytes) -> None:
    """The text of a config.pbtxt: what is taken comes back from protobuf's own text as it was."""
    text = data.decode("utf-8", "surrogateescape")
    found = read_config_text(text, source="config.pbtxt")
    if not found.errors:
        read_again = parse_model_config(_as_text(found.message), source="again")
        assert read_again.SerializeToString(deterministic=True) == found.message.SerializeToString(deterministic=True)


def _as_text(message: Any) -> str:
    from google.protobuf import text_format

    return str(text_format.MessageToString(message))


def read_override(data: bytes) -> None:
    """The JSON configuration of a load request."""
    try:
        parse_config_override(data.decode("utf-8", "surrogateescape"))
    except PollError:
        pass


# ---------------------------------------------------------------------------------------------- worker messages

_READERS: tuple[Callable[[memoryview], object], ...] = (
    lambda body: messages.read_result(body, messages.SpecTable()),
    lambda body: messages.read_response(body, messages.SpecTable()),
    lambda body: messages.read_call(body, messages.SpecTable()),
    messages.read_release,
    messages.read_segment,
    messages.read_drop,
    messages.read_hello,
    messages.read_failed,
    messages.read_completed,
    messages.read_log,
    messages.read_abandon,
    messages.read_taken,
    messages.read_returned,
    messages.read_ask,
    messages.read_tell,
    messages.read_probed,
)


def read_worker_message(data: bytes) -> None:
    """What a worker may send: the first byte chooses the message. A body that is none raises what its reader catches."""
    if not data:
        return
    try:
        _READERS[data[0] % len(_READERS)](memoryview(data)[1:])
    except (ProtocolError, struct.error, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        pass  # WorkerProcess ends a worker for any of them


def cut_frames(data: bytes) -> None:
    """A byte stream: in one piece and in many it has the same frames."""
    whole: list[tuple[int, bytes]] | None
    try:
        whole = [(kind, bytes(body)) for kind, body in FrameReader().feed(data)]
    except ProtocolError:
        whole = None
    reader = FrameReader()
    pieces: list[tuple[int, bytes]] | None = []
    step = 1 + (data[0] % 13 if data else 0)
    try:
        for at in range(0, len(data), step):
            for kind, body in reader.feed(data[at : at + step]):
                assert len(body) <= LARGEST_FRAME
                pieces.append((kind, bytes(body)))
    except ProtocolError:
        pieces = None
    assert whole == pieces


_INFER_JSON = (
    b'{"id":"7","inputs":[{"name":"NUMBERS","datatype":"FP32","shape":[2],"data":[1.5,-2]},'
    b'{"name":"TEXT","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}}],'
    b'"outputs":[{"name":"ANSWER","parameters":{"binary_data":true,"classification":2}}],'
    b'"parameters":{"sequence_id":3,"sequence_start":true,"priority":1,"timeout":5}}'
)


def _message_seed() -> bytes:
    message = ModelInferRequest(model_name="fuzzed", model_version="1", id="7", raw_input_contents=[b"\0" * 8, b""])
    message.inputs.add(name="NUMBERS", datatype="FP32", shape=[2])
    typed = message.inputs.add(name="TEXT", datatype="BYTES", shape=[1])
    typed.contents.bytes_contents.append(b"hi")
    typed.parameters["shared_memory_region"].string_param = "r"
    # Long enough for its contents to be cut out.
    message.inputs.add(name="LONGS", datatype="INT64", shape=[600]).contents.int64_contents.extend(range(600))
    message.outputs.add(name="ANSWER").parameters["classification"].int64_param = 2
    message.parameters["sequence_id"].int64_param = 3
    return bytes(message.SerializeToString())


def _header_seed() -> bytes:
    path = b"/inference.GRPCInferenceService/ServerLive"
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b"content-type", b"application/grpc")]
    return bytes(hpack.Encoder().encode(fields, huffman=False))


def _frame_seed() -> bytes:
    block = _header_seed()
    call = bytes((frames.HEADERS, frames.END_HEADERS, 1, len(block))) + block
    data = bytes((frames.DATA, frames.END_STREAM, 1, 5)) + bytes(5)
    return call + data + bytes((frames.PING, 0, 0, 8)) + bytes(8) + bytes((frames.WINDOW_UPDATE, 0, 1, 4, 0, 0, 1, 0))


def _connection_seed() -> bytes:
    """What `_frame_seed` says, as the frames that a connection gets."""
    block = _header_seed()
    return (
        b"\x30"
        + frames.settings_frame({4: 1000})
        + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block)
        + frames.frame(frames.DATA, frames.END_STREAM, 1, bytes(5))
        + frames.frame(frames.HEADERS, 0, 3, block[:9])
        + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 3, block[9:])
        + frames.frame(frames.DATA, frames.PADDED, 3, b"\1" + bytes(4))
        + frames.frame(frames.RST_STREAM, 0, 3, bytes((0, 0, 0, 8)))
        + frames.window_update(0, 5)
        + frames.goaway(0, frames.Http2Error.NO_ERROR, "bye")
    )


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target(
            "infer-json", read_infer_document, (len(_INFER_JSON).to_bytes(2, "little") + _INFER_JSON + b"\2\0\0\0hi",)
        ),
        Target("json", read_json, (_INFER_JSON, b'\xef\xbb\xbf[NaN,-Infinity,1e400,"\\ud83d\\ude00"]\0')),
        Target("generate", read_generate_document, (b'{"TEXT":"a","NUMBERS":[1,2],"parameters":{"FLAG":true}}',)),
        Target("bytes-tensor", read_bytes_tensor, (b"\2\1\0\0\0a\0\0\0\0",)),
        Target("infer-protobuf", read_infer_message, (_message_seed(),)),
        Target("hpack", read_header_block, (_header_seed(),)),
        Target("http2", serve_http2, (_connection_seed(),)),
        Target("http2-frames", serve_http2_frames, (_frame_seed(),)),
        Target("pbtxt", read_config, (_CONFIG.encode(),)),
        Target("override", read_override, (b'{"name":"fuzzed","input":[{"name":"A","dims":["1",-1]}]}',)),
        Target(
            "worker-message", read_worker_message, tuple(bytes((kind,)) + bytes(60) for kind in range(len(_READERS)))
        ),
        Target("worker-frames", cut_frames, (b"\1\0\0\0\2\0\0\0x\0\0\0\0\3\0\0\0",)),
    )
}
