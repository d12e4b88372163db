"""What the HTTP front end can be told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HttpOptions:
    max_input_size: int = 64 << 20
    """Bytes; limits the JSON part of a request, each tensor in it, a raw body and a decompressed body. Uncompressed
    binary tensors are not limited by it: their sizes must agree with the model's configuration."""
    header_forward_pattern: str = ""
    """A regular expression; request headers whose name it finds anywhere become string parameters of the request. It
    ignores case unless it starts with ``(?-i)``. Empty forwards none."""
