"""Paths of the protocol (HTTP spec, section 2)."""

from __future__ import annotations

from pytriton_lite.core.errors import ErrorCode, InferenceError

MODELS = "/v2/models/"
LIVE = "/v2/health/live"
READY = "/v2/health/ready"
INFER = "/infer"
GENERATE = "/generate"
GENERATE_STREAM = "/generate_stream"
_OPENAI_BELOW = "/v1/"
_RERANK = "/rerank"
_PAGES = ("/", "/docs")
_PAGES_BELOW = "/console/"
_INT64_MAX = (1 << 63) - 1


def split_infer_path(path: str) -> tuple[str, str | None] | None:
    """Model name and version text of ``/v2/models/M[/versions/V]/infer``; None if *path* is another."""
    return _split(path, INFER)


def split_generate_path(path: str) -> tuple[str, str | None] | None:
    """The same of ``…/generate`` and ``…/generate_stream``."""
    return _split(path, GENERATE) or _split(path, GENERATE_STREAM)


def split_ready_path(path: str) -> tuple[str, str | None] | None:
    """The same of ``…/ready``."""
    return _split(path, "/ready")


def is_page(path: str) -> bool:
    """Whether *path* is for people: a page, or what one is made of."""
    return path in _PAGES or path.startswith(_PAGES_BELOW)


def is_openai(path: str) -> bool:
    """Whether *path* belongs to OpenAI's API, whether or not there is something."""
    return path.startswith(_OPENAI_BELOW) or path == _RERANK


def _split(path: str, action: str) -> tuple[str, str | None] | None:
    if not path.endswith(action) or not path.startswith(MODELS):
        return None
    target = path[len(MODELS) : -len(action)]
    if "/" not in target:
        return (target, None) if target else None
    parts = target.split("/")
    if len(parts) != 3 or parts[1] != "versions" or not parts[0] or not is_version(parts[2]):
        return None
    return parts[0], parts[2]


def is_version(text: str) -> bool:
    """Whether *text* can stand behind ``/versions/``: digits only, anything else is another path."""
    return text.isascii() and text.isdigit()


def parse_version(text: str) -> int:
    """The number in *text*, which `is_version`. Raises InferenceError where it does not fit 64 bits."""
    digits = text.lstrip("0")
    if len(digits) < len(str(_INT64_MAX)) or (len(digits) == len(str(_INT64_MAX)) and int(digits) <= _INT64_MAX):
        return int(digits or "0")
    raise InferenceError(
        ErrorCode.INVALID_ARG,
        f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
        "integral value > 0",
    )
