"""The registry of clients' shared memory: what may be registered, what a tensor may lie in, who keeps what open.

HTTP spec, section 12. Segments are real, in ``/dev/shm``.
"""

from __future__ import annotations

import asyncio
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.engine.workers import regions as module
from pytriton_lite.engine.workers.regions import RegionLimits, Regions
from pytriton_lite.ipc.device_segment import DeviceSegment, is_on_device
from pytriton_lite.ipc.segment import DEFAULT_PREFIX
from tests.harness import PROJECT, open_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at segments as files, which only Linux shows")

SHM = Path("/dev/shm")
DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
MakeSegment = Callable[..., str]


@pytest.fixture
def make_segment() -> Iterator[MakeSegment]:
    """Makes segments; their keys. What is left of them goes with the test."""
    keys: list[str] = []

    def make(nbytes: int = 64, *, key: str = "") -> str:
        keys.append(key or f"regions-{secrets.token_hex(8)}")
        (SHM / keys[-1]).write_bytes(bytes(range(nbytes % 256)) if nbytes < 256 else bytes(nbytes))
        return keys[-1]

    yield make
    for key in keys:
        (SHM / key).unlink(missing_ok=True)


@pytest.fixture
def key(make_segment: MakeSegment) -> str:
    """Of a segment of 64 bytes, 0 to 63."""
    return make_segment()


@pytest.fixture
def regions() -> Regions:
    return Regions(is_allowed=True, own_prefixes=(DEFAULT_PREFIX, "configured_"), open_cuda=open_cuda)


async def open_cuda(handle: bytes, device_id: int, byte_size: int) -> DeviceSegment:
    """A device that knows one handle."""
    await asyncio.sleep(0)
    if handle != b"h" * 64 or device_id != 0:
        raise InferenceError(ErrorCode.INTERNAL, "CUDA_ERROR_INVALID_VALUE")
    return DeviceSegment(b"u" * 16, byte_size, handle=handle)


def register_cuda(regions: Regions, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
    asyncio.run(regions.register_cuda(name, handle, device_id, byte_size))


def refusal(call: Callable[..., object], *args: object) -> tuple[ErrorCode, str]:
    with pytest.raises(InferenceError) as caught:
        call(*args)
    return caught.value.code, caught.value.message


# ---------------------------------------------------------------------------------------------------- registration


def test_a_tensor_starts_at_the_offset_of_its_region_plus_its_own(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 16, 32)
    window = regions.window("r", 8, 4)
    assert (window.offset, window.nbytes) == (24, 4)
    assert window.segment.read(window.offset, window.nbytes) == bytes([24, 25, 26, 27])


@pytest.mark.parametrize("slashes", ["", "/", "///"])
def test_slashes_in_front_of_a_key_are_optional_and_shown_as_they_came(
    regions: Regions, key: str, slashes: str
) -> None:
    regions.register_system("r", slashes + key, 0, 64)
    (row,) = regions.system_status("r")
    assert (row.name, row.key, row.offset, row.byte_size) == ("r", slashes + key, 0, 64)


def test_a_name_is_taken_once_whatever_its_kind(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, 64)
    taken = (ErrorCode.ALREADY_EXISTS, "shared memory region 'r' already in manager")
    assert refusal(regions.register_system, "r", key, 0, 32) == taken
    assert refusal(register_cuda, regions, "r", b"h" * 64, 0, 8) == taken


def test_a_region_has_a_name(regions: Regions, key: str) -> None:
    text = "'region name' is necessary to register {} shared memory region"
    assert refusal(regions.register_system, "", key, 0, 64) == (ErrorCode.INVALID_ARG, text.format("system"))
    assert refusal(register_cuda, regions, "", b"h" * 64, 0, 8) == (ErrorCode.INVALID_ARG, text.format("cuda"))


@pytest.mark.parametrize(
    ("offset", "byte_size"), [(0, 65), (1, 64), (64, 1), (1 << 64, 1), (0, 1 << 70), (-1, 8), (8, -1), (-8, 64)]
)
def test_a_region_lies_in_its_segment(regions: Regions, key: str, offset: int, byte_size: int) -> None:
    expected = (ErrorCode.INVALID_ARG, "failed to register shared memory region 'r': invalid args")
    assert refusal(regions.register_system, "r", key, offset, byte_size) == expected
    assert regions.system_status() == []


def test_a_region_is_not_empty(regions: Regions, key: str) -> None:
    text = "failed to register shared memory region 'r': unable to process address spaceInvalid argument"
    assert refusal(regions.register_system, "r", key, 0, 0) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 0), (0, 8), (-1, -1), (1 << 63, 1 << 63)])
