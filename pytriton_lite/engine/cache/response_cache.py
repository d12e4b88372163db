"""What every response cache is (scheduling spec, section 8): outputs by the digest of a request, for each version apart.

`local` keeps them in this process; others are plug-ins (docs/plugins.md). `serving.cached_requests` is how a version uses one.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Buffer, Tensor

_DIGEST_BYTES = 32
"""Two requests of one digest would get each other's answers, and clients choose what is hashed: no shorter, faster hash."""


class CachedOutput(NamedTuple):
    """An output as it is kept: bytes of nobody else's."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes

    def tensor(self) -> Tensor:
        return Tensor(self.name, self.datatype, self.shape, self.data)


Outputs = tuple[CachedOutput, ...]
Found = Outputs | None
Lookup = Found | asyncio.Future[Found]
"""What a lookup gives: at once, or for a cache on another machine when it has answered. Such a future carries no error."""


def copied(tensors: Iterable[Tensor]) -> Outputs:
    """*tensors* with private copies of their bytes. Raises InferenceError where they are gone (`Tensor.content`)."""
    return tuple(CachedOutput(t.name, t.datatype, t.shape, _private(t.content())) for t in tensors)


def _private(content: Buffer) -> bytes:
    return content if type(content) is bytes else bytes(content)


def request_digest(request: InferenceRequest, all_outputs: tuple[str, ...]) -> bytes:
    """Equal for requests to one version of which one may have the other's answer.

    Inputs count with names, data types, shapes and bytes, in any order, and the set of the outputs that are wanted; none named
    are *all_outputs*, which are sorted. Nothing else does: neither ids, parameters nor priorities. 1 ms for a MiB.
    Raises InferenceError where an input's bytes are gone.
    """
    wanted = tuple(sorted(request.requested_outputs)) or all_outputs
    digest = hashlib.blake2b(repr(wanted).encode(), digest_size=_DIGEST_BYTES)
    for tensor in sorted(request.inputs, key=_name):
        # Each part says how long it is, so no two requests give the same text.
        digest.update(repr((tensor.name, tensor.datatype.name, tensor.shape, tensor.nbytes)).encode())
        digest.update(tensor.content())
    return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What the gauges of the metrics page show (metrics spec, section 2)."""

    size: int
    """Bytes that may be used."""
    used: int
    entries: int
    hits: int
    misses: int
    evictions: int
    lookup_ns: int
    insertion_ns: int

    @property
    def lookups(self) -> int:
        return self.hits + self.misses


class CacheSpace(ABC):
    """The entries of one loaded generation of a model version."""

    def begin_load(self) -> None:  # noqa: B027  # most have nothing to do
        """The generation's files are about to be read."""

    @abstractmethod
    def lookup(self, digest: bytes) -> Lookup: ...

    @abstractmethod
    def insert(self, digest: bytes, tensors: list[Tensor]) -> None:
        """Keep a copy of *tensors*, unless there are too many of them or they are there already.

        May go on when this has returned. Raises InferenceError where their bytes are gone.
        """

    @abstractmethod
    def drop(self) -> None:
        """Forget every entry: no generation that is loaded later may answer with them. Nothing is inserted any more."""


class ResponseCache(ABC):
    """The cache of a server. `open` comes first, `close` last."""

    @abstractmethod
    def space(self, config: ModelConfig, version: int, directory: Path) -> CacheSpace:
        """An empty place for a generation that is to be loaded from *directory*, the model's own."""

    async def open(self) -> None:  # noqa: B027
        """Raises InferenceError where it cannot be used."""

    async def close(self) -> None:  # noqa: B027
        """Let go of it."""

    @property
    def statistics(self) -> CacheStatistics | None:
        """None where the cache is not this server's alone."""
        return None


MakeCache = Callable[[Mapping[str, str], Mapping[str, str]], ResponseCache]
"""What a plug-in puts behind the door `doors.RESPONSE_CACHES`: the cache for these options and this environment.

Called once, in the event loop of a server that is starting. Raises InferenceError where the options are wrong.
"""
