"""The files of the pages, read once: they are part of the package, and stay as they are while the server runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: nothing from elsewhere, nothing inline, no page around ours. Images that one chose are blobs."""

HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent. ``etag`` follows from its contents, so that a new version of the server is noticed at once."""

    body: bytes
    content_type: bytes
    etag: bytes


def read_files() -> Mapping[str, PageFile]:
    """Every file of the pages by its name."""
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}


def _read(path: Path) -> PageFile:
    body = path.read_bytes()
    return PageFile(body, _TYPES[path.suffix], b'"' + hashlib.sha256(body).hexdigest()[:16].encode() + b'"')