def test_a_key_that_is_not_there_is_told_whatever_the_size(regions: Regions, offset: int, byte_size: int) -> None:
    expected = (ErrorCode.INTERNAL, "Unable to open shared memory region: '/no_such_key'")
    assert refusal(regions.register_system, "r", "/no_such_key", offset, byte_size) == expected


def test_offsets_need_not_be_those_of_pages(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 7, 57)
    assert regions.window("r", 56, 1).offset == 63


def test_two_regions_over_one_key_live_and_end_on_their_own(regions: Regions, key: str) -> None:
    """2.51 uses a closed descriptor for the second."""
    regions.register_system("a", key, 0, 32)
    regions.register_system("b", key, 32, 32)
    regions.unregister_system("a")
    window = regions.window("b", 0, 1)
    assert window.segment.read(window.offset, 1) == bytes([32])


@pytest.mark.parametrize(
    "key",
    [
        "", "/", "///", ".", "..", "/..", "../shm/x", "/../etc/passwd", "a/b", "a/../b", "/a/", "./a", "\0", "a\0b",
        "a\udcff",
    ],
)  # fmt: skip
def test_a_key_is_one_name_and_never_a_path(regions: Regions, key: str) -> None:
    text = f"cannot register shared memory region 'r' - invalid shm key '{key}'"
    assert refusal(regions.register_system, "r", key, 0, 1) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize("prefix", [DEFAULT_PREFIX, "configured_", "triton_python_backend_shm_region_"])
@pytest.mark.parametrize("slashes", ["", "//"])
def test_names_of_servers_own_segments_are_reserved(
    regions: Regions, make_segment: MakeSegment, slashes: str, prefix: str
) -> None:
    key = slashes + make_segment(key=prefix + secrets.token_hex(8))
    text = (
        f"cannot register shared memory region 'r' with key '{key}' as the key contains the reserved prefix '{prefix}'"
    )
    assert refusal(regions.register_system, "r", key, 0, 64) == (ErrorCode.INVALID_ARG, text)


def test_what_is_no_segment_is_not_opened(regions: Regions, make_segment: MakeSegment, tmp_path: Path) -> None:
    """A missing one, links wherever they lead, a pipe (without waiting for its other end), a directory, a name too long."""
    target = make_segment()
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(64))
    odd = [f"regions-{secrets.token_hex(8)}" for _ in range(5)]
    (SHM / odd[0]).symlink_to(secret)
    (SHM / odd[1]).symlink_to(target)
    os.mkfifo(SHM / odd[2])
    (SHM / odd[3]).mkdir()
    before = open_descriptors()
    try:
        for key in (*odd, "x" * 256):
            text = f"Unable to open shared memory region: '{key}'"
            assert refusal(regions.register_system, "r", key, 0, 1) == (ErrorCode.INTERNAL, text)
    finally:
        for key in odd[:3]:
            (SHM / key).unlink()
        (SHM / odd[3]).rmdir()
    assert open_descriptors() == before


