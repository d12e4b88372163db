"""Large and wide requests: what is cut out is what protobuf would have read, and what is too wide is refused in time."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import grpc
import numpy as np
import pytest
from grpc_fakes import FakeServer
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import MAX_DIMENSIONS, Elements
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.grpc import parsing
from pytriton_lite.frontends.grpc.codec import decode_request
from pytriton_lite.frontends.grpc.http2_call import SlowParsings
from pytriton_lite.frontends.grpc.parsing import MAX_TENSORS
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from pytriton_lite.proto.message import DecodeError

LARGE = parsing.LARGE_BYTES
SERVICE = "/inference.GRPCInferenceService/"
NO_REGIONS = Regions(is_allowed=False)


def varint(number: int) -> bytes:
    octets = bytearray()
    while number > 0x7F:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content


@st.composite
def large_requests(draw: st.DrawFn) -> ModelInferRequest:
    """Requests of which `parse_request` cuts the raw contents out: some entries small, one large."""
    message = ModelInferRequest(model_name=draw(st.text(max_size=8)), id=draw(st.text(max_size=8)))
    for name in draw(st.lists(st.text(max_size=4), max_size=3)):
        message.inputs.add(name=name, datatype="UINT8", shape=draw(st.lists(st.integers(-(1 << 63), (1 << 63) - 1))))
        message.parameters[name].int64_param = draw(st.integers(-5, 5))
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=9), max_size=3)))
    message.raw_input_contents.append(bytes(LARGE))
    message.raw_input_contents.extend(draw(st.lists(st.binary(max_size=9), max_size=3)))
    return message


@given(large_requests(), st.booleans())
def test_a_large_request_is_parsed_as_protobuf_parses_it(sent: ModelInferRequest, as_view: bool) -> None:
    data = sent.SerializeToString()
    message, raw, *_ = parsing.parse_request(memoryview(data) if as_view else data)
    assert [bytes(entry) for entry in raw] == list(sent.raw_input_contents)
    del sent.raw_input_contents[:]
    assert message == sent


@given(large_requests(), st.data())
def test_a_large_request_that_was_damaged_is_refused_or_read_as_protobuf_reads_it(
    sent: ModelInferRequest, data: st.DataObject
) -> None:
    spoilt = bytearray(sent.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, min(len(spoilt) - 1, 200)))] = data.draw(st.integers(0, 255))
    spoilt = spoilt[: data.draw(st.sampled_from([len(spoilt), LARGE + 3]))]
    try:
        expected = ModelInferRequest.FromString(bytes(spoilt))
    except DecodeError:
        with pytest.raises(DecodeError):
            parsing.parse_request(bytes(spoilt))
        return
    message, raw, *_ = parsing.parse_request(bytes(spoilt))
    assert [bytes(entry) for entry in raw] == list(expected.raw_input_contents)
    del expected.raw_input_contents[:], message.raw_input_contents[:]
    assert message == expected


def test_the_raw_contents_of_a_large_request_are_not_copied() -> None:
    data = ModelInferRequest(raw_input_contents=[b"a" * LARGE]).SerializeToString()
    _, (entry,), *_ = parsing.parse_request(data)
    assert isinstance(entry, memoryview)
    assert entry.obj is data


@given(large_requests())
def test_the_first_large_tensor_is_found_in_the_begin_of_a_request(sent: ModelInferRequest) -> None:
    data = sent.SerializeToString()
    at = data.index(bytes(LARGE))
    for begun in (data, data[:at], memoryview(data)[: at + 5]):
        assert parsing.tensor_at(begun, len(data)) == at
    for too_little in (b"", data[: at - 1], data[: at // 2]):
        assert parsing.tensor_at(too_little, len(data)) == 0


@given(st.binary(max_size=60), st.integers(0, 1 << 33))
def test_where_no_tensor_is_found_none_is_said_to_be_there(begun: bytes, nbytes: int) -> None:
    """Whatever it is: who reads all of it refuses it."""
    at = parsing.tensor_at(begun, nbytes)
    assert at == 0 or begun[:at].count(0x3A) > 0


def decoded(message: ModelInferRequest) -> list[tuple[str, bytes]] | str:
    try:
        request = decode_request(message, None, NO_REGIONS)
    except InferenceError as error:
        return error.message
    return [(tensor.name, bytes(tensor.data or b"")) for tensor in request.inputs]


def decoded_large(data: bytes) -> list[tuple[str, bytes]] | str:
    message, raw, typed, _ = parsing.parse_request(data)
    try:
        request = decode_request(message, None, NO_REGIONS, raw, typed)
    except InferenceError as error:
        return error.message
    return [(tensor.name, bytes(tensor.data or b"")) for tensor in request.inputs]


class TestTypedContents:
    """Numbers of large messages are decoded by numpy, and not one by one."""

    NUMBERS: ClassVar[dict[str, tuple[str, Any]]] = {
        "BOOL": ("bool_contents", lambda dice: dice.random() < 0.5),
        "INT8": ("int_contents", lambda dice: dice.randrange(-(1 << 31), 1 << 31)),
        "INT32": ("int_contents", lambda dice: dice.randrange(-(1 << dice.randrange(31)), 1 << dice.randrange(31))),
        "INT64": ("int64_contents", lambda dice: dice.randrange(-(1 << dice.randrange(63)), 1 << dice.randrange(63))),
        "UINT16": ("uint_contents", lambda dice: dice.randrange(1 << 16)),
        "UINT32": ("uint_contents", lambda dice: dice.randrange(1 << dice.randrange(1, 33))),
        "UINT64": ("uint64_contents", lambda dice: dice.randrange(1 << dice.randrange(1, 65))),
        "FP32": ("fp32_contents", lambda dice: dice.uniform(-9, 9)),
        "FP64": ("fp64_contents", lambda dice: dice.uniform(-9, 9)),
        "BYTES": ("bytes_contents", lambda dice: dice.randbytes(dice.randrange(9))),
        "FP16": ("fp32_contents", lambda dice: 1.0),
        "UINT8": ("int_contents", lambda dice: 1),
    }

    @pytest.mark.parametrize("datatype", NUMBERS)
    def test_they_are_what_protobuf_reads(self, datatype: str) -> None:
        name, number = self.NUMBERS[datatype]
        dice = random.Random(datatype)
        message = ModelInferRequest(model_name="m")
        message.inputs.add(name="A", datatype="INT32", shape=[1]).contents.int_contents.append(-7)
        values = [number(dice) for _ in range(70_000)]
        getattr(message.inputs.add(name="B", datatype=datatype, shape=[len(values)]).contents, name).extend(values)
        message.inputs.add(name="C", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
        data = message.SerializeToString()
        if datatype == "BYTES":
            data = ModelInferRequest.FromString(data).SerializeToString()
            del message.inputs[1].contents.bytes_contents[30_000:]
            data = message.SerializeToString()
        assert len(data) > LARGE
        assert decoded_large(data) == decoded(message)

    def test_more_than_a_chunk_of_them(self) -> None:
        values = np.random.default_rng(7).integers(-(1 << 62), 1 << 62, 600_000) >> np.arange(600_000) % 63
        message = ModelInferRequest(model_name="m")
        message.inputs.add(name="A", datatype="INT64", shape=[600_000]).contents.int64_contents.extend(values.tolist())
        _, _, typed, _ = parsing.parse_request(message.SerializeToString())
        assert np.array_equal(typed[0].values, values)

    @pytest.mark.parametrize(
        "contents",
        [
            pytest.param(field(0x12, b"\x80" * 70_000), id="without an end"),
            pytest.param(field(0x12, b"\1" * 70_000 + b"\x80"), id="cut off"),
            pytest.param(field(0x12, b"\x80" * 11 + b"\1" * 70_000), id="eleven octets"),
            pytest.param(field(0x32, b"\1" * 70_001), id="within a float"),
        ],
    )
    def test_broken_numbers_are_no_request(self, contents: bytes) -> None:
        data = field(0x2A, field(0x2A, contents))
        with pytest.raises(DecodeError):
            ModelInferRequest.FromString(data)
        with pytest.raises(DecodeError):
            parsing.parse_request(data)

    @pytest.mark.parametrize(
        "contents",
        [
            pytest.param([field(0x12, b"\1" * LARGE), field(0x12, b"\2")], id="two contents"),
            pytest.param([field(0x12, b"\1" * LARGE) + field(0x12, b"\2")], id="packed twice"),
            pytest.param([field(0x12, b"\1" * LARGE) + b"\x10\2"], id="packed and one by one"),
            pytest.param([field(0x12, b"\1" * LARGE) + field(0x32, bytes(8))], id="of two types"),
            pytest.param([field(0x12, b"") + field(0x42, b"a" * LARGE)], id="an empty one and texts"),
        ],
    )
    def test_odd_encodings_are_left_to_protobuf(self, contents: list[bytes]) -> None:
        tensor = field(0x0A, b"A") + field(0x12, b"INT32") + b"".join(field(0x2A, one) for one in contents)
        data = field(0x2A, tensor)
        assert decoded_large(data) == decoded(ModelInferRequest.FromString(data))


WIDE: dict[str, Callable[[], bytes]] = {
    "unknown numbers": lambda: b"\x48\1" * (1 << 20),
    "no field": lambda: b"\0\0" * (1 << 20),
    "raw contents": lambda: b"\x3a\0" * (1 << 20),
    "inputs": lambda: b"\x2a\0" * (1 << 20),
    "outputs": lambda: b"\x32\0" * (1 << 20),
    "parameters": lambda: b"".join(field(0x22, field(0x0A, b"%06x" % number)) for number in range(200_000)),
    "parameters of an input": lambda: field(
        0x2A, b"".join(field(0x22, field(0x0A, b"%06x" % n)) for n in range(200_000))
    ),
    "dimensions": lambda: field(0x2A, field(0x1A, b"\1" * (2 << 20))),
    "dimensions one by one": lambda: field(0x2A, b"\x18\1" * (1 << 20)),
    "texts": lambda: field(0x2A, field(0x2A, b"\x42\0" * (1 << 20))),
    "numbers one by one": lambda: field(0x2A, field(0x2A, b"\x10\1" * (1 << 20))),
    "inputs below the size that is looked into": lambda: field(0x2A, b"\x22\0" * 400) * 2500,
    "name": lambda: field(0x0A, b"x" * (2 << 20)),
    "group": lambda: b"\x4b" + b"\x50\1" * (1 << 20) + b"\x4c",
}


@functools.cache
def wide(kind: str) -> bytes:
    """One of `WIDE`, made when it is first asked for: each process of the run imports this file."""
    return WIDE[kind]()


class TestWideRequests:
    @pytest.mark.parametrize("kind", WIDE)
    def test_it_is_refused_without_protobuf(self, kind: str) -> None:
        assert len(wide(kind)) > parsing.MAX_WEIGHT_BYTES
        assert parsing.parse_quickly(wide(kind)) is None
        with pytest.raises(InferenceError) as caught:
            parsing.parse_request(wide(kind))
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert "request has more than" in caught.value.message

    def test_as_many_fields_as_are_allowed_are_taken(self) -> None:
        data = field(0x0A, b"m") + b"\x3a\0" * (parsing.MAX_FIELDS - 1)
        message, raw, *_ = parsing.parse_request(data)
        assert message.model_name == "m"
        assert len(raw) == parsing.MAX_FIELDS - 1
        with pytest.raises(InferenceError):
            parsing.parse_request(data + b"\x3a\0")

    def test_long_texts_are_taken(self) -> None:
        message = ModelInferRequest(model_name="m")
        message.parameters["prompt"].string_param = "x" * (4 << 20)
        message.inputs.add(name="A", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"y" * (4 << 20)] * 2)
        parsed = parsing.parse_request(message.SerializeToString())
        assert parsed.message == message

    def test_many_short_texts_weigh_less_than_as_many_bytes_of_fields(self) -> None:
        message = ModelInferRequest(model_name="m")
        texts = [b"y" * 100] * 10_000
        message.inputs.add(name="A", datatype="BYTES", shape=[len(texts)]).contents.bytes_contents.extend(texts)
        assert parsing.parse_request(message.SerializeToString()).message == message

    @pytest.mark.parametrize("kind", WIDE)
    def test_long_walks_stop_when_their_slice_is_over(self, kind: str) -> None:
        """However the fields are nested, and from the first few hundred of them on."""
        slow = parsing.SlowParsing(wide(kind))
        slices = 0
        with pytest.raises(InferenceError):
            while not slow.walk(lambda: True):
                slices += 1
        assert slices >= 1
        assert slices <= parsing.MAX_FIELDS

    def test_walk_in_slices_ends_as_one_that_goes_through(self) -> None:
        message = ModelInferRequest(model_name="m", raw_input_contents=[b"r" * 5000])
        message.parameters["prompt"].string_param = "x" * 100_000
        message.inputs.add(name="A", datatype="BYTES", shape=[3000]).contents.bytes_contents.extend([b"y" * 9] * 3000)
        data = message.SerializeToString()
        slow = parsing.SlowParsing(data)
        slices = 0
        while not slow.walk(lambda: True):
            slices += 1
        assert slices > 3000 // 512
        assert slow.finish() == parsing.parse_request(data)

    @pytest.mark.parametrize("what", ["inputs", "outputs"])
    def test_more_tensors_than_any_model_has_are_refused(self, what: str) -> None:
        message = ModelInferRequest(model_name="m")
        for _ in range(MAX_TENSORS + 1):
            getattr(message, what).add()
        assert decoded(message) == f"request has {MAX_TENSORS + 1} {what}, the limit is {MAX_TENSORS}"

    def test_more_dimensions_than_any_tensor_has_are_refused(self) -> None:
        message = ModelInferRequest(model_name="m", raw_input_contents=[b""])
        message.inputs.add(name="A", datatype="FP32", shape=[1 << 62] * 60_000)
        assert decoded(message) == f"tensor 'A' has 60000 dimensions, the limit is {MAX_DIMENSIONS}"


def with_texts(count: int, *, id: str = "") -> ModelInferRequest:
    """A request with a tensor in a region, one of numbers, and *count* short texts."""
    message = ModelInferRequest(model_name="echo", id=id)
    message.inputs.add(name="R", datatype="BYTES", shape=[1]).parameters["shared_memory_region"].string_param = "r"
    message.inputs.add(name="N", datatype="UINT8", shape=[200_000])
    message.inputs.add(name="T", datatype="BYTES", shape=[count])
    message.raw_input_contents.extend([bytes(200_000), b"\1\0\0\0x" * count])
    return message


class TestTextsOfManyElements:
    def test_they_are_counted_in_slices(self) -> None:
        parsed = parsing.parse_quickly(with_texts(50_000).SerializeToString())
        assert parsed is not None
        counting = parsing.TextCounting.of(parsed)
        assert counting is not None
        slices = 1
        while not counting.walk(lambda: True):
            slices += 1
        assert slices > 50_000 // 4096
        counted = counting.finish()
        assert counted.texts == {1: Elements(50_000, 250_000)}
        assert parsing.TextCounting.of(counted) is None

    @pytest.mark.parametrize(
        "message",
        [with_texts(5000), ModelInferRequest(model_name="m", raw_input_contents=[bytes(200_000)])],
        ids=["few", "of no tensor"],
    )
    def test_what_is_no_such_is_left_alone(self, message: ModelInferRequest) -> None:
        parsed = parsing.parse_request(message.SerializeToString())
        assert parsing.TextCounting.of(parsed) is None

    def test_one_long_text_is_none(self) -> None:
        message = ModelInferRequest(model_name="m", raw_input_contents=[varint(0) * 300_000])
        message.inputs.add(name="T", datatype="BYTES", shape=[1])
        assert parsing.TextCounting.of(parsing.parse_request(message.SerializeToString())) is None

    @pytest.mark.parametrize("shape", [[1] * MAX_DIMENSIONS + [300_000], [-1, 300_000], [-1, *[127] * 250_000]])
    def test_those_of_a_shape_that_is_refused_are_not_counted(self, shape: list[int]) -> None:
        message = ModelInferRequest(model_name="m", raw_input_contents=[bytes(1_200_000)])
        message.inputs.add(name="T", datatype="BYTES", shape=shape)
        assert parsing.TextCounting.of(parsing.parse_request(message.SerializeToString())) is None

    def test_those_of_a_request_with_too_many_tensors_are_not_counted(self) -> None:
        message = with_texts(50_000)
        for _ in range(MAX_TENSORS):
            message.inputs.add()
        assert parsing.TextCounting.of(parsing.parse_request(message.SerializeToString())) is None


class WalkedTwice:
    """A call whose message is walked over, and then what is in it."""

    def __init__(self, parsings: SlowParsings) -> None:
        self._parsings = parsings
        self.parsing: Any = SimpleNamespace(walk=lambda is_over: True)
        self.walked = 0

    def on_walked(self, error: Exception | None) -> None:
        self.walked += 1
        if self.walked == 1:
            self._parsings.add(cast(Any, self))


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_slow_parsings_wait_once_for_their_turn_also_where_a_call_comes_again() -> None:
    """Each time more would be a slice of the loop that others wait for, and none of them would ever go away."""

    async def scenario() -> None:
        share = share_of(asyncio.get_running_loop())
        parsings = SlowParsings()
        calls = [WalkedTwice(parsings) for _ in range(20)]
        for call in calls:
            parsings.add(cast(Any, call))
            assert share._others.count(parsings) == 1
            while call.walked < 2:
                await asyncio.sleep(0)
                assert share._others.count(parsings) <= 1
        assert not share._others

    asyncio.run(scenario())


class TestOverASocket:
    """On both transports."""

    @pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
    def test_many_texts_come_to_the_engine_counted(
        self, engine: FakeServer, infer: Any, compression: grpc.Compression
    ) -> None:
        message = with_texts(50_000)
        del message.inputs[0]
        response = ModelInferResponse.FromString(
            infer(message.SerializeToString(), compression=compression, timeout=20)
        )
        assert response.raw_output_contents[1] == message.raw_input_contents[1]
        assert [tensor.elements for tensor in engine.seen[-1].inputs] == [None, Elements(50_000, 250_000)]

    def test_many_texts_of_a_stream_come_to_the_engine_counted_and_in_order(
        self, engine: FakeServer, channel: grpc.Channel
    ) -> None:
        messages = [with_texts(50_000, id="1"), with_texts(10, id="2")]
        for message in messages:
            del message.inputs[0]
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")
        answers = call(iter([message.SerializeToString() for message in messages]), timeout=20)
        assert [ModelStreamInferResponse.FromString(one).infer_response.id for one in answers] == ["1", "2"]
        assert [request.inputs[1].elements for request in engine.seen[-2:]] == [Elements(50_000, 250_000), None]

    @pytest.fixture
    def infer(self, channel: grpc.Channel) -> Any:
        return channel.unary_unary(SERVICE + "ModelInfer")

    @pytest.mark.parametrize("kind", WIDE)
    @pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
    def test_wide_request_is_refused_by_name(self, infer: Any, kind: str, compression: grpc.Compression) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            infer(wide(kind), compression=compression, timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "request has more than" in caught.value.details()

    def test_wide_request_of_a_stream_is_answered_there(self, engine: FakeServer, channel: grpc.Channel) -> None:
        good = ModelInferRequest(model_name="echo", id="7", raw_input_contents=[bytes(4)])
        good.inputs.add(name="X", datatype="UINT8", shape=[4])
        call = channel.stream_stream(SERVICE + "ModelStreamInfer")
        answers = call(iter([wide("raw contents"), good.SerializeToString()]), timeout=20)
        first, second = [ModelStreamInferResponse.FromString(answer) for answer in answers]
        assert "request has more than" in first.error_message
        assert second.infer_response.id == "7"

    def test_large_typed_contents_are_served(self, infer: Any) -> None:
        message = ModelInferRequest(model_name="echo")
        values = list(range(-100_000, 100_000))
        message.inputs.add(name="X", datatype="INT32", shape=[len(values)]).contents.int_contents.extend(values)
        response = ModelInferResponse.FromString(infer(message.SerializeToString(), timeout=20))
        assert np.array_equal(np.frombuffer(response.raw_output_contents[0], "<i4"), values)

    @pytest.mark.parametrize("method", ["TraceSetting", "LogSettings", "ModelReady", "SystemSharedMemoryRegister"])
    def test_methods_without_large_messages_refuse_them(self, channel: grpc.Channel, method: str) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(SERVICE + method)(field(0x0A, b"x" * (64 << 10)), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "Received message larger than max (65540 vs. 65536)"

    def test_load_request_may_bring_large_files_and_not_many_fields(
        self, engine: FakeServer, channel: grpc.Channel
    ) -> None:
        engine.explicit = True
        load = channel.unary_unary(SERVICE + "RepositoryModelLoad")
        file = field(0x1A, field(0x0A, b"file:1/model.py") + field(0x12, field(0x22, b"x" * (1 << 20))))
        load(field(0x12, b"m") + file, timeout=20)
        assert engine.changes[-1][3] == {"1/model.py": b"x" * (1 << 20)}
        for wide in (b"\x1a\0" * 40_000, field(0x1A, b"\x0a\0" * 40_000), b"\x7a\0" * 40_000):
            # A name is no message, and behind a group of an unknown field protobuf reads on.
            for before in (b"", field(0x12, b"m"), b"\x7b\x7c", field(0x1A, b"\x7b\x7c")):
                with pytest.raises(grpc.RpcError) as caught:
                    load(before + wide, timeout=20)
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert "request may have" in caught.value.details() or "nobody sends" in caught.value.details()

    def test_server_answers_others_while_it_is_sent_wide_requests(self, infer: Any, channel: grpc.Channel) -> None:
        """Before, each of these held the loop for seconds of work, and it is work that is counted: a machine that
        stands still while a call is on its way lets its wall time grow and not the process's."""
        data = wide("unknown numbers") * 5
        calls = [infer.future(data, compression=grpc.Compression.Gzip, timeout=60) for _ in range(8)]
        live = channel.unary_unary(SERVICE + "ServerLive")
        slowest = 0.0
        while not all(call.done() for call in calls):
            began, worked = time.monotonic(), time.process_time()
            live(b"", timeout=20)
            slowest = max(slowest, min(time.monotonic() - began, time.process_time() - worked))
        assert slowest < 2
        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
