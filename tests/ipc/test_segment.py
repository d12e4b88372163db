"""Shared memory by descriptor: nothing with a name stays, and what is reserved is really there."""

from __future__ import annotations

import gc
import os
import resource
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc.segment import Segment, shm_free_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/shm and /proc")

SHM = Path("/dev/shm")
PLENTY = 1 << 40


@pytest.fixture
def prefix() -> str:
    """What nobody else's segments begin with."""
    return f"segment_test_{secrets.token_hex(6)}_"


def create(nbytes: int, prefix: str, *, free: int = PLENTY) -> Segment:
    return Segment.create(nbytes, prefix=prefix, free_bytes=lambda: free)


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


@pytest.fixture(params=[PLENTY, 0], ids=["shm", "memfd"])
def segment(request: pytest.FixtureRequest, prefix: str) -> Iterator[Segment]:
    made = create(8192, prefix, free=request.param)
    yield made
    made.close()


@linux
def test_no_name_is_left_when_create_returns(segment: Segment, prefix: str) -> None:
    assert named(prefix) == []
    assert os.readlink(f"/proc/self/fd/{segment.fd}").endswith(" (deleted)")


@linux
@pytest.mark.parametrize(
    ("free", "backing"),
    [(PLENTY, "shm"), (2 * 8192, "shm"), (2 * 8192 - 1, "memfd"), (0, "memfd")],
)
def test_posix_shared_memory_is_left_half_of_its_room(free: int, backing: str, prefix: str) -> None:
    made = create(8192, prefix, free=free)
    assert made.backing == backing
    assert os.readlink(f"/proc/self/fd/{made.fd}").startswith(f"/dev/shm/{prefix}" if backing == "shm" else "/memfd:")
    made.close()


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


def test_attach_owns_the_descriptor_even_when_it_fails(segment: Segment) -> None:
    fd = os.dup(segment.fd)
    with pytest.raises(ValueError, match="mmap length is greater than file size"):
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
        Segment.create(1 << 21, prefix=sys.argv[1], free_bytes=lambda: int(sys.argv[2]))
    except InferenceError as error:
        print(error.code.name, error.message)
"""


@linux
@pytest.mark.parametrize("free", [PLENTY, 0], ids=["shm fails first", "memfd alone"])
def test_where_nothing_has_room_the_text_is_tritons(free: int, prefix: str) -> None:
    """A limit on the size of files makes both fail, in a process of its own."""
    assert run_python(LITTLE, prefix, str(free)) == (
        "INTERNAL Failed to increase the shared memory pool size to 2097152 bytes. If you are running inside docker, use "
        "'--shm-size' flag to control the shared memory region size. Error: File too large"
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
            create(8192, prefix)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.code is ErrorCode.INTERNAL
    fd = os.dup(0)
    os.close(fd)
    assert fd == lowest


IN_A_SMALL_SHM = """
    import sys
    from pathlib import Path
    from pytriton_lite.ipc.segment import Segment, shm_free_bytes

    assert shm_free_bytes() == 1 << 20, shm_free_bytes()
    small = Segment.create(1 << 18)
    honest = Segment.create(1 << 22)
    # The probe is only a guess: others may take the room between it and the reservation.
    deceived = Segment.create(1 << 22, free_bytes=lambda: 1 << 40)
    for segment in (small, honest, deceived):
        segment.view[:] = bytes([7]) * segment.nbytes
    print(small.backing, honest.backing, deceived.backing, list(Path("/dev/shm").iterdir()))
"""


@linux
def test_in_a_dev_shm_of_one_megabyte_large_segments_are_memory_files() -> None:
    """Every byte of them can be written: no SIGBUS."""
    unshare = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--mount", "--map-root-user")
    mount = (*unshare, "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh")
    try:
        probe = subprocess.run([*mount, "true"], capture_output=True, text=True, timeout=30)
    except FileNotFoundError as error:
        pytest.skip(f"no private mount namespace: {error}")
    if probe.returncode:
        pytest.skip(f"no private mount namespace: {probe.stderr.strip()}")
    assert run_python(IN_A_SMALL_SHM, before=mount) == "shm memfd memfd []"


@linux
def test_the_probe_tells_what_is_free() -> None:
    status = os.statvfs("/dev/shm")
    assert 0 <= shm_free_bytes() <= status.f_blocks * status.f_frsize