def test_a_key_is_utf_8_also_where_the_locale_is_not(make_segment: MakeSegment) -> None:
    key = make_segment(key=f"régions-{secrets.token_hex(8)}")
    code = f"Regions(is_allowed=True).register_system('r', {key!a}, 0, 64)"
    command = [sys.executable, "-c", f"from pytriton_lite.engine.workers.regions import Regions\n{code}"]
    ascii_alone = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(command, env={**os.environ, **ascii_alone}, cwd=PROJECT, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_segment_that_the_server_may_not_write_to_is_not_opened(
    regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For root, as whom tests may run, permissions do not count: what the system is asked for is looked at."""
    asked: list[int] = []
    real_open = os.open

    def recording_open(path: str, flags: int) -> int:
        asked.append(flags)
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", recording_open)
    regions.register_system("r", key, 0, 64)
    assert asked[0] & os.O_ACCMODE == os.O_RDWR
    assert asked[0] & os.O_NOFOLLOW


# ---------------------------------------------------------------------------------------------------- what is allowed


def test_nothing_is_registered_where_it_is_not_allowed(key: str) -> None:
    regions = Regions(is_allowed=False)
    disabled = (ErrorCode.UNSUPPORTED, DISABLED)
    assert refusal(regions.register_system, "r", key, 0, 64) == disabled
    assert refusal(register_cuda, regions, "r", b"h" * 64, 0, 8) == disabled
    assert refusal(regions.unregister_system) == disabled
    assert refusal(regions.unregister_cuda, "r") == disabled
    assert regions.system_status() == regions.cuda_status() == []


def test_an_operator_allows_keys_by_how_they_begin(make_segment: MakeSegment) -> None:
    regions = Regions(is_allowed=True, limits=RegionLimits(key_prefixes=("camera-", "audio-")))
    good = make_segment(key=f"camera-{secrets.token_hex(8)}")
    regions.register_system("r", "/" + good, 0, 64)
    for key in (make_segment(), "x" + good, "camera"):
        assert refusal(regions.register_system, "other", key, 0, 64) == (
            ErrorCode.INVALID_ARG,
            f"cannot register shared memory region 'other' with key '{key}' as this server allows only keys that begin "
            "with 'camera-' or 'audio-' (--client-shm-key-prefix)",
        )


def test_an_operator_allows_so_many_bytes_of_a_segment(key: str) -> None:
    regions = Regions(is_allowed=True, limits=RegionLimits(max_byte_size=48), open_cuda=open_cuda)
    regions.register_system("r", key, 16, 32)
    text = (
        "failed to register shared memory region 'other': offset and byte size reach to {} bytes, this server allows 48 "
        "(--client-shm-max-byte-size)"
    )
    assert refusal(regions.register_system, "other", key, 17, 32) == (ErrorCode.INVALID_ARG, text.format(49))
    assert refusal(register_cuda, regions, "other", b"h" * 64, 0, 50) == (ErrorCode.INVALID_ARG, text.format(50))


def test_regions_leave_descriptors_for_connections(regions: Regions, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5, 5))
    regions.register_system("a", key, 0, 64)
    regions.register_system("b", key, 0, 64)
    code, text = refusal(regions.register_system, "c", key, 0, 64)
    assert code is ErrorCode.UNAVAILABLE
    assert text.startswith("failed to register shared memory region 'c': 2 regions are registered")
    regions.unregister_system("a")
    regions.register_system("c", key, 0, 64)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    regions.register_system("d", key, 0, 64)


# ---------------------------------------------------------------------------------------------------- status


def test_status_is_by_name_and_of_one_kind(regions: Regions, key: str) -> None:
    for name in ("b", "a", "ä"):
        regions.register_system(name, key, 0, 64)
    register_cuda(regions, "c", b"h" * 64, 0, 8)
    assert [row.name for row in regions.system_status()] == ["a", "b", "ä"]
    (row,) = regions.cuda_status()
    assert (row.name, row.device_id, row.byte_size) == ("c", 0, 8)
    assert regions.cuda_status("c") == [row]


def test_status_of_what_is_not_there_or_of_the_other_kind(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, 64)
    register_cuda(regions, "c", b"h" * 64, 0, 8)
    for call, name, text in (
        (regions.system_status, "x", "Unable to find system shared memory region: 'x'"),
        (regions.cuda_status, "x", "Unable to find cuda shared memory region: 'x'"),
        (
            regions.system_status,
            "c",
            "The region named 'c' is registered as CUDA shared memory, not system shared memory",
        ),
        (
            regions.cuda_status,
            "r",
            "The region named 'r' is registered as system shared memory, not CUDA shared memory",
        ),
    ):
        assert refusal(call, name) == (ErrorCode.NOT_FOUND, text)


# ---------------------------------------------------------------------------------------------------- unregistration


def test_unregistering_knows_only_its_own_kind(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 0, 64)
    regions.register_system("s", key, 0, 64)
    register_cuda(regions, "c", b"h" * 64, 0, 8)
    regions.unregister_system("nope")
    regions.unregister_system("c")
    regions.unregister_cuda("r")
    regions.unregister_cuda()
    assert [row.name for row in regions.system_status()] == ["r", "s"]
    assert regions.cuda_status() == []
    regions.unregister_system("r")
    assert [row.name for row in regions.system_status()] == ["s"]
    regions.unregister_system()
    assert regions.system_status() == []


def test_a_segment_is_closed_by_its_last_user(regions: Regions, key: str) -> None:
    """Newer Triton's rule: unregistering succeeds at once, the memory stays for requests that use it."""
    before = open_descriptors()
    regions.register_system("r", key, 0, 64)
    window = regions.window("r", 0, 4)
    regions.unregister_system("r")
    (SHM / key).unlink()
    assert window.segment.read(window.offset, window.nbytes) == bytes([0, 1, 2, 3])
    assert open_descriptors() == before + 1
    del window
    assert open_descriptors() == before


def test_close_gives_everything_back(regions: Regions, key: str) -> None:
    before = open_descriptors()
    regions.register_system("a", key, 0, 64)
    regions.register_system("b", key, 0, 64)
    regions.close()
    assert open_descriptors() == before


# ---------------------------------------------------------------------------------------------------- windows

OFFSET = "Invalid offset for shared memory region: 'r'"
SIZE = "Invalid offset + byte size for shared memory region: 'r'"
OVERFLOW = "Integer overflow detected: byte_size ({}) + offset ({}) exceeds maximum value (18446744073709551615) for region 'r'"


@pytest.mark.parametrize(
    ("offset", "byte_size", "text"),
    [
        (32, 0, OFFSET),
        (32, 1, OFFSET),
        (1 << 63, 1, OFFSET),
        (1 << 70, 1, OFFSET),
        (-1, 1, OFFSET),
        (0, 33, SIZE),
        (31, 2, SIZE),
        (0, -1, SIZE),
        (0, (1 << 64) - 1, SIZE),
        (1, (1 << 64) - 1, OVERFLOW.format((1 << 64) - 1, 1)),
        (0, 1 << 64, OVERFLOW.format(1 << 64, 0)),
    ],
)
def test_a_tensor_lies_in_its_region_not_merely_in_the_segment(
    regions: Regions, key: str, offset: int, byte_size: int, text: str
) -> None:
    regions.register_system("r", key, 16, 32)
    assert refusal(regions.window, "r", offset, byte_size) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize(("offset", "byte_size"), [(0, 32), (31, 1), (0, 0), (31, 0)])
def test_a_tensor_may_fill_its_region_and_may_be_empty(regions: Regions, key: str, offset: int, byte_size: int) -> None:
    regions.register_system("r", key, 16, 32)
    assert regions.window("r", offset, byte_size)[1:] == (16 + offset, byte_size)


def test_an_unknown_region_is_not_found(regions: Regions) -> None:
    assert refusal(regions.window, "r", 0, 1) == (
        ErrorCode.NOT_FOUND,
        "Unable to find shared memory region: 'r'",
    )


def test_a_segment_that_shrank_is_noticed_before_anybody_reads_it(regions: Regions, key: str) -> None:
    regions.register_system("r", key, 16, 32)
    os.truncate(SHM / key, 20)
    assert regions.window("r", 0, 4).offset == 16
    assert refusal(regions.window, "r", 0, 8) == (
        ErrorCode.INVALID_ARG,
        f"shared memory region 'r' was made smaller: 24 bytes of '{key}' are needed, it has 20",
    )


def test_a_segment_of_many_bytes_that_are_not_there_costs_nothing(regions: Regions, make_segment: MakeSegment) -> None:
    key = make_segment(0)
    os.truncate(SHM / key, 1 << 40)
    regions.register_system("r", key, 1 << 39, 1 << 39)
    assert regions.window("r", (1 << 39) - 1, 1).offset == (1 << 40) - 1


def test_texts_of_a_request_that_would_be_read_for_long_are_refused_before(
    regions: Regions, make_segment: MakeSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tensors are not read here, whatever their size."""
    monkeypatch.setattr(module, "_MOST_TEXT_BYTES", 10_000)
    key = make_segment(0)
    os.truncate(SHM / key, 1 << 40)
    regions.register_system("r", key, 0, 1 << 40)

    def add(request: InferenceRequest, name: str, datatype: DataType, byte_size: int) -> None:
        regions.add_input(request, name, datatype, (1,), region="r", offset=0, byte_size=byte_size)

    request = InferenceRequest("m", None)
    add(request, "NUMBERS", dtypes.FP32, 1 << 40)
    add(request, "A", dtypes.BYTES, 6_000)
    add(request, "B", dtypes.BYTES, 4_000)
    assert refusal(add, request, "C", dtypes.BYTES, 1) == (
        ErrorCode.INVALID_ARG,
        "input 'C': BYTES inputs in shared memory may have 10000 bytes in one request",
    )
    another = InferenceRequest("m", None)
    assert refusal(add, another, "A", dtypes.BYTES, 1 << 39)[0] is ErrorCode.INVALID_ARG


# ---------------------------------------------------------------------------------------------------- CUDA


def test_without_a_way_to_open_it_no_device_memory_is_registered() -> None:
    expected = (ErrorCode.INVALID_ARG, "failed to register CUDA shared memory region: 'c', GPUs not supported")
    assert refusal(register_cuda, Regions(is_allowed=True), "c", b"h" * 64, 0, 8) == expected


@pytest.mark.parametrize(
    ("handle", "device_id", "byte_size"),
    [(b"h" * 63, 0, 8), (b"", 0, 8), (b"x" * 64, 0, 8), (b"h" * 64, 1, 8), (b"h" * 64, 0, 0)],
)
def test_device_memory_that_cannot_be_opened_is_refused(
    regions: Regions, handle: bytes, device_id: int, byte_size: int
) -> None:
    expected = (ErrorCode.INVALID_ARG, "failed to register shared memory region: invalid args")
    assert refusal(register_cuda, regions, "c", handle, device_id, byte_size) == expected
    assert regions.cuda_status() == []


def test_a_tensor_on_a_device_is_named_and_not_read(regions: Regions) -> None:
    register_cuda(regions, "c", b"h" * 64, 0, 8)
    tensor = regions.tensor("IN", dtypes.FP32, (1,), region="c", offset=4, byte_size=4)
    assert is_on_device(tensor)
    assert tensor.home is not None
    segment, offset = tensor.home
    assert (segment.handle, offset, tensor.nbytes) == (b"h" * 64, 4, 4)
    assert regions.window("c", 0, 8).segment is segment
    assert refusal(tensor.content)[0] is ErrorCode.UNSUPPORTED
    assert refusal(regions.window, "c", 8, 1)[1] == "Invalid offset for shared memory region: 'c'"


def test_of_two_who_register_a_name_at_the_same_time_one_gets_it() -> None:
    regions = Regions(is_allowed=True, open_cuda=open_cuda)

    async def both() -> list[BaseException | None]:
        return await asyncio.gather(
            *(regions.register_cuda("c", b"h" * 64, 0, nbytes) for nbytes in (8, 16)), return_exceptions=True
        )

    first, second = asyncio.run(both())
    assert first is None
    assert isinstance(second, InferenceError)
    assert second.message == "shared memory region 'c' already in manager"
    assert [row.byte_size for row in regions.cuda_status()] == [8]
