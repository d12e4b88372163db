"""Messages known again: what they give is what protobuf gives, and what is unusual goes protobuf's way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import PackedForm, Tensor, Window
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.grpc.codec import decode_request, encode_response_parts, encode_stream_response
from pytriton_lite.frontends.grpc.templates import RequestTemplates, ResponseTemplates
from pytriton_lite.ipc.messages import form_of
from pytriton_lite.proto.grpc_service_pb import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

Input = ModelInferRequest.InferInputTensor
Output = ModelInferRequest.InferRequestedOutputTensor
NO_REGIONS = Regions(is_allowed=False)
SIZES = (0, 1, 127, 128, 300)


class Memory(Regions):
    """Regions that are there, but for those that are `gone`, with bytes that say which piece of which region they are."""

    def __init__(self) -> None:
        super().__init__(is_allowed=True)
        self.asked: list[tuple[str, int, int]] = []
        self.gone: set[str] = set()

    def window(self, region: str, offset: int, byte_size: int) -> Any:
        self.asked.append((region, offset, byte_size))
        if region in self.gone:
            raise InferenceError(ErrorCode.NOT_FOUND, f"Unable to find shared memory region: '{region}'")
        return Window(f"segment of {region}", offset, byte_size)  # type: ignore[arg-type]

    def tensor(
        self, name: str, datatype: Any, shape: tuple[int, ...], *, region: str, offset: int, byte_size: int
    ) -> Tensor:
        self.window(region, offset, byte_size)
        return Tensor(name, datatype, shape, f"{region} {offset} {byte_size} {len(self.asked)}".encode(), byte_size)


def message(request_id: str = "", *, data: tuple[bytes, ...] = (b"abcd", b"e"), **fields: Any) -> ModelInferRequest:
    inputs = [Input(name=f"I{at}", datatype="UINT8", shape=[len(each)]) for at, each in enumerate(data)]
    return ModelInferRequest(
        **{"model_name": "m", "id": request_id, "inputs": inputs, "raw_input_contents": data, **fields}
    )


def serialized(sent: ModelInferRequest) -> bytes:
    return sent.SerializeToString()


def kept(templates: RequestTemplates, data: bytes) -> InferenceRequest:
    """The request that *data* is by protobuf, offered to *templates*."""
    parsed = ModelInferRequest.FromString(data)
    request = decode_request(parsed, 3, NO_REGIONS)
    templates.keep(data, parsed, request)
    return request


def read(templates: RequestTemplates, data: bytes) -> InferenceRequest | None:
    """*data* in the middle of what a connection has read."""
    return templates.read(b"before" + data + b":behind", 6, 6 + len(data))


def described(request: InferenceRequest) -> Any:
    return (
        (request.model_name, request.version, request.request_id, request.requested_outputs, request.classes),
        (request.parameters, request.correlation_id, request.priority, request.timeout_us, request.sequence_flags),
        [(t.name, t.datatype, t.shape, t.nbytes, bytes(t.data or b"")) for t in request.inputs],
    )


@given(
    ids=st.lists(st.text(max_size=150), min_size=2, max_size=4),
    sizes=st.lists(st.sampled_from(SIZES), max_size=3),
    outputs=st.lists(st.sampled_from(["O", "P"]), max_size=2, unique=True),
    classes=st.integers(0, 2),
    data=st.data(),
)
def test_a_template_gives_the_request_that_protobuf_gives(
    ids: list[str], sizes: list[int], outputs: list[str], classes: int, data: st.DataObject
) -> None:
    templates = RequestTemplates(NO_REGIONS)
    parameters = {"classification": InferParameter(int64_param=classes)} if classes else {}
    for turn, request_id in enumerate(ids):
        contents = tuple(data.draw(st.binary(min_size=size, max_size=size)) for size in sizes)
        requested = [Output(name=name, parameters=parameters) for name in outputs]
        sent = serialized(message(request_id, data=contents, outputs=requested))
        known = read(templates, sent)
        expected = kept(templates, sent)
        assert (known is not None) is (turn > 0 and bool(sizes))
        if known is not None:
            assert described(known) == described(expected)


@pytest.mark.parametrize(("shape", "content"), [((1,) * 255, b"abcd"), ((4, (1 << 63) - 1, 0), b"")])
def test_a_template_takes_any_shape_that_a_request_may_have(shape: tuple[int, ...], content: bytes) -> None:
    templates = RequestTemplates(NO_REGIONS)
    sent = serialized(
        ModelInferRequest(
            model_name="m",
            inputs=[Input(name="I", datatype="UINT8", shape=shape)],
            raw_input_contents=[content],
        )
    )
    expected = kept(templates, sent)
    known = read(templates, sent)
    assert known is not None
    assert described(known) == described(expected)


REGION = {
    "shared_memory_region": InferParameter(string_param="r"),
    "shared_memory_byte_size": InferParameter(int64_param=0),
}

UNUSUAL = {
    "parameters": message(parameters={"sequence_id": InferParameter(int64_param=1)}),
    "typed contents": ModelInferRequest(
        model_name="m",
        inputs=[Input(name="I", datatype="INT32", shape=[1], contents=InferTensorContents(int_contents=[7]))],
    ),
    "strings": message(
        inputs=[Input(name="I0", datatype="BYTES", shape=[1])], data=(b"", b""), raw_input_contents=[b"\x01\0\0\0a"]
    ),
    "no tensors": message(data=()),
    "more contents than inputs": message(raw_input_contents=[b"abcd", b"e", b"f"]),
    "a long name": message(model_name="m" * 3000),
    "more than four kilobytes": message(data=(bytes(4097),)),
    "parameters of an input": message(
        inputs=[
            Input(name="I0", datatype="UINT8", shape=[4], parameters={"x": InferParameter(bool_param=True)}),
            Input(name="I1", datatype="UINT8", shape=[1]),
        ]
    ),
}


def place(region: str, offset: int | None, byte_size: int) -> dict[str, InferParameter]:
    said = {
        "shared_memory_region": InferParameter(string_param=region),
        "shared_memory_byte_size": InferParameter(int64_param=byte_size),
    }
    return said if offset is None else {**said, "shared_memory_offset": InferParameter(int64_param=offset)}


PLACES = st.builds(place, st.sampled_from(["r", "s"]), st.none() | st.integers(0, 300), st.integers(0, 300))


@given(
    ids=st.lists(st.text(max_size=150), min_size=2, max_size=4),
    inputs=st.lists(PLACES | st.just({}), max_size=3),
    outputs=st.lists(PLACES | st.just({}), max_size=3),
)
def test_a_template_of_tensors_in_regions_looks_there_for_each_request(
    ids: list[str], inputs: list[dict[str, InferParameter]], outputs: list[dict[str, InferParameter]]
) -> None:
    by_protobuf, by_template = Memory(), Memory()
    templates = RequestTemplates(by_template)
    wanted = [Output(name=f"O{at}", parameters=said) for at, said in enumerate(outputs)]
    given_here = [
        Input(name=f"I{at}", datatype="FP32", shape=[at, 2], parameters=said) for at, said in enumerate(inputs)
    ]
    raw = [bytes(8 * at) for at, said in enumerate(inputs) if not said]
    for turn, request_id in enumerate(ids):
        sent = ModelInferRequest(
            model_name="m", id=request_id, inputs=given_here, outputs=wanted, raw_input_contents=raw
        )
        data = serialized(sent)
        by_template.asked.clear()
        by_protobuf.asked.clear()
        known = read(templates, data)
        expected = decode_request(ModelInferRequest.FromString(data), 3, by_protobuf)
        templates.keep(data, sent, expected)
        if all(inputs) and inputs:
            assert (known is not None) is (turn > 0)
        if known is not None:
            assert described(known) == described(expected)
            assert known.output_windows == expected.output_windows
            assert by_template.asked == by_protobuf.asked


def test_a_region_that_is_gone_is_told_by_the_long_way() -> None:
    memory = Memory()
    templates = RequestTemplates(memory)
    sent = ModelInferRequest(
        model_name="m", inputs=[Input(name="I", datatype="UINT8", shape=[4], parameters=place("r", None, 4))]
    )
    templates.keep(serialized(sent), sent, decode_request(sent, 3, memory))
    assert read(templates, serialized(sent)) is not None
    memory.gone.add("r")
    assert read(templates, serialized(sent)) is None


@pytest.mark.parametrize("sent", UNUSUAL.values(), ids=UNUSUAL)
def test_what_is_unusual_is_not_remembered(sent: ModelInferRequest) -> None:
    templates = RequestTemplates(NO_REGIONS)
    kept(templates, serialized(sent))
    assert read(templates, serialized(sent)) is None


PLAIN = serialized(message("id"))
TEMPLATE_CASES = {
    "another size": serialized(message("id", data=(b"abcde", b"f"), inputs=message().inputs)),
    "one tensor less": serialized(message("id", raw_input_contents=[b"abcd"])),
    "one tensor more": serialized(message("id", raw_input_contents=[b"abcd", b"e", b""])),
    "another model": serialized(message("id", model_name="n")),
    "another version": serialized(message("id", model_version="1")),
    "a second id": PLAIN[:3] + b"\x1a\x01x" + PLAIN[3:],
    "an id that is no text": PLAIN.replace(b"\x1a\x02id", b"\x1a\x02\xff\xff"),
    "a field behind the tensors": PLAIN + b"\x1a\x02no",
    "a number of three octets": PLAIN[:3] + b"\x42\x80\x80\x01" + bytes(1 << 14) + PLAIN[3:],
    "a field that is no text": b"\x08\x01" + PLAIN,
    **{f"cut off at {length}": PLAIN[:length] for length in range(len(PLAIN))},
}


@pytest.mark.parametrize("data", TEMPLATE_CASES.values(), ids=TEMPLATE_CASES)
def test_what_differs_elsewhere_is_not_known_again(data: bytes) -> None:
    templates = RequestTemplates(NO_REGIONS)
    kept(templates, PLAIN)
    assert read(templates, PLAIN) is not None
    assert read(templates, data) is None


def test_an_id_may_stand_anywhere_before_the_tensors() -> None:
    templates = RequestTemplates(NO_REGIONS)
    before_the_model = b"\x1a\x02id" + PLAIN.replace(b"\x1a\x02id", b"")
    expected = kept(templates, before_the_model)
    known = read(templates, before_the_model)
    assert known is not None
    assert described(known) == described(expected)
    assert known.request_id == "id"


def test_templates_are_emptied_rather_than_grow() -> None:
    templates = RequestTemplates(NO_REGIONS)
    for number in range(2000):
        kept(templates, serialized(message(model_name=f"m{number}")))
        assert len(templates._by_rest) <= 512
    assert read(templates, serialized(message("any", model_name="m1999"))) is not None


# ---------------------------------------------------------------------------------------------- responses


def packed(outputs: list[Tensor], request_id: str, *, form: PackedForm | None = None) -> InferenceResponse:
    form = form or form_of(outputs)
    assert form is not None
    pieces = [tensor.content() for tensor in outputs]
    return InferenceResponse("m", 7, request_id, None, {}, form.pack(pieces))


OUTPUTS = st.lists(
    st.builds(
        lambda name, data, is_flat: Tensor(
            name, dtypes.UINT8, (len(data),) if is_flat else (1, len(data)), memoryview(data)
        ),
        st.text(max_size=5),
        st.binary(max_size=300),
        st.booleans(),
    ),
    max_size=3,
)


@given(outputs=OUTPUTS, ids=st.lists(st.text(max_size=150), min_size=1, max_size=3), is_final=st.booleans())
def test_a_template_gives_the_bytes_that_protobuf_gives(outputs: list[Tensor], ids: list[str], is_final: bool) -> None:
    templates = ResponseTemplates()
    form = form_of(outputs)
    for request_id in ids:
        response = packed(outputs, request_id, form=form)
        plain = InferenceResponse("m", 7, request_id, outputs, {})
        parts, size = encode_response_parts(response, templates)
        data = b"".join(parts)
        assert data == b"".join(encode_response_parts(plain)[0])
        assert size == len(data)
        streamed = encode_stream_response(response, is_final=is_final, templates=templates)
        assert ModelStreamInferResponse.FromString(streamed) == ModelStreamInferResponse.FromString(
            encode_stream_response(plain, is_final=is_final)
        )


def test_a_template_of_another_model_or_version_is_not_used() -> None:
    """Behind a front end in a process of its own, outputs of several models may have one form."""
    templates = ResponseTemplates()
    tensor = Tensor("O", dtypes.UINT8, (1,), b"x")
    form = form_of([tensor])
    for name, version in (("m", 7), ("n", 7), ("n", 8), ("m", 7)):
        response = packed([tensor], "", form=form)
        response.model_name, response.version = name, version
        found = ModelInferResponse.FromString(b"".join(encode_response_parts(response, templates)[0]))
        assert (found.model_name, found.model_version) == (name, str(version))


def test_a_response_with_parameters_has_them_in_its_message() -> None:
    response = packed([Tensor("O", dtypes.UINT8, (1,), b"x")], "")
    response.parameters["p"] = 5
    found = ModelInferResponse.FromString(b"".join(encode_response_parts(response, ResponseTemplates())[0]))
    assert found.parameters["p"].int64_param == 5
