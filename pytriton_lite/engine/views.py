"""What the engine tells a front end about itself: frozen, free of any protocol."""

from __future__ import annotations

from dataclasses import dataclass

from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.counting.statistics import InstanceStatus, ModelStatistics


@dataclass(frozen=True)
class ServerMetadata:
    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True)
class TensorMetadata:
    """``shape`` has the leading -1 of a batching model."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """``versions`` are all ready ones, ascending; ``platform`` falls back to the backend's name."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True)
class LoadingVersion:
    """A version on its way to READY: what it is doing (`ServedVersion.step`), and for how long it has been loading."""

    model: str
    version: int
    step: str
    seconds: float


@dataclass(frozen=True)
class IndexEntry:
    """A row of the repository index. A model that was never loaded has neither version nor state."""

    name: str
    version: int | None = None
    state: VersionState | None = None
    reason: str = ""


@dataclass(frozen=True)
class VersionStatus:
    """A version that has workers, or whose workers keep dying. ``statistics`` go on counting."""

    state: VersionState
    statistics: ModelStatistics
    instances: list[InstanceStatus]


@dataclass(frozen=True)
class GivenConfiguration:
    """The text of a model's configuration as its author wrote it.

    ``file`` is its path below the model's directory. ``text`` is None where there is no such file: the server, or the model's
    auto_complete_config, has then said everything.
    """

    file: str
    text: str | None
