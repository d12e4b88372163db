"""The models of a multi-model endpoint: directories that come and go, each a model under a name that it was given elsewhere.

A model repository has a directory for each model, called like it. What SageMaker unpacks is called otherwise, lies beside no
other model, and may have a name of its own in its config.pbtxt. So `Archives` owns a repository in a temporary directory, in
which there is a directory of links for each model that is loaded; the engine knows it as one of its repositories.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf import text_format

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.daemon_threads import in_daemon_thread

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)

_CONFIG = "config.pbtxt"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_FORBIDDEN = ("/dev", "/proc", "/sys")
"""Directories that no model lies in; Triton refuses them since 26.01."""
_UNLOAD_S = 350
"""SageMaker waits 360 s for an unload, and Triton 350."""
_MOST_NAMED = 8
"""Models that an error names."""
_LOOK_S = 0.05
"""The engine tells nobody when the last request of a model has ended, so its index is asked so often while one unloads."""


class ArchiveTaken(Exception):
    """Hash or directory are those of a model that is there."""


@dataclass(frozen=True)
class Archive:
    """One model that was loaded: ``key`` is its hash, ``model`` its name here, ``names`` all that came with it."""

    key: str
    url: str
    model: str
    names: tuple[str, ...]


class Archives:
    """Models by their hashes. Use it on one event loop; ``close`` removes the directory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pytriton_lite_sagemaker_"))
        """The repository, for the engine."""
        self._server: Server | None = None
        self._archives: dict[str, Archive] = {}
        self._begun: set[str] = set()
        """Hashes and directories whose load or unload is under way."""

    def serve(self, server: Server) -> None:
        """Load into *server* from now on."""
        self._server = server

    def close(self) -> None:
        """Remove the links. What they lead to is SageMaker's."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def __iter__(self) -> Iterator[Archive]:
        return iter(list(self._archives.values()))

    def model_of(self, key: str) -> str | None:
        """The name here of the model with the hash *key*."""
        archive = self._archives.get(key)
        return None if archive is None else archive.model

    def url_of(self, key: str) -> str | None:
        """The directory of the model with the hash *key*."""
        archive = self._archives.get(key)
        return None if archive is None else archive.url

    async def load(self, key: str, url: str, target: str) -> None:
        """Load what lies in the directory *url* as *key*; it serves when this returns. *target* is what people call it.

        Raises ArchiveTaken, and InferenceError with the text of a load that failed, of which nothing is left.
        """
        assert self._server is not None
        for other in self._archives.values():
            if key == other.key or url == other.url:
                raise ArchiveTaken(f"model repository '{other.url}' has already been registered")
        if self._begun & {key, url}:
            raise ArchiveTaken(f"model repository '{url}' is being loaded or unloaded")
        self._begun |= {key, url}
        archive: Archive | None = None
        try:
            # Models of the other repositories, too: to load one of their names would be ambiguous.
            taken = {entry.name for entry in await self._server.repository_index()}
            archive = await in_daemon_thread(self._link, key, url, target, taken)
            await self._server.load_model(archive.model, None, {})
            self._archives[key] = archive
        except BaseException:
            if archive is not None:
                # What an ensemble is made of may serve, although the ensemble does not: its memory is what others need.
                with suppress(InferenceError, asyncio.TimeoutError):
                    await self._retire(archive)
                await in_daemon_thread(self._unlink, archive)
            raise
        finally:
            self._begun -= {key, url}

    async def unload(self, key: str) -> bool:
        """Unload the model with the hash *key*, and return when its last request has ended; False if there is none."""
        archive = self._archives.pop(key, None)
        if archive is None:
            return False
        self._begun |= {archive.key, archive.url}
        try:
            await self._retire(archive)
        except asyncio.TimeoutError:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"model '{archive.model}' still has requests after {_UNLOAD_S} s"
            ) from None
        finally:
            self._begun -= {archive.key, archive.url}
            await in_daemon_thread(self._unlink, archive)
        return True

    async def _retire(self, archive: Archive) -> None:
        """Unload all that came with *archive*, and return when it has ended. Raises asyncio.TimeoutError."""
        assert self._server is not None
        for name in archive.names:
            await self._server.unload_model(name, unload_dependents=True)
        await asyncio.wait_for(self._gone(set(archive.names)), _UNLOAD_S)

    async def _gone(self, names: set[str]) -> None:
        assert self._server is not None
        left = (VersionState.READY, VersionState.UNLOADING, VersionState.LOADING)
        while True:
            index = await self._server.repository_index()
            if not any(entry.name in names and entry.state in left for entry in index):
                return
            await asyncio.sleep(_LOOK_S)

    def _link(self, key: str, url: str, target: str, taken: Container[str]) -> Archive:
        """Make the directories of links, called like nothing in *taken*.

        Raises ArchiveTaken; InferenceError(INVALID_ARG) for what has no model.
        """
        try:
            return self._linked(key, url, target, taken)
        except (OSError, ValueError) as error:  # a path that is none, a name that is too long
            is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            raise InferenceError(
                ErrorCode.RESOURCE_EXHAUSTED if is_full else ErrorCode.INVALID_ARG,
                f"failed to register '{url}' as model '{key}': {error}",
            ) from None

    def _linked(self, key: str, url: str, target: str, taken: Container[str]) -> Archive:
        folder = Path(os.path.realpath(url))
        if any(folder.is_relative_to(place) for place in _FORBIDDEN):
            raise _refused(f"invalid url '{url}': no model is loaded from {', '.join(_FORBIDDEN)}")
        if not folder.is_dir():
            raise _refused(f"failed to register '{url}', repository not found")
        main, others = _models_in(folder)
        staged: list[str] = []
        try:
            name = self._stage((target, key) if _PLAIN_NAME.fullmatch(target) else (key,), taken, staged)
            parts = {part.name: self._stage((part.name, f"{key}.{part.name}"), taken, staged) for part in others}
            _link_model(main, self.directory / name, parts)
            for part in others:
                _link_model(part, self.directory / parts[part.name], parts)
        except BaseException:
            for called in staged:
                shutil.rmtree(self.directory / called, ignore_errors=True)
            raise
        for part_name, called in parts.items():
            if part_name != called:
                logger.warning(
                    "model '%s' of the archive '%s' is served as '%s', because there is another '%s'; the ensemble finds it, "
                    "and a model that calls it by its own name finds the other one",
                    *(part_name, target, called, part_name),
                )
        return Archive(key, url, name, tuple(staged))

    def _stage(self, names: Sequence[str], taken: Container[str], staged: list[str]) -> str:
        """Make a directory called like the first of *names* that is free, and put its name into *staged*."""
        for name in names:
            if name not in taken:
                with suppress(FileExistsError):
                    (self.directory / name).mkdir()
                    staged.append(name)
                    return name
        raise ArchiveTaken(f"a model called '{names[-1]}' is there already, from another archive or repository")

    def _unlink(self, archive: Archive) -> None:
        for name in archive.names:
            shutil.rmtree(self.directory / name, ignore_errors=True)


def _refused(text: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, text)


def _models_in(folder: Path) -> tuple[Path, list[Path]]:
    """The model that *folder* is about, and the others that it is made of.

    That is *folder* itself where it is a model, else its only model, else its only ensemble that no other is made of.
    """
    if _is_model(folder):
        return folder, []
    models = sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and _is_model(entry))
    if len(models) == 1:
        return models[0], []
    steps = {model: _steps_of(model) for model in models}
    ensembles = [model for model in models if steps[model]]
    inner = {name for names in steps.values() for name in names}
    outer = [model for model in ensembles if model.name not in inner]
    if len(outer) == 1:
        return outer[0], [model for model in models if model is not outer[0]]
    names = ", ".join([*(model.name for model in models[:_MOST_NAMED]), *["…"] * (len(models) > _MOST_NAMED)])
    raise _refused(
        f"'{folder}' has {len(models)} models{f' ({names})' if names else ''}, {len(ensembles)} of which are ensembles: "
        "expected one model, or one ensemble and the models that it is made of"
    )


def _is_model(folder: Path) -> bool:
    """Whether *folder* has a configuration or versions. Archives have other directories, too: libraries, what tools leave."""
    return folder.is_dir() and (
        (folder / _CONFIG).is_file() or any(entry.name.isdigit() and entry.is_dir() for entry in folder.iterdir())
    )


def _steps_of(model: Path) -> set[str]:
    """Names of the models that an ensemble is made of; empty for what is none."""
    try:
        message = parse_model_config(_read_text(model / _CONFIG), source=str(model / _CONFIG))
    except (OSError, ValueError, PollError):
        return set()
    return {step.model_name for step in message.ensemble_scheduling.step} if message.platform == "ensemble" else set()


def _link_model(model: Path, place: Path, parts: Mapping[str, str]) -> None:
    """Links in *place* to all that *model* has; its configuration has the name *place* has, whatever it called itself.

    *parts* are the names here of the models that an ensemble is made of, by those that it has for them.
    """
    for entry in model.iterdir():
        if entry.name == _CONFIG:
            (place / _CONFIG).write_text(_renamed(entry, place.name, parts), "utf-8", "surrogateescape")
        else:
            (place / entry.name).symlink_to(entry)


def _read_text(path: Path) -> str:
    """The text of a configuration. Bytes that are no UTF-8 do no harm in a comment; elsewhere the load refuses them."""
    return read_regular_file(path).decode("utf-8", "surrogateescape")


def _renamed(path: Path, name: str, parts: Mapping[str, str]) -> str:
    text = _read_text(path)
    try:
        message = parse_model_config(text, source=str(path))
    except PollError:
        return text  # the load says what is wrong with it
    moved = [
        step for step in message.ensemble_scheduling.step if parts.get(step.model_name, "") not in ("", step.model_name)
    ]
    if message.name in ("", name) and not moved:
        return text
    message.name = name
    for step in moved:
        step.model_name = parts[step.model_name]
    renamed: str = text_format.MessageToString(message)
    return renamed
