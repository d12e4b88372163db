"""Unpacks the archive of an environment, which may come from anywhere, and writes nothing outside of its folder.

Started by path with the server's interpreter, ``archive.py ARCHIVE FOLDER``; standard library only. Exit status 1 with the
reason on standard error when the archive is refused. tarfile's own filter is not used: Pythons before 3.10.12 and 3.11.4
have none, and those after it had several holes.

What holds, whatever the archive says:

* Every name is relative and without ``..``.
* While files are written there is no link below the folder, because links are made when everything else is there. So a
  path below the folder cannot lead out of it.
* A link that leads out of the folder is refused; to find out, it is followed through the archive's other links. The
  exception are links of ``bin/python`` and its like: those of a virtual environment lead to its base.
* There are no devices, no set-user-id bits, and bounds on the number of entries and on what they unpack to.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO

MOST_ENTRIES = 2_000_000
"""Ten times the largest environment that we have seen, one with three frameworks."""
MOST_BYTES = 64 << 30
MOST_RATIO = 100
"""Unpacked to packed, beyond the first `RATIO_FREE_BYTES`. Environments have 2 to 5; gzip can go to 1032."""
RATIO_FREE_BYTES = 1 << 30
DISK_SHARE = 0.9
"""Share of what is free on the disk where it is unpacked, at most."""

_DEEPEST = 200
"""Names that a path may have: Python removes folders by calls inside each other, and not a thousand of them."""
_MOST_LINKS_FOLLOWED = 40  # as Linux
_ADDRESS_SPACE_BYTES = 2 << 30  # a header may claim any length, and tarfile reads it whole
_SCRIPT = ("bin", "activate")
_INTERPRETER = re.compile(r"bin/python[0-9.]*")

_Damage: tuple[type[Exception], ...] = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, MemoryError)
try:
    import lzma
except ImportError:  # a Python built without it
    pass
else:
    _Damage += (lzma.LZMAError,)

Parts = tuple[str, ...]


class RefusedArchive(Exception):
    """The text says which entry, and why."""


class _Header(tarfile.TarInfo):
    """tarfile takes a damaged header in the middle for the end of the archive; here it is an error."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tar)
        # typeshed knows their base alone, which those of the end have, too
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None


def most_bytes(archive_bytes: int, free_bytes: int) -> int:
    """How much an archive may unpack to."""
    return min(MOST_BYTES, RATIO_FREE_BYTES + MOST_RATIO * archive_bytes, int(free_bytes * DISK_SHARE))


def unpack(archive: Path, folder: Path, *, limit: int | None = None) -> None:
    """Unpack *archive* into *folder*, which is there and empty. *limit*, in bytes, is `most_bytes` unless given.

    Raises RefusedArchive. What was written by then is left to the caller.
    """
    if not archive.is_file():
        raise RefusedArchive("it is neither a file nor a folder")
    if limit is None:
        limit = most_bytes(archive.stat().st_size, shutil.disk_usage(folder).free)
    try:
        with tarfile.open(archive, "r:*", tarinfo=_Header) as tar:
            _Unpacking(tar, folder, limit).run()
    except _Damage as error:
        raise RefusedArchive(f"it is damaged, or no tar archive: {_words(error)}") from None
    except OSError as error:
        # Those of gzip and bz2 have no number.
        what = "it is damaged, or no tar archive" if error.errno is None else "it cannot be unpacked"
        raise RefusedArchive(f"{what}: {_words(error)}") from None


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: '{error.filename}'" if error.filename else error.strerror
    return " ".join(str(error).split()) or type(error).__name__


