"""A model that is not a folder: what a program says of it, in place of files."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.changes import ChangeTimes
from pytriton_lite.repository.index import ModelDirectory, ModelId

_NOWHERE = Path("bound")
"""Where such models would lie. There is no such folder, and nothing is looked for in it."""

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Definition:
    """A model by its configuration, with one version. Its code is with whoever starts its workers. Nobody changes it."""

    message: model_config_pb.ModelConfig
    version: int = 1
    number: int = field(default_factory=lambda: next(_numbers))
    """Later definitions have larger ones: what files have times for."""

    @property
    def id(self) -> ModelId:
        """Its id, of no namespace."""
        return ModelId("", self.message.name)

    @property
    def directory(self) -> ModelDirectory:
        """The directory that it would have."""
        return ModelDirectory(self.message.name, _NOWHERE / self.message.name, _NOWHERE, (self.version,))

    @property
    def times(self) -> ChangeTimes:
        """Times as files would have them: a later definition is newer."""
        return ChangeTimes(self.number, {self.version: self.number}, self.number)
