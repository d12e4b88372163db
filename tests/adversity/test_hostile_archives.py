"""Archives of environments that are damaged, or that try to write outside of their folder."""

from __future__ import annotations

import gzip
import io
import os
import stat
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytriton_lite.engine.environments import archive as unpacking
from pytriton_lite.engine.environments.archive import RefusedArchive, most_bytes, unpack

MIB = 1 << 20


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", mode: int = 0o644) -> object:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.mode = mode
    info.size = len(data)
    return info, data


def write(path: Path, *entries: object, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, data in entries:  # type: ignore[misc]
            tar.addfile(info, io.BytesIO(data))
    return path


def link(name: str, target: str) -> object:
    return entry(name, tarfile.SYMTYPE, target)


def hard_link(name: str, target: str) -> object:
    return entry(name, tarfile.LNKTYPE, target)


def folder(name: str) -> object:
    return entry(name, tarfile.DIRTYPE, mode=0o755)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What lies around the folder that an archive is unpacked into, with something worth stealing in it."""
    (tmp_path / "around" / "folder").mkdir(parents=True)
    (tmp_path / "around" / "secret").write_text("secret")
    return tmp_path / "around"


def seen(outside: Path) -> dict[str, bytes]:
    """Everything but the folder itself."""
    return {
        str(path): path.read_bytes() if path.is_file() else b""
        for path in outside.rglob("*")
        if outside / "folder" not in (path, *path.parents)
    }


HOSTILE: dict[str, tuple[list[object], str]] = {
    "dots": ([entry("../x")], "entry '../x': Path contains '..'"),
    "dots in the middle": ([entry("bin/../../x")], "entry 'bin/../../x': Path contains '..'"),
    "absolute": ([entry("/x")], "entry '/x': Path is absolute"),
    "absolute link": (
        [link("secret", "/etc/passwd")],
        "entry 'secret': it is a link that leads out of the environment",
    ),
    "link upwards": ([link("lib/up", "../../secret")], "entry 'lib/up': it is a link that leads out"),
    "link through a link": (
        [folder("a"), folder("a/b"), link("a/b/root", "../.."), link("steal", "a/b/root/../secret")],
        "entry 'steal': it is a link that leads out of the environment, to 'a/b/root/../secret'",
    ),
    "link through a link that comes later": (
        [link("steal", "a/root/../secret"), folder("a"), link("a/root", "..")],
        "entry 'steal': it is a link that leads out",
    ),
    "links in a circle": ([link("a", "b"), link("b", "a")], "entry 'a': it is a link that leads out"),
    "link over an interpreter's": (
        [link("bin/python", "/usr/bin"), link("steal", "bin/python/env")],
        "entry 'steal': it is a link that leads out",
    ),
    "writing through a link": ([link("lib", ".."), entry("lib/x")], "entry 'lib/x': it writes through the link 'lib'"),
    "writing through a harmless link": (
        [folder("lib"), link("lib64", "lib"), entry("lib64/x")],
        "entry 'lib64/x': it writes through the link 'lib64'",
    ),
    "writing through an interpreter's link": (
        [link("bin/python", ".."), entry("bin/python/x")],
        "entry 'bin/python/x': it writes through the link 'bin/python'",
    ),
    "hard link upwards": ([hard_link("x", "../secret")], "entry 'x': it is a link to '../secret'"),
    "absolute hard link": ([hard_link("x", "/etc/passwd")], "entry 'x': it is a link to '/etc/passwd'"),
    "hard link to nothing": ([hard_link("x", "y")], "entry 'x': it is a link to 'y', which is no file of the archive"),
    "hard link to a link that leads out": (
        [folder("a"), link("a/b", "../secret/.."), hard_link("c", "a/b")],
        "entry 'c': it is a link that leads out",
    ),
    "character device": ([entry("null", tarfile.CHRTYPE)], "entry 'null': it is no file, folder or link"),
    "block device": ([entry("sda", tarfile.BLKTYPE)], "entry 'sda': it is no file, folder or link"),
    "pipe": ([entry("pipe", tarfile.FIFOTYPE)], "entry 'pipe': it is no file, folder or link"),
    "a file as a folder": ([entry("a"), entry("a/b")], "entry 'a/b': 'a' is a file of the archive"),
    "a folder as a file": ([entry("a/b"), entry("a")], "entry 'a': it is a folder of the archive, too"),
    "no name": ([entry("./")], "entry './': it has no name"),
    "two hundred folders inside each other": (
        [entry("a/" * 200 + "x")],
        f"entry '{'a/' * 200}x': its path has more than",
    ),
    "link to nowhere": ([link("x", "")], "entry 'x': it is a link to nowhere"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_entry_is_refused_by_name_and_nothing_is_written_outside(
    name: str, outside: Path, tmp_path: Path
) -> None:
    """model_api.md, 7.1 and row 22."""
    entries, text = HOSTILE[name]
    before = seen(outside)
    with pytest.raises(RefusedArchive) as refusal:
        unpack(write(tmp_path / "x.tar.gz", *entries), outside / "folder")
    assert str(refusal.value).startswith(text)
    assert seen(outside) == before
    assert not [path for path in (outside / "folder").rglob("*") if path.is_symlink()]


def test_what_an_environment_has_is_unpacked_as_it_was(outside: Path, tmp_path: Path) -> None:
    """Links inside it, the interpreter's link to its base, executables, times, an entry twice."""
    module = entry("./lib/module.py", data=b"word = 1", mode=0o4755)
    module[0].mtime = 1_000_000_000  # type: ignore[index]
    path = write(
        tmp_path / "x.tar.gz",
        folder("."),
        entry("bin/activate", data=b"once"),
        entry("bin/activate", data=b"twice"),
        link("bin/python", "/usr/bin/python3"),
        link("bin/python3", "python"),
        module,
        link("lib64", "./lib"),
        link("lib/up", "../bin/activate"),
        hard_link("lib/same.py", "lib/module.py"),
        hard_link("bin/python3.11", "bin/python"),
        entry("turns", data=b"a file first"),
        link("turns", "bin"),
    )
    root = outside / "folder"
    unpack(path, root)
    assert (root / "bin/activate").read_bytes() == b"twice"
    assert (root / "lib64/same.py").read_bytes() == b"word = 1"
    status = (root / "lib/module.py").stat()
    assert stat.S_IMODE(status.st_mode) == 0o755, "without the bit that sets the user id"
    assert status.st_mtime == 1_000_000_000
    assert os.readlink(root / "bin/python") == os.readlink(root / "bin/python3.11") == "/usr/bin/python3"
    assert os.readlink(root / "bin/python3") == "python"
    assert (root / "lib/up").read_bytes() == b"twice"
    assert (root / "turns").is_dir()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_any_tar_is_read(mode: str, outside: Path, tmp_path: Path) -> None:
    unpack(write(tmp_path / "x", entry("a", data=b"b"), mode=mode), outside / "folder")
    assert (outside / "folder" / "a").read_bytes() == b"b"


def some_archive(path: Path) -> bytes:
    write(path, *(entry(f"f{number}", data=os.urandom(3000)) for number in range(10)))
    return path.read_bytes()


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "no archive": lambda data: b"#!/bin/sh\necho no\n" * 100,
    "cut": lambda data: data[: len(data) // 2],
    "cut in the checksum": lambda data: data[:-4],
    "a wrong checksum": lambda data: flip(data, len(data) - 6),
    "a damaged header": lambda data: gzip.compress(flip(gzip.decompress(data), 512 + 3072 + 10)),
    "a tar cut in a file": lambda data: gzip.decompress(data)[: 512 + 1000],
    "a tar cut in a header": lambda data: gzip.decompress(data)[: 512 + 3072 + 100],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_archive_is_refused(damage: str, outside: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_bytes(DAMAGES[damage](some_archive(path)))
    with pytest.raises(RefusedArchive, match=r"^it is damaged, or no tar archive: "):
        unpack(path, outside / "folder")


def test_an_environment_that_was_packed_with_its_folder_is_told_so(outside: Path, tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.tar.gz",
        entry("srv/venv/lib/python3.11/site-packages/other/bin/activate"),
        entry("srv/venv/bin/activate"),
        entry("srv/venv/bin/python", tarfile.SYMTYPE, "/usr/bin/python3"),
    )
    with pytest.raises(RefusedArchive, match="bin/activate is expected at its root, and lies in the folder 'srv/venv'"):
        unpack(path, outside / "folder")


def test_what_is_no_file_is_refused_and_not_waited_for(outside: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RefusedArchive, match="it is neither a file nor a folder"):
        unpack(tmp_path / "pipe", outside / "folder")


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_written(outside: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar.gz", entry("small", data=b"a" * 1000), entry("large", data=bytes(4 * MIB)))
    with pytest.raises(RefusedArchive, match="entry 'large': with it the archive unpacks to more than 1048576 bytes"):
        unpack(path, outside / "folder", limit=MIB)
    assert [entry.name for entry in (outside / "folder").iterdir()] == ["small"]


def test_the_most_an_archive_may_unpack_to_depends_on_its_size_and_on_the_disk() -> None:
    plenty = 1 << 50
    assert most_bytes(1000, plenty) == unpacking.RATIO_FREE_BYTES + 100 * 1000
    assert most_bytes(1 << 40, plenty) == unpacking.MOST_BYTES
    assert most_bytes(1 << 40, 1000) == 900


def test_an_archive_of_too_many_entries_is_refused(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "MOST_ENTRIES", 3)
    with pytest.raises(RefusedArchive, match="it has more than 3 entries"):
        unpack(write(tmp_path / "x.tar.gz", *(folder(f"f{number}") for number in range(4))), outside / "folder")


def test_a_header_that_claims_gigabytes_costs_no_memory(outside: Path, tmp_path: Path) -> None:
    """tarfile reads extended headers whole, so the process that unpacks has a limit of its own."""
    info = tarfile.TarInfo("x")
    info.type = tarfile.XHDTYPE
    info.size = 4 << 30
    path = tmp_path / "x.tar.gz"
    compressing = zlib.compressobj(1, wbits=31)
    header = compressing.compress(info.tobuf(tarfile.GNU_FORMAT)) + compressing.flush(zlib.Z_FULL_FLUSH)
    # What comes between two full flushes refers to nothing before it, so it may be there any number of times.
    blanks = compressing.compress(bytes(MIB)) + compressing.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(header + blanks * (3 << 10))
    done = subprocess.run(
        [sys.executable, "-I", unpacking.__file__, path, outside / "folder"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (1, "it is damaged, or no tar archive: MemoryError\n")


NAMES = st.sampled_from(
    ["a", "b", "a/b", "a/b/c", "..", "../a", "a/..", "/a", ".", "", "bin/python", "a/../../b", "b/a"]
)
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("a", tarfile.SYMTYPE, "a/../../b", b"")])  # a loop, of which os.path.realpath makes a way out
@given(st.lists(st.tuples(NAMES, KINDS, NAMES, st.binary(max_size=3)), max_size=6))
def test_no_archive_writes_outside_or_leaves_a_way_out(
    tmp_path_factory: pytest.TempPathFactory, described: list[tuple[str, bytes, str, bytes]]
) -> None:
    """Whatever is in it: it is refused, or all its links stay inside, but for those of ``bin/python``."""
    around = tmp_path_factory.mktemp("around")
    root = around / "folder"
    root.mkdir()
    entries = [
        entry(name, kind, target, b"" if kind != tarfile.REGTYPE else data) for name, kind, target, data in described
    ]
    path = write(tmp_path_factory.mktemp("archive") / "x.tar", *entries, mode="w")
    try:
        unpack(path, root)
    except RefusedArchive:
        pass
    else:
        for found in root.rglob("*"):
            if found.is_symlink() and found.relative_to(root) != Path("bin/python"):
                resolved = Path(os.path.realpath(found))
                assert resolved == root or root in resolved.parents
    assert [found for found in around.iterdir() if found != root] == []


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    base = tmp_path_factory.mktemp("damage")
    path = write(base / "x.tar", entry("a", data=b"text"), link("b", "a"), hard_link("c", "a"), mode="w")
    content = bytearray(path.read_bytes()[:2560])
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=8)):
        content[at] = value
    path.write_bytes(content)
    (base / "folder").mkdir()
    try:
        unpack(path, base / "folder")
    except RefusedArchive as error:
        assert str(error)
