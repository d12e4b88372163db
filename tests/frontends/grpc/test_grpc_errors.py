"""Codes and texts of a failed RPC."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.frontends.grpc.errors import MAX_DETAILS_BYTES, STATUS, details


def test_every_error_code_has_a_status() -> None:
    assert set(STATUS) == set(ErrorCode)


@pytest.mark.parametrize("text", ["", "plain", "line\nline", "é%" * 100, "x" * MAX_DETAILS_BYTES])
def test_text_that_fits_is_not_changed(text: str) -> None:
    assert details(text) == text


@pytest.mark.parametrize("text", ["x" * 20_000, "\n" * 20_000, "é" * 20_000, "x" * 7_000 + "€" * 300])
def test_text_that_does_not_fit_is_cut_to_the_limit_and_says_so(text: str) -> None:
    """gRPC percent-encodes what is not printable ASCII; a client refuses the header above 8 to 16 KiB."""
    cut = details(text)
    head, _, note = cut.partition(" ... ")
    assert text.startswith(head)
    assert note == f"(cut, {len(text.encode())} bytes in all)"
    printable = "".join(chr(byte) for byte in range(0x20, 0x7F) if chr(byte) != "%")
    assert MAX_DETAILS_BYTES - 9 <= len(quote(cut, safe=printable)) <= MAX_DETAILS_BYTES


def test_invalid_unicode_can_be_sent() -> None:
    assert details("bad \udcff name") == "bad ? name"
