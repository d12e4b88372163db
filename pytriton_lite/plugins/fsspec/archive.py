"""A repository that is one file on a web server: ``.zip``, ``.tar``, ``.tar.gz``; the folders at its top are the models.

It is fetched and unpacked when its tag has changed. What changed in it is told by the contents, so that a new archive with
one new model in it reloads that model alone.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from pytriton_lite.plugins.fsspec.access import Access
from pytriton_lite.plugins.fsspec.filesystem import FilesystemSource, identity_of
from pytriton_lite.remote.cache import link
from pytriton_lite.remote.source import Closing, RemoteFile, RemoteModel, SourceError, add_file
from pytriton_lite.remote.url import RemoteUrl

_WINDOWS = 0
"""What a zip file says of where it was made."""

Member = tuple[str, IO[bytes] | None]
"""The path of a file, and the file; None for a directory, whose path ends with a slash."""


class _Broken(SourceError):
    """The archive itself is to blame, and is no better when it is fetched once more."""


class WebArchive(FilesystemSource):
    """Keeps what the archive held unpacked in a folder of its own in *folder*, until there is another one."""

    def __init__(
        self, filesystem: Any, url: RemoteUrl, access: Access, folder: Path, is_closing: Callable[[], bool]
    ) -> None:
        super().__init__(filesystem, url, access)
        self._is_closing = is_closing
        self._address = f"{url.path}?{url.query}" if url.query else url.path
        self._folder = folder / "archive"
        self._identity = ""
        self._models: dict[str, RemoteModel] = {}
        self._broken: tuple[str, str] | None = None
        """The identity of an archive that cannot be unpacked, and why."""

    def names(self) -> list[str]:
        return sorted(self.models())

    def models(self) -> dict[str, RemoteModel]:
        with self.told():
            info = self.info(self._address)
        identity = identity_of(info)
        if self._broken is not None and self._broken[0] == identity:
            raise SourceError(self._broken[1])
        if identity != self._identity:
            archive = RemoteFile(self._address, identity, info.get("size"))
            try:
                self._models, self._identity = self._unpack(archive), identity
            except _Broken as error:
                self._broken = (identity, str(error))
                raise
        return self._models

    def model(self, name: str) -> RemoteModel | None:
        return self.models().get(name)

    def fetch(self, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        link(Path(file.address), destination)

    def _unpack(self, archive: RemoteFile) -> dict[str, RemoteModel]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._identity = ""
        self._folder.mkdir()
        packed = self._folder / "packed"
        try:
            super().fetch(archive, packed, self._is_closing)
            with self.told():
                return self._read(packed)
        except BaseException:
            # Others need the space: of an archive that does not fit on the disk all would stay that does.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            packed.unlink(missing_ok=True)

    def _read(self, packed: Path) -> dict[str, RemoteModel]:
        models: dict[str, RemoteModel] = {}
        members = _zip_members(packed) if self._url.path.endswith(".zip") else _tar_members(packed)
        try:
            for number, (path, opened) in enumerate(members):
                file = None if opened is None else _write(opened, self._folder / str(number), self._is_closing)
                add_file(models, path.removeprefix("./"), file)
        except (OSError, MemoryError, Closing):  # of this machine, and of this moment
            raise
        except Exception as error:
            raise _Broken(" ".join(str(error).split()) or type(error).__name__) from None
        return models


def _zip_members(packed: Path) -> Iterator[Member]:
    with zipfile.ZipFile(packed) as archive:
        for entry in archive.infolist():
            mode = entry.external_attr >> 16  # of those that were made on Unix
            if stat.S_ISLNK(mode):
                raise SourceError(f"'{entry.filename}' in the archive is a link")
            # Windows PowerShell writes its own separator, which is a letter of names elsewhere.
            path = entry.filename.replace("\\", "/") if entry.create_system == _WINDOWS else entry.filename
            yield path, None if path.endswith("/") else archive.open(entry)


def _tar_members(packed: Path) -> Iterator[Member]:
    with tarfile.open(packed) as archive:
        for entry in archive:
            if not (entry.isfile() or entry.isdir()):
                raise SourceError(f"'{entry.name}' in the archive is neither a file nor a directory")
            yield (entry.name, archive.extractfile(entry)) if entry.isfile() else (f"{entry.name}/", None)


def _write(opened: IO[bytes], target: Path, is_closing: Callable[[], bool]) -> RemoteFile:
    """Write what is read from *opened*, and close it. The file's identity is its content."""
    digest = hashlib.sha256()
    with opened, open(target, "wb") as file:
        while block := opened.read(1 << 20):
            if is_closing():
                raise Closing
            digest.update(block)
            file.write(block)
        return RemoteFile(str(target), digest.hexdigest(), file.tell())
