"""What the engine tells its front ends of models and regions, and what it starts a front end with."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.core.log_settings import LogSettings
from pytriton_lite.core.states import VersionState
from pytriton_lite.repository.index import ModelId


class FrontEndStart(NamedTuple):
    """What a front end begins with. ``settings`` are those of the server (`pytriton_lite.settings.Settings`)."""

    settings: Any
    log_settings: LogSettings
    addresses: dict[int, tuple[str, int]]
    """Host and port by the number of the listener, of those that there are."""
    shm_prefix: str
    max_receiving_bytes: int | None
    max_unread_bytes: int | None
    """This front end's share."""
    overload_code: ErrorCode
    tells_refused: bool
    """Whether the engine wants to hear of requests that are no inference and are refused."""


class VersionNews(NamedTuple):
    """A version that can be seen. ``config`` is serialized."""

    version: int
    state: VersionState
    is_recovering: bool
    stamp: int
    """What was checked with this configuration holds for as long as the version has this stamp."""
    config: bytes


class ModelNews(NamedTuple):
    """What a name means from now on: a model, or for what reason it means none."""

    name: str
    id: ModelId | None
    refusal: tuple[ErrorCode, str] | None
    versions: tuple[VersionNews, ...]


class RegionNews(NamedTuple):
    """A client's region that was registered. The descriptor of its segment comes with it, if it has one.

    One on a device has its UUID in ``device``; a front end can do nothing with it but name it.
    """

    name: str
    key: str
    offset: int
    byte_size: int
    nbytes: int
    """Size of the segment."""
    device: bytes = b""
    device_id: int = 0
