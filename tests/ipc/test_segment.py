"""Shared memory by descriptor: nothing with a name stays, and what is reserved is really there."""

from __future__ import annotations

import gc
import os
import queue
import resource
import secrets
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc.segment import Segment, SharedWords, UnsafeSegment, shm_free_bytes, words_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/shm and /proc")

SHM = Path("/dev/shm")


@pytest.fixture
def prefix() -> str:
    """What nobody else's segments begin with."""
    return f"segment_test_{secrets.token_hex(6)}_"


def named(prefix: str) -> list[str]:
    return [entry.name for entry in SHM.iterdir() if entry.name.startswith(prefix)]


def run_python(code: str, *arguments: str, fds: tuple[int, ...] = (), before: tuple[str, ...] = ()) -> str:
    """What another process with our package prints."""
    done = subprocess.run(
        [*before, sys.executable, "-c", textwrap.dedent(code), *arguments],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def segment(prefix: str) -> Iterator[Segment]:
    made = Segment.create(8192, prefix=prefix)
    yield made
    made.close()


@linux
def test_no_name_is_left_when_create_returns(segment: Segment, prefix: str) -> None:
    assert named(prefix) == []
    assert os.readlink(f"/proc/self/fd/{segment.fd}").endswith(" (deleted)")


@linux
def test_nobody_who_has_the_descriptor_can_change_the_size(segment: Segment) -> None:
    said = run_python(
        """
        import os, sys
        for nbytes in (0, 4096, 1 << 20):
            try:
                os.ftruncate(int(sys.argv[1]), nbytes)
            except PermissionError:
                print("refused")
        """,
        str(segment.fd),
        fds=(segment.fd,),
    )
    assert said.split() == ["refused"] * 3
    assert os.fstat(segment.fd).st_size == 8192


@linux
def test_what_another_process_could_cut_off_is_not_mapped(tmp_path: Path) -> None:
    """A file of another kind, and a memory file without seals."""
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    for fd in (os.open(path, os.O_RDWR), os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)):
        os.ftruncate(fd, 8192)
        with pytest.raises(UnsafeSegment, match="size is not sealed"):
            Segment.attach(fd, 8192)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@linux
def test_words_that_were_cut_off_read_as_zero(tmp_path: Path) -> None:
    """Where there are no memory files: what is read by system call cannot kill who reads."""
    path = tmp_path / "page"
    path.write_bytes((7).to_bytes(8, sys.byteorder) + (9).to_bytes(8, sys.byteorder))
    with path.open("r+b") as page:
        words = SharedWords(page.fileno())
        words[1] += 1
        assert (words[0], words[1]) == (7, 10)
        page.truncate(0)
        assert (words[0], words[1]) == (0, 0)


@linux
def test_words_of_sealed_memory_are_mapped(segment: Segment) -> None:
    words = words_of(segment)
    words[1] = 5
    assert isinstance(words, memoryview)
    assert segment.view[8:16] == (5).to_bytes(8, sys.byteorder)


@linux
def test_the_pages_are_there_when_create_returns(segment: Segment) -> None:
    status = os.fstat(segment.fd)
    assert status.st_size == 8192
    assert status.st_blocks * 512 >= 8192
    assert bytes(segment.view) == bytes(8192)


def test_another_process_sees_the_data_and_we_see_its(segment: Segment) -> None:
    segment.view[:5] = b"hello"
    said = run_python(
        """
        import sys
        from pytriton_lite.ipc.segment import Segment
        segment = Segment.attach(int(sys.argv[1]), 8192)
        print(bytes(segment.view[:5]).decode(), segment.backing)
        segment.view[8187:] = b"reply"
        """,
        str(segment.fd),
        fds=(segment.fd,),
    )
    assert said == "hello attached"
    assert bytes(segment.view[8187:]) == b"reply"


def test_a_descriptor_is_not_inherited_by_what_a_model_starts(segment: Segment) -> None:
    assert not os.get_inheritable(segment.fd)


