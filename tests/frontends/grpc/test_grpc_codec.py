"""ModelInferRequest to InferenceRequest, InferenceResponse to bytes. ``row`` is a row of the checklist of grpc.md."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.grpc import codec, parsing
from pytriton_lite.frontends.grpc.codec import decode_request, encode_response
from pytriton_lite.ipc.messages import encode_spec
from pytriton_lite.proto.grpc_service_pb import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
)

Input = ModelInferRequest.InferInputTensor
Output = ModelInferRequest.InferRequestedOutputTensor
NO_REGIONS = Regions(is_allowed=False)


def with_contents(
    contents: InferTensorContents, datatype: str = "FP32", shape: tuple[int, ...] = (1, 2)
) -> InferenceRequest:
    tensor = Input(name="INPUT0", datatype=datatype, shape=shape, contents=contents)
    return decode_request(ModelInferRequest(model_name="ident_b", inputs=[tensor]), None, NO_REGIONS)


def with_shape(shape: tuple[int, ...], datatype: str = "FP32", data: bytes = b"") -> InferenceRequest:
    tensor = Input(name="INPUT0", datatype=datatype, shape=shape)
    return decode_request(
        ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[data]), None, NO_REGIONS
    )


def with_parameters(**parameters: InferParameter) -> InferenceRequest:
    return decode_request(ModelInferRequest(model_name="m", parameters=parameters), None, NO_REGIONS)


def with_output(**parameters: InferParameter) -> InferenceRequest:
    return decode_request(ModelInferRequest(outputs=[Output(name="OUTPUT0", parameters=parameters)]), None, NO_REGIONS)


def with_input_parameters(
    contents: InferTensorContents | None = None, **parameters: InferParameter
) -> InferenceRequest:
    tensor = Input(name="INPUT0", datatype="FP32", shape=[1], parameters=parameters, contents=contents)
    return decode_request(
        ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[b"abcd"]), None, NO_REGIONS
    )


@contextmanager
def refused(code: ErrorCode, text: str) -> Iterator[None]:
    with pytest.raises(InferenceError) as caught:
        yield
    assert (caught.value.code, caught.value.message) == (code, text)


def invalid(text: str) -> AbstractContextManager[None]:
    return refused(ErrorCode.INVALID_ARG, text)


class TestTensorData:
    def test_raw_entries_are_consumed_in_input_order(self) -> None:
        """Rows 18 and 23: the surplus entry is ignored."""
        message = ModelInferRequest(
            model_name="m",
            id="abc",
            inputs=[
                Input(name="A", datatype="FP32", shape=[1, 4]),
                Input(name="B", datatype="INT8", shape=[2]),
            ],
            outputs=[Output(name="OUTPUT0")],
            raw_input_contents=[b"a" * 16, b"bb", b"surplus"],
        )
        request = decode_request(message, 7, NO_REGIONS)
        assert (request.model_name, request.version, request.request_id) == ("m", 7, "abc")
        assert request.requested_outputs == ["OUTPUT0"]
        assert [(t.name, t.datatype, t.shape, t.data, t.nbytes) for t in request.inputs] == [
            ("A", dtypes.FP32, (1, 4), b"a" * 16, 16),
            ("B", dtypes.INT8, (2,), b"bb", 2),
        ]

    @pytest.mark.parametrize("texts", [[b"a", b"", b"bc"], []])
    def test_texts_in_contents_come_to_the_engine_counted(self, texts: list[bytes]) -> None:
        (got,) = with_contents(InferTensorContents(bytes_contents=texts), "BYTES", (3,)).inputs
        assert got.elements == bytes_tensor.count_elements(got.content(), 10)

    def test_raw_and_contents_together_are_refused(self) -> None:
        """Row 20."""
        tensor = Input(name="INPUT0", datatype="FP32", shape=[1], contents=InferTensorContents(fp32_contents=[1]))
        message = ModelInferRequest(model_name="ident_b", inputs=[tensor], raw_input_contents=[b"abcd"])
        with invalid(
            "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'ident_b'"
        ):
            decode_request(message, None, NO_REGIONS)

    @pytest.mark.parametrize("entries", [[], [b"abcd"]], ids=["row 21: neither", "row 22: two inputs, one entry"])
    def test_input_without_data_is_refused(self, entries: list[bytes]) -> None:
        inputs = [Input(name=name, datatype="FP32", shape=[1]) for name in ("A", "B")]
        missing = "AB"[len(entries)]
        with invalid(f"unable to find data for input tensor '{missing}' for model 'ident_b' in request."):
            decode_request(
                ModelInferRequest(model_name="ident_b", inputs=inputs, raw_input_contents=entries), None, NO_REGIONS
            )

    @pytest.mark.parametrize(
        ("datatype", "contents", "expected"),
        [
            ("BOOL", InferTensorContents(bool_contents=[True, False]), b"\x01\x00"),
            ("INT8", InferTensorContents(int_contents=[-1, 300]), b"\xff\x2c"),
            ("INT16", InferTensorContents(int_contents=[-2, 70000]), struct.pack("<hh", -2, 70000 - 65536)),
            ("INT32", InferTensorContents(int_contents=[-2, 1 << 30]), struct.pack("<ii", -2, 1 << 30)),
            ("INT64", InferTensorContents(int64_contents=[-2, 1 << 62]), struct.pack("<qq", -2, 1 << 62)),
            ("UINT8", InferTensorContents(uint_contents=[1, 257]), b"\x01\x01"),
            ("UINT16", InferTensorContents(uint_contents=[1, 65537]), b"\x01\x00\x01\x00"),
            ("UINT32", InferTensorContents(uint_contents=[1, 1 << 31]), struct.pack("<II", 1, 1 << 31)),
            ("UINT64", InferTensorContents(uint64_contents=[1, 1 << 63]), struct.pack("<QQ", 1, 1 << 63)),
            ("FP32", InferTensorContents(fp32_contents=[0.1, float("inf")]), struct.pack("<ff", 0.1, float("inf"))),
            ("FP64", InferTensorContents(fp64_contents=[0.1, 1e300]), struct.pack("<dd", 0.1, 1e300)),
            ("BYTES", InferTensorContents(bytes_contents=[b"a", b"\xff"]), b"\x01\0\0\0a\x01\0\0\0\xff"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_typed_contents_become_raw(self, datatype: str, contents: InferTensorContents, expected: bytes) -> None:
        """Rows 19 and 28."""
        (tensor,) = with_contents(contents, datatype).inputs
        assert (tensor.data, tensor.nbytes) == (expected, len(expected))

    @pytest.mark.parametrize(
        ("datatype", "contents", "sent", "expected"),
        [
            pytest.param("FP32", InferTensorContents(int_contents=[1, 2]), "INT32", "FP32", id="row 24"),
            ("UINT8", InferTensorContents(int_contents=[1, 2]), "INT32", "UINT8"),
            ("INT8", InferTensorContents(uint_contents=[1, 2]), "UINT32", "INT8"),
            ("BYTES", InferTensorContents(bool_contents=[True]), "BOOL", "BYTES"),
            ("FP16", InferTensorContents(fp32_contents=[1, 2]), "FP32", "FP16"),
            ("FOO", InferTensorContents(fp32_contents=[1, 2]), "FP32", "<invalid>"),
            ("FP64", InferTensorContents(fp32_contents=[1], fp64_contents=[1]), "FP32", "FP64"),
        ],
    )
    def test_wrong_contents_field_is_refused(
        self, datatype: str, contents: InferTensorContents, sent: str, expected: str
    ) -> None:
        with invalid(
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'ident_b' of type "
            f"'{sent}', expected datatype '{expected}'"
        ):
            with_contents(contents, datatype)

    def test_two_contents_fields_are_refused(self) -> None:
        """Row 25."""
        with invalid(
            "unexpected explicit tensor data for input tensor 'INPUT0' for model 'ident_b', binary data was already "
            "supplied."
        ):
            with_contents(InferTensorContents(fp32_contents=[1, 2], fp64_contents=[1, 2]))

    def test_empty_contents_are_no_bytes(self) -> None:
        """Row 27 with contents: right for a zero-element shape; for another the core names the two sizes."""
        assert with_contents(InferTensorContents(), shape=(1, 0)).inputs[0].data == b""

    def test_zero_element_raw_entry_is_data(self) -> None:
        """Row 27."""
        assert with_shape((1, 0)).inputs[0].data == b""

    def test_unknown_datatype_is_left_to_the_core(self) -> None:
        """Row 30."""
        assert with_shape((1,), "FOO").inputs[0].datatype is dtypes.INVALID

    @given(st.lists(st.floats(width=32, allow_nan=False)))
    def test_floats_arrive_unchanged(self, values: list[float]) -> None:
        sent = InferTensorContents.FromString(InferTensorContents(fp32_contents=values).SerializeToString())
        (tensor,) = with_contents(sent, shape=(len(values),)).inputs
        assert tensor.data == np.array(values, np.float32).tobytes()


class TestShapes:
    def test_minus_one_is_left_to_the_core(self) -> None:
        """Row 31: the core names the model."""
        assert with_shape((1, -1)).inputs[0].shape == (1, -1)

    def test_negative_dimension_is_refused(self) -> None:
        """Row 32."""
        with invalid("tensor 'INPUT0' contains an invalid dimension [1,-5]"):
            with_shape((1, -5))

    @pytest.mark.parametrize(
        ("datatype", "shape", "what"),
        [
            pytest.param("FP32", (1, 1 << 62), "byte size", id="row 33"),
            ("INT8", (1 << 32, 1 << 32), "byte size"),
            ("BYTES", (1 << 32, 1 << 32), "element count"),
        ],
    )
    def test_shape_that_overflows_is_refused(self, datatype: str, shape: tuple[int, ...], what: str) -> None:
        with invalid(f"{what} for tensor 'INPUT0' exceeds maximum size of 9223372036854775807"):
            with_shape(shape, datatype)

    def test_largest_shape_that_does_not_overflow_is_left_to_the_core(self) -> None:
        assert with_shape(((1 << 63) - 1,), "UINT8").inputs[0].shape == ((1 << 63) - 1,)

    def test_as_many_dimensions_are_taken_as_a_message_to_a_worker_has(self) -> None:
        taken = with_shape((1,) * 255, "UINT8", b"x").inputs[0]
        assert encode_spec(taken.name, taken.datatype, taken.shape)
        with invalid("tensor 'INPUT0' has 256 dimensions, the limit is 255"):
            with_shape((1,) * 256, "UINT8", b"x")


class TestRequestParameters:
    @pytest.mark.parametrize(
        ("parameter", "expected"),
        [
            (InferParameter(int64_param=42), 42),
            (InferParameter(int64_param=-1), (1 << 64) - 1),
            (InferParameter(string_param="seq"), "seq"),
            (InferParameter(string_param="x" * 128), "x" * 128),
        ],
    )
    def test_sequence_id(self, parameter: InferParameter, expected: int | str) -> None:
        """Row 43."""
        request = with_parameters(sequence_id=parameter)
        assert (request.correlation_id, request.parameters) == (expected, {})

    def test_long_sequence_id_is_refused(self) -> None:
        with refused(ErrorCode.UNSUPPORTED, "string correlation ID cannot be longer than 128 characters"):
            with_parameters(sequence_id=InferParameter(string_param="x" * 129))

    def test_sequence_flags(self) -> None:
        yes, no = InferParameter(bool_param=True), InferParameter(bool_param=False)
        assert with_parameters(sequence_start=yes, sequence_end=yes).sequence_flags == SEQUENCE_START | SEQUENCE_END
        assert with_parameters(sequence_start=no, sequence_end=yes).sequence_flags == SEQUENCE_END
        assert with_parameters(sequence_start=no).sequence_flags == 0

    @pytest.mark.parametrize("parameter", [InferParameter(int64_param=3), InferParameter(uint64_param=3)])
    def test_priority(self, parameter: InferParameter) -> None:
        """Row 41."""
        request = with_parameters(priority=parameter)
        assert (request.priority, request.parameters) == (3, {})

    def test_timeout_is_microseconds(self) -> None:
        assert with_parameters(timeout=InferParameter(int64_param=250)).timeout_us == 250

    def test_negative_timeout_is_taken_as_unsigned(self) -> None:
        assert with_parameters(timeout=InferParameter(int64_param=-1)).timeout_us == (1 << 64) - 1

    def test_custom_parameters_reach_the_model(self) -> None:
        """Row 45; ``headers`` and ``binary_data_output`` are custom ones here."""
        request = with_parameters(
            d=InferParameter(double_param=1.5),
            i=InferParameter(int64_param=-7),
            b=InferParameter(bool_param=True),
            headers=InferParameter(string_param="h"),
            binary_data_output=InferParameter(bool_param=False),
        )
        assert request.parameters == {"d": 1.5, "i": -7, "b": True, "headers": "h", "binary_data_output": False}

    def test_empty_final_response_is_accepted_and_not_custom(self) -> None:
        request = with_parameters(triton_enable_empty_final_response=InferParameter(bool_param=True))
        assert request.parameters == {}

    @pytest.mark.parametrize(
        ("key", "parameter", "text"),
        [
            pytest.param(
                "sequence_id",
                InferParameter(bool_param=True),
                "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
                id="row 43",
            ),
            (
                "sequence_id",
                InferParameter(uint64_param=1),
                "invalid value type for 'sequence_id' parameter, expected int64_param or string_param.",
            ),
            (
                "sequence_start",
                InferParameter(int64_param=1),
                "invalid value type for 'sequence_start' parameter, expected bool_param.",
            ),
            (
                "sequence_end",
                InferParameter(),
                "invalid value type for 'sequence_end' parameter, expected bool_param.",
            ),
            pytest.param(
                "priority",
                InferParameter(int64_param=-1),
                "invalid value for 'priority', expected value >= 0.",
                id="row 41, negative",
            ),
            pytest.param(
                "priority",
                InferParameter(string_param="1"),
                "invalid value type for 'priority' parameter, expected int64_param or uint64_param.",
                id="row 41, string",
            ),
            pytest.param(
                "timeout",
                InferParameter(uint64_param=1),
                "invalid value type for 'timeout' parameter, expected int64_param.",
                id="row 42",
            ),
            (
                "triton_enable_empty_final_response",
                InferParameter(int64_param=1),
                "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.",
            ),
            pytest.param(
                "triton_x",
                InferParameter(int64_param=1),
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                "starting with 'triton_' are allowed: triton_enable_empty_final_response",
                id="row 46",
            ),
            pytest.param(
                "u",
                InferParameter(uint64_param=1),
                "invalid value type for 'u' parameter, expected int64_param, bool_param, or string_param.",
                id="row 44",
            ),
            (
                "x",
                InferParameter(),
                "invalid value type for 'x' parameter, expected int64_param, bool_param, or string_param.",
            ),
        ],
    )
    def test_wrong_parameter_is_refused(self, key: str, parameter: InferParameter, text: str) -> None:
        with invalid(text):
            with_parameters(**{key: parameter})


REGION = InferParameter(string_param="r")
BYTE_SIZE = InferParameter(int64_param=4)
TEXT = InferParameter(string_param="8")


class TestSharedMemoryParameters:
    @pytest.mark.parametrize(
        ("parameters", "text"),
        [
            (
                {"shared_memory_region": BYTE_SIZE},
                "invalid value type for 'shared_memory_region' parameter for tensor '{0}', expected string_param.",
            ),
            (
                {"shared_memory_region": REGION, "shared_memory_byte_size": TEXT},
                "invalid value type for 'shared_memory_byte_size' parameter for tensor '{0}', expected int64_param.",
            ),
            (
                {"shared_memory_region": REGION, "shared_memory_offset": TEXT},
                "invalid value type for 'shared_memory_offset' parameter for tensor '{0}', expected int64_param.",
            ),
            (
                {"shared_memory_byte_size": BYTE_SIZE},
                "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor "
                "'{0}'",
            ),
            (
                {"shared_memory_offset": TEXT},
                "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor '{0}'",
            ),
            pytest.param(
                {"shared_memory_region": REGION},
                "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
                "'{0}'",
                id="row 83",
            ),
        ],
    )
    def test_wrong_parameters_are_refused(self, parameters: dict[str, InferParameter], text: str) -> None:
        with invalid(text.format("INPUT0")):
            with_input_parameters(**parameters)
        with invalid(text.format("OUTPUT0")):
            with_output(**parameters)

    def test_unknown_region_is_not_found(self) -> None:
        """Row 84."""
        with refused(ErrorCode.NOT_FOUND, "Unable to find shared memory region: 'r'"):
            with_input_parameters(shared_memory_region=REGION, shared_memory_byte_size=BYTE_SIZE)
        with refused(ErrorCode.NOT_FOUND, "Unable to find shared memory region: 'r'"):
            with_output(shared_memory_region=REGION, shared_memory_byte_size=BYTE_SIZE)

    def test_contents_beside_a_region_are_refused(self) -> None:
        with invalid("unexpected 'content' provided when using shared memory for input tensor 'INPUT0' for model 'm'"):
            with_input_parameters(
                InferTensorContents(fp32_contents=[1]), shared_memory_region=REGION, shared_memory_byte_size=BYTE_SIZE
            )

    def test_other_input_parameters_are_ignored(self) -> None:
        request = with_input_parameters(anything=TEXT)
        assert [tensor.data for tensor in request.inputs] == [b"abcd"]


class TestOutputParameters:
    def test_binary_data_is_ignored(self) -> None:
        assert with_output(binary_data=InferParameter(bool_param=False)).requested_outputs == ["OUTPUT0"]

    def test_classification_is_asked_of_an_output(self) -> None:
        assert with_output(classification=InferParameter(int64_param=2)).classes == {"OUTPUT0": 2}

    @pytest.mark.parametrize("count", [0, -1])
    def test_classification_count_is_positive(self, count: int) -> None:
        """Row 39."""
        with invalid("invalid value for 'classification' parameter, expected >= 0"):
            with_output(classification=InferParameter(int64_param=count))

    def test_classification_is_an_int64(self) -> None:
        """Row 40."""
        with invalid("invalid value type for 'classification' parameter, expected int64_param"):
            with_output(classification=InferParameter(string_param="x"))

    def test_classification_into_shared_memory_is_refused(self) -> None:
        with invalid("output can't set both 'shared_memory_region' and 'classification'"):
            with_output(
                classification=InferParameter(int64_param=2),
                shared_memory_region=REGION,
                shared_memory_byte_size=BYTE_SIZE,
            )


class TestResponse:
    def test_bytes_are_those_that_protobuf_makes(self) -> None:
        big = bytes(range(256)) * 200
        outputs = [
            Tensor("SMALL", dtypes.FP32, (1, 1), memoryview(b"abcd")),
            Tensor("EMPTY", dtypes.FP32, (0,), b""),
            Tensor("NO VIEW", dtypes.INT8, (0,), memoryview(b"")),
            Tensor("BIG", dtypes.UINT8, (len(big),), bytearray(big)),
        ]
        parameters = {"flag": True, "count": -3, "ratio": 0.5, "text": "é"}
        data = encode_response(InferenceResponse("m", 12, "abc", outputs, parameters))
        message = ModelInferResponse.FromString(data)
        assert message == ModelInferResponse(
            model_name="m",
            model_version="12",
            id="abc",
            parameters={
                "flag": InferParameter(bool_param=True),
                "count": InferParameter(int64_param=-3),
                "ratio": InferParameter(double_param=0.5),
                "text": InferParameter(string_param="é"),
            },
            outputs=[
                ModelInferResponse.InferOutputTensor(name="SMALL", datatype="FP32", shape=[1, 1]),
                ModelInferResponse.InferOutputTensor(name="EMPTY", datatype="FP32", shape=[0]),
                ModelInferResponse.InferOutputTensor(name="NO VIEW", datatype="INT8", shape=[0]),
                ModelInferResponse.InferOutputTensor(name="BIG", datatype="UINT8", shape=[len(big)]),
            ],
            raw_output_contents=[b"abcd", b"", b"", big],
        )
        assert len(data) == message.ByteSize()

    @pytest.mark.parametrize(("key", "value"), [("n", 1 << 63), ("n", -(1 << 63) - 1), ("n", "\ud800"), ("\ud800", 1)])
    def test_parameter_that_no_message_can_carry_is_named(self, key: str, value: int | str) -> None:
        text = f"^parameter '{key}' of a response of model 'm' cannot be sent: "
        with pytest.raises(InferenceError, match=text) as raised:
            encode_response(InferenceResponse("m", 1, "", [], {"fine": (1 << 63) - 1, key: value}))
        assert raised.value.code is ErrorCode.INTERNAL

    @given(st.integers(0, (1 << 31) - 1))
    def test_lengths_are_written_as_protobuf_reads_them(self, nbytes: int) -> None:
        from google.protobuf.internal.decoder import _DecodeVarint  # what protobuf's own Python decoder uses

        header = parsing.field_header(codec._RAW_OUTPUT_CONTENTS_TAG, nbytes)
        assert header[:1] == b"\x32"
        assert _DecodeVarint(header, 1) == (nbytes, len(header))

    def test_response_above_the_limit_is_refused_before_it_is_built(self) -> None:
        """Only the declared size is above 2 GiB; nothing is copied."""
        outputs = [Tensor("O", dtypes.UINT8, (1 << 30,), b"x", nbytes=1 << 30) for _ in range(2)]
        tensors = [ModelInferResponse.InferOutputTensor(name="O", datatype="UINT8", shape=[1 << 30])] * 2
        rest = ModelInferResponse(model_name="m", model_version="1", outputs=tensors).ByteSize()
        size = rest + 2 * (1 + 5 + (1 << 30))  # tag, varint, data
        with invalid(f"Response has byte size {size} which exceeds gRPC's byte size limit 2147483647."):
            encode_response(InferenceResponse("m", 1, "", outputs, {}))