class _Unpacking:
    """One archive on its way into one folder."""

    def __init__(self, tar: tarfile.TarFile, folder: Path, limit: int) -> None:
        self._tar = tar
        self._folder = str(folder)
        self._limit = limit
        self._written = 0
        self._folders: set[Parts] = {()}
        self._files: set[Parts] = set()
        self._links: dict[Parts, str] = {}

    def run(self) -> None:
        count = 0
        while (entry := self._tar.next()) is not None:
            self._tar.members.clear()  # type: ignore[attr-defined]  # it would keep every one of them
            count += 1
            if count > MOST_ENTRIES:
                raise RefusedArchive(f"it has more than {MOST_ENTRIES} entries")
            self._take(entry)
        self._read_to_the_end()
        self._check_root()
        for place, target in self._links.items():
            self._check_link(place, target)
        for place, target in self._links.items():
            os.symlink(target, self._path(place))

    def _take(self, entry: tarfile.TarInfo) -> None:
        place = _place(entry.name)
        if entry.isdir():
            self._make_folder(place, entry.name)
            os.chmod(self._path(place), 0o700 | entry.mode & 0o777)
        elif not place:
            raise _refused(entry.name, "it has no name")
        elif entry.issym():
            self._make_way(place, entry.name)
            self._links[place] = entry.linkname
        elif entry.islnk():
            self._link_file(place, entry)
        elif entry.isreg():
            self._write_file(place, entry)
        else:
            raise _refused(entry.name, "it is no file, folder or link")

    def _write_file(self, place: Parts, entry: tarfile.TarInfo) -> None:
        self._written += max(0, entry.size)
        if self._written > self._limit:
            raise _refused(
                entry.name, f"with it the archive unpacks to more than {self._limit} bytes, the most allowed"
            )
        self._make_way(place, entry.name)
        source = self._tar.extractfile(entry)
        assert source is not None, "a regular file"
        path = self._path(place)
        with open(path, "xb") as target:
            _copy(source, target, entry.size)
            os.fchmod(target.fileno(), 0o600 | entry.mode & 0o777)
        # Compiled files name the time of their source.
        os.utime(path, (entry.mtime, entry.mtime))
        self._files.add(place)

    def _link_file(self, place: Parts, entry: tarfile.TarInfo) -> None:
        """A hard link: another name for an entry that came before."""
        try:
            original = _place(entry.linkname)
        except RefusedArchive as error:
            raise _refused(entry.name, f"it is a link to '{entry.linkname}'. {error}") from None
        if original == place:
            return
        if original in self._links:
            self._make_way(place, entry.name)
            self._links[place] = self._links[original]
        elif original in self._files:
            self._make_way(place, entry.name)
            os.link(self._path(original), self._path(place))
            self._files.add(place)
        else:
            raise _refused(entry.name, f"it is a link to '{entry.linkname}', which is no file of the archive before it")

    def _make_folder(self, place: Parts, name: str) -> None:
        for end in range(1, len(place) + 1):
            part = place[:end]
            if part in self._folders:
                continue
            if part in self._links:
                raise _refused(name, f"it writes through the link '{'/'.join(part)}'")
            if part in self._files:
                raise _refused(name, f"'{'/'.join(part)}' is a file of the archive")
            os.mkdir(self._path(part), 0o755)
            self._folders.add(part)

    def _make_way(self, place: Parts, name: str) -> None:
        """Make the folders above *place*, and forget an earlier entry of this name: the last one counts."""
        self._make_folder(place[:-1], name)
        if place in self._folders:
            raise _refused(name, "it is a folder of the archive, too")
        if place in self._files:
            os.unlink(self._path(place))
            self._files.discard(place)
        self._links.pop(place, None)

    def _check_root(self) -> None:
        """Before the links: those of an environment that was packed with its folder seem to lead out of it."""
        scripts = [place for place in (*self._files, *self._links) if place[-2:] == _SCRIPT]
        if scripts and _SCRIPT not in scripts:
            folder = "/".join(min(scripts, key=len)[:-2])
            raise RefusedArchive(f"bin/activate is expected at its root, and lies in the folder '{folder}'")

    def _check_link(self, place: Parts, target: str) -> None:
        name = "/".join(place)
        if "\0" in target or not target:
            raise _refused(name, "it is a link to nowhere")
        if not _INTERPRETER.fullmatch(name) and self._leads_out(place[:-1], target):
            raise _refused(name, f"it is a link that leads out of the environment, to '{target}'")

    def _leads_out(self, folder: Parts, target: str) -> bool:
        """Whether *target*, read in *folder*, is outside: by the letters, and through the archive's other links."""
        here = list(folder)
        ahead = _reversed_parts(target)
        if target.startswith("/"):
            return True
        followed = 0
        while ahead:
            part = ahead.pop()
            if part == "..":
                if not here:
                    return True
                here.pop()
                continue
            here.append(part)
            link = self._links.get(tuple(here))
            if link is None:
                continue
            followed += 1
            if followed > _MOST_LINKS_FOLLOWED:
                return True  # a loop: the kernel does not follow it, but other readers of paths leave it somewhere
            if link.startswith("/"):
                return True
            here.pop()
            ahead += _reversed_parts(link)
        return False

    def _read_to_the_end(self) -> None:
        """Read what follows the archive's end, padding mostly: there gzip has its checksum."""
        file = self._tar.fileobj
        assert file is not None, "open"
        for _ in range(64):
            if not file.read(1 << 20):
                return
        raise RefusedArchive("more than 64 MiB follow the end of the archive")

    def _path(self, place: Parts) -> str:
        return os.path.join(self._folder, *place)


def _refused(name: str, why: str) -> RefusedArchive:
    return RefusedArchive(f"entry '{name}': {why}")


def _place(name: str) -> Parts:
    """Where an entry belongs. The two texts are Triton's (model API, 7.1)."""
    if name.startswith("/"):
        raise _refused(name, "Path is absolute")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _refused(name, "Path contains '..'")
    if any("\0" in part for part in parts):
        raise _refused(name, "its name has a zero byte")
    if len(parts) > _DEEPEST:
        raise _refused(name, f"its path has more than {_DEEPEST} names")
    return parts


def _reversed_parts(path: str) -> list[str]:
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    shutil.copyfileobj(source, target, 1 << 18)
    if target.tell() != size:
        raise tarfile.ReadError("unexpected end of data")


def _main() -> int:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    except (ImportError, OSError, ValueError):
        pass  # a system without it
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]))
    except RefusedArchive as error:
        print(str(error).encode("utf-8", "backslashreplace").decode(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
