"""Requests: the prefix of error texts, and the version that a client wrote."""

from __future__ import annotations

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, parse_version


@pytest.mark.parametrize(
    ("request_id", "prefix"),
    [("abc", "[request id: abc] "), ("", "[request id: <id_unknown>] "), ("a b]", "[request id: a b]] ")],
)
def test_the_error_prefix_names_the_request(request_id: str, prefix: str) -> None:
    assert InferenceRequest("m", None, request_id=request_id).error_prefix == prefix


def test_requests_share_no_lists() -> None:
    one, other = InferenceRequest("m", None), InferenceRequest("m", None)
    one.requested_outputs.append("O")
    one.parameters["k"] = 1
    assert (other.inputs, other.requested_outputs, other.parameters) == ([], [], {})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("", None),
        ("1", 1),
        ("0", 0),
        ("007", 7),
        ("1abc", 1),
        ("1.5", 1),
        (" 2", 2),
        ("\t+3", 3),
        ("-0", 0),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_a_version_is_a_leading_number(text: str, version: int | None) -> None:
    """grpc.md section 2: as C's stol reads it."""
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "v1", "-", "+ 1", " ", "9223372036854775808", "-9223372036854775809", "٣"])
def test_what_does_not_begin_with_a_64_bit_number_is_no_version(text: str) -> None:
    with pytest.raises(InferenceError) as caught:
        parse_version(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), version should be an integral "
        "value > 0"
    )


@pytest.mark.parametrize("text", ["-1", "-2x", "-9223372036854775808"])
def test_a_negative_version_is_refused(text: str) -> None:
    with pytest.raises(InferenceError) as caught:
        parse_version(text)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"invalid model version specified '{text}' , version should be an integral value > 0"