@linux
def test_after_close_views_stay_valid_and_the_memory_goes_with_the_last(segment: Segment, prefix: str) -> None:
    fd = segment.fd
    view = segment.view[:4]
    view[:] = b"kept"
    segment.close()
    segment.close()
    assert segment.fd == -1
    assert not Path(f"/proc/self/fd/{fd}").exists() or prefix not in os.readlink(f"/proc/self/fd/{fd}")
    assert bytes(view) == b"kept"
    assert prefix in Path("/proc/self/maps").read_text()
    view.release()
    gc.collect()
    assert prefix not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("nbytes", "is_elsewhere"), [(4096, False), (32 << 20, True)])
def test_who_closes_a_large_segment_does_not_wait_until_its_pages_are_free(
    prefix: str, monkeypatch: pytest.MonkeyPatch, nbytes: int, is_elsewhere: bool
) -> None:
    segment = Segment.create(nbytes, prefix=prefix)
    wanted, closed = segment.fd, queue.SimpleQueue[int]()
    close = os.close

    def noted(fd: int) -> None:
        close(fd)
        if fd == wanted:
            closed.put(threading.get_ident())

    monkeypatch.setattr(os, "close", noted)
    segment.close()
    assert (closed.get(timeout=30) != threading.get_ident()) is is_elsewhere


def test_attach_owns_the_descriptor_even_when_it_fails(segment: Segment) -> None:
    fd = os.dup(segment.fd)
    with pytest.raises(UnsafeSegment, match="has 8192 bytes, expected 1048576"):
        Segment.attach(fd, 1 << 20)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


LITTLE = """
    import errno, resource, sys
    from pathlib import Path
    from pytriton_lite.core.errors import InferenceError
    from pytriton_lite.ipc.segment import Segment
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    try:
        Segment.create(1 << 21, prefix=sys.argv[1])
    except InferenceError as error:
        print(error.code.name, error.message)
"""


@linux
def test_where_nothing_has_room_the_text_is_tritons_but_for_its_advice(prefix: str) -> None:
    """A limit on the size of files, in a process of its own. Triton's memory is that of ``/dev/shm``, memory files are not."""
    assert run_python(LITTLE, prefix) == (
        "INTERNAL Failed to increase the shared memory pool size to 2097152 bytes. It is limited by the memory of the process "
        "and its container, and not by docker's '--shm-size' flag. Error: File too large"
    )
    assert named(prefix) == []


def test_failures_leave_no_descriptors(prefix: str) -> None:
    """With a table of descriptors that is full: the sentence, and what was opened on the way is closed again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(InferenceError, match="Error: Too many open files") as caught:
            Segment.create(8192, prefix=prefix)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.code is ErrorCode.INTERNAL
    fd = os.dup(0)
    os.close(fd)
    assert fd == lowest


IN_A_SMALL_SHM = """
    import sys
    from pathlib import Path
    from pytriton_lite.ipc.segment import Segment, SharedWords, UnsafeSegment, shm_free_bytes, words_of

    assert shm_free_bytes() == 1 << 20, shm_free_bytes()
    large = Segment.create(1 << 22)
    large.view[:] = bytes([7]) * large.nbytes
    print(large.backing, list(Path("/dev/shm").iterdir()))
"""


@linux
def test_a_dev_shm_of_one_megabyte_does_not_limit_segments() -> None:
    """Every byte of them can be written: no SIGBUS."""
    unshare = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--mount", "--map-root-user")
    mount = (*unshare, "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh")
    try:
        probe = subprocess.run([*mount, "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        pytest.skip(f"no private mount namespace: {error}")
    if probe.returncode:
        pytest.skip(f"no private mount namespace: {probe.stderr.strip()}")
    assert run_python(IN_A_SMALL_SHM, before=mount) == "memfd []"


@linux
def test_the_probe_tells_what_is_free() -> None:
    status = os.statvfs("/dev/shm")
    assert 0 <= shm_free_bytes() <= status.f_blocks * status.f_frsize
