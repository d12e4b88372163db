"""What the HTTP front end can be told."""

from __future__ import annotations

from dataclasses import dataclass

from pytriton_lite.core.timeline import Listener
from pytriton_lite.frontends.restriction import RestrictedGroup


@dataclass(frozen=True)
class HttpOptions:
    max_input_size: int = 64 << 20
    """Bytes; limits the JSON part of a request, each tensor in it, a raw body and a decompressed body, and the
    inputs of a generate request together. Uncompressed binary tensors are not limited by it: their sizes must agree with the
    model's configuration."""
    max_compression_ratio: int = 100
    """Ratio to its own size that a compressed body may expand to, above 16 MiB; 0 is any."""
    header_forward_pattern: str = ""
    """A regular expression; request headers whose name it finds anywhere become string parameters of the request. It
    ignores case unless it starts with ``(?-i)``. Empty forwards none."""
    restricted: tuple[RestrictedGroup, ...] = ()
    """Groups of APIs whose callers must send a header; no category is in two of them."""
    has_openai: bool = False
    """Whether OpenAI's routes are served, too, and belong into the document of all routes."""
    on_admin: Listener | None = None
    """Is given the timeline of every request that is not one for inference, or was refused for its path, method or header
    before it could be one, when it was answered. None costs nothing."""
    cors_allow_origins: tuple[str, ...] = ()
    """The origins whose pages a browser lets read answers, ``*`` for any. Empty sends no header of CORS, and has OPTIONS
    refused."""
