"""Messages of a stream as bytes: what is put together by hand is what protobuf would have made (gRPC spec, section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.grpc.codec import encode_response, encode_stream_message, encode_stream_response
from pytriton_lite.proto.grpc_service_pb import ModelInferResponse, ModelStreamInferResponse


@given(
    data=st.lists(st.binary(max_size=300), max_size=3),
    parameters=st.dictionaries(st.sampled_from(["a", "b", "triton_final_response"]), st.integers(0, 9) | st.booleans()),
    is_final=st.booleans(),
)
def test_answer_in_a_stream_is_the_unary_one_and_whether_it_is_the_last(
    data: list[bytes], parameters: dict[str, Any], is_final: bool
) -> None:
    outputs = [Tensor(f"O{i}", dtypes.UINT8, (len(each),), memoryview(each)) for i, each in enumerate(data)]
    response = InferenceResponse("m", 7, "id", outputs, parameters)
    expected = ModelInferResponse.FromString(encode_response(response))
    expected.parameters["triton_final_response"].bool_param = is_final
    message = ModelStreamInferResponse.FromString(encode_stream_response(response, is_final=is_final))
    assert message == ModelStreamInferResponse(infer_response=expected)


def test_large_tensor_is_found_behind_its_length() -> None:
    data = bytes(range(256)) * 9000
    response = InferenceResponse("m", 1, "", [Tensor("O", dtypes.UINT8, (len(data),), data)], {})
    message = ModelStreamInferResponse.FromString(encode_stream_response(response, is_final=True))
    assert message.infer_response.raw_output_contents == [data]


def test_answer_above_the_limit_is_refused_before_it_is_built() -> None:
    """Only the declared size is above 2 GiB; nothing is copied."""
    outputs = [Tensor("O", dtypes.UINT8, (1 << 30,), b"x", nbytes=1 << 30) for _ in range(2)]
    with pytest.raises(InferenceError) as caught:
        encode_stream_response(InferenceResponse("m", 1, "", outputs, {}), is_final=True)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.endswith("exceeds gRPC's byte size limit 2147483647.")


def test_text_of_an_error_that_is_no_unicode_is_sent_all_the_same() -> None:
    message = ModelStreamInferResponse.FromString(encode_stream_message(ModelInferResponse(id="a"), error="é \udc80"))
    assert (message.error_message, message.infer_response.id) == ("é ?", "a")
