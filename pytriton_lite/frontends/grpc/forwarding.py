"""Metadata of a call that become parameters of its requests (gRPC spec, section 1)."""

from __future__ import annotations

import binascii
from collections.abc import Iterable

from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.frontends.header_forwarding import compile_pattern, forward_header

Forwarded = tuple[tuple[str, str], ...]
"""Names and values of the metadata that a model gets as parameters."""

_OF_THE_TRANSPORT = (":", "grpc-")
_ALSO_OF_THE_TRANSPORT = frozenset({"te", "content-type", "content-length", "host"})


class HeaderForwarding:
    """Picks the metadata whose names match a pattern. Raises ValueError for a pattern that is no regular expression."""

    def __init__(self, pattern: str) -> None:
        self._find = compile_pattern(pattern).search

    def pick(self, metadata: Iterable[tuple[str, str | bytes]]) -> Forwarded:
        """The entries of *metadata* to be forwarded; what gRPC itself says there is not metadata. A text comes decoded."""
        return tuple(
            (name, value if isinstance(value, str) else value.decode("utf-8", "replace"))
            for name, value in metadata
            if not name.startswith(_OF_THE_TRANSPORT)
            and name not in _ALSO_OF_THE_TRANSPORT
            and self._find(name) is not None
        )

    def pick_encoded(self, fields: Iterable[tuple[bytes, bytes]]) -> Forwarded:
        """The same of a header list, where the values of names that end with ``-bin`` are base64."""
        return self.pick((name.decode("latin-1"), _value(name, value)) for name, value in fields)


def forward(request: InferenceRequest, forwarded: Forwarded) -> None:
    """Make parameters of *forwarded*. Raises InferenceError for a reserved name."""
    for name, value in forwarded:
        forward_header(request, name, value)


def _value(name: bytes, value: bytes) -> bytes:
    if not name.endswith(b"-bin"):
        return value
    try:
        return binascii.a2b_base64(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return value
