"""What lies in a remote repository, and a way to fetch it. Everything here blocks.

Names come from strangers: `add_file` alone decides where a file may lie, and a model with a name that leads elsewhere has
a ``problem`` in place of files. Sources are plug-ins (docs/plugins.md), by the scheme of their URLs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from pytriton_lite.remote.url import RemoteUrl
from pytriton_lite.repository.index import is_model_name


class SourceError(Exception):
    """The repository, or a file of it, cannot be read; the text has no secrets."""


class Closing(Exception):
    """The server stops, and does not wait for copies."""


@dataclass(frozen=True)
class RemoteFile:
    """``identity`` is another one when the content is another one. ``size`` in bytes, None where nobody says.

    ``address`` is where the source finds it.
    """

    address: str
    identity: str
    size: int | None


@dataclass
class RemoteModel:
    """``files`` by path, and ``directories``, inside the model's own. A ``problem`` says why they cannot be copied."""

    files: dict[str, RemoteFile] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    problem: str = ""


class Source(Protocol):
    """One remote repository. All methods raise SourceError, and Closing after `interrupt`."""

    def names(self) -> list[str]:
        """Names of the models, without a look at what is in them."""

    def models(self) -> dict[str, RemoteModel]: ...

    def model(self, name: str) -> RemoteModel | None:
        """None where there is none of that name."""

    def fetch(self, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        """Write the content that the listing spoke of to *destination*. Raises SourceError for another one, and Closing."""

    def interrupt(self) -> None:
        """Have what is under way raise Closing, and what is asked from now on; from any thread."""

    def close(self) -> None: ...


def add_file(models: dict[str, RemoteModel], path: str, file: RemoteFile | None) -> None:
    """Put *file*, or for None a directory, with *path* in the repository, into *models*.

    What lies beside the models is passed over, and what no model is called, as in a repository on disk.
    """
    name, slash, rest = path.partition("/")
    if not slash or not is_model_name(name):
        return
    model = models.setdefault(name, RemoteModel())
    parts = rest.removesuffix("/").split("/") if rest else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        model.problem = f"the name '{path}' leads out of the model's directory"
        return
    is_directory = file is None or path.endswith("/")
    folders = parts if is_directory else parts[:-1]
    directories = {"/".join(folders[: count + 1]) for count in range(len(folders))}
    model.directories |= directories
    if file is not None and not is_directory:
        model.files["/".join(parts)] = file
    if directories.intersection(model.files) or (not is_directory and "/".join(parts) in model.directories):
        model.problem = f"'{path}' is a file and a directory"


class SourceTools(NamedTuple):
    """What a source may use for as long as it is open."""

    environ: Mapping[str, str]
    executor: Executor
    """Threads for what can be read at the same time."""
    folder: Path
    """A directory for files on their way, of the same filesystem as the cache; removed with the repository."""
    is_closing: Callable[[], bool]
    """Whether the server stops: what takes its time looks here, and raises Closing."""


OpenSource = Callable[[RemoteUrl, SourceTools], Source]
"""What a plug-in puts behind the door `doors.REPOSITORY_SOURCES`: the source of a URL. Nothing is read yet.

Raises ValueError or SourceError for credentials that are no use, or a package that is not installed.
"""
