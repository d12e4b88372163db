"""Device helpers: real processes on a pretended device, and what becomes of questions when one hangs, dies or is not needed."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers import device_helper
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.engine.workers.fork_server import ForkServers
from pytriton_lite.engine.workers.intake import LEAST_BYTES, Intake, home_of
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc.device_segment import DeviceSegment
from pytriton_lite.ipc.pretend_device import CRASHING_HANDLE, HANGING_HANDLE, PretendDevice, uuid_of
from pytriton_lite.ipc.segment import Segment
from tests.device_kit import PRETENDED, ClientMemory, device_files
from tests.harness import open_descriptors

WORKERS = WorkerSettings(
    executable=sys.executable, shm_prefix="device-test-", ring_bytes=1 << 20, hello_timeout_s=60, ready_timeout_s=60
)


@asynccontextmanager
async def helpers(answer_s: float = 60.0, idle_s: float = 60.0) -> AsyncIterator[DeviceHelpers]:
    fork_servers = ForkServers()
    environment = Environment(sys.executable, {**os.environ, **PRETENDED})
    made = DeviceHelpers([uuid_of(0), uuid_of(1)], WORKERS, fork_servers, environment, answer_s=answer_s, idle_s=idle_s)
    try:
        yield made
    finally:
        await made.close()
        fork_servers.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    before = open_descriptors()

    async def whole() -> None:
        await test()

    asyncio.run(whole())
    assert open_descriptors() == before


async def kill(made: DeviceHelpers) -> None:
    """Kill the one helper that there is. Returns when it is known to have ended."""
    (pid,) = made.pids
    os.kill(pid, signal.SIGKILL)
    await ended(pid)
    while made.pids:  # noqa: ASYNC110 - its end is still to be reported
        await asyncio.sleep(0.001)


async def ended(pid: int) -> None:
    """Return when the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await asyncio.to_thread(select.select, [fd], [], [])
    finally:
        os.close(fd)


def fp32(data: bytes) -> Tensor:
    return Tensor("T", dtypes.FP32, (len(data) // 4,), data)


def test_bytes_go_to_and_from_memory_of_a_client_and_of_a_worker() -> None:
    async def test() -> None:
        device = PretendDevice(1)
        of_client = ClientMemory(device, 8192)
        of_worker = device.allocate(8192)
        async with helpers() as made:
            opened = await made.open(of_client.handle, 1, 8192)
            exported = DeviceSegment(uuid_of(1), 8192, fd=os.dup(of_worker.fd))
            for segment in (opened, exported):
                await made.write(segment, 4096, fp32(b"four" * 256))
                copy = await made.read(segment, 4092, 12)
                assert bytes(copy.view[:12]) == bytes(4) + b"fourfour"
                # A tensor that is in shared memory already is not copied into another segment.
                await made.write(segment, 0, Tensor("T", dtypes.FP32, (2,), copy.view[4:12], home=(copy, 4)))
                assert bytes((await made.read(segment, 0, 8)).view[:8]) == b"fourfour"
            assert len(made.pids) == 1

    run(test)


def test_an_input_that_a_request_was_received_with_is_written_from_where_it_lies() -> None:
    async def test() -> None:
        memory = ClientMemory(PretendDevice(0), LEAST_BYTES)
        intake = Intake(prefix=WORKERS.shm_prefix, ring_bytes=WORKERS.ring_bytes)
        async with helpers() as made:
            room = intake.room(LEAST_BYTES)
            room[:] = os.urandom(LEAST_BYTES)
            home = home_of(room)
            assert home is not None
            await made.write(
                await made.open(memory.handle, 0, LEAST_BYTES),
                0,
                Tensor("T", dtypes.UINT8, (LEAST_BYTES,), room, home=home),
            )
            assert memory.get(LEAST_BYTES) == bytes(room)
            del room, home
        intake.close()

    run(test)


@pytest.mark.parametrize(
    ("handle", "text"), [(CRASHING_HANDLE, "SIGSEGV|signal 11"), (HANGING_HANDLE, "did not answer")]
)
def test_a_handle_that_a_driver_does_not_survive_costs_the_helper_alone(handle: bytes, text: str) -> None:
    async def test() -> None:
        memory = ClientMemory(PretendDevice(0), 64)
        async with helpers(answer_s=2.0 if handle == HANGING_HANDLE else 60.0) as made:
            good = await made.open(memory.handle, 0, 64)
            (before,) = made.pids
            with pytest.raises(InferenceError, match=text):
                await made.open(handle, 0, 64)
            await ended(before)
            await made.write(good, 0, fp32(b"data"))
            assert memory.get(4) == b"data"
            assert made.pids not in ([], [before])

    run(test)


def test_questions_of_a_helper_that_is_killed_fail_and_the_next_one_starts_another() -> None:
    async def test() -> None:
        memory = ClientMemory(PretendDevice(0), 8 << 20)
        async with helpers() as made:
            segment = await made.open(memory.handle, 0, 8 << 20)
            for _ in range(20):
                (pid,) = made.pids
                copies = [asyncio.ensure_future(made.read(segment, 0, 8 << 20)) for _ in range(4)]
                await asyncio.sleep(0)
                os.kill(pid, signal.SIGKILL)
                found = await asyncio.gather(*copies, return_exceptions=True)
                assert all(not isinstance(each, BaseException) or isinstance(each, InferenceError) for each in found)
                await ended(pid)
                while made.pids:  # noqa: ASYNC110 - it may have answered them all, and its end be still to be reported
                    await asyncio.sleep(0.001)
                await made.read(segment, 0, 4)

    run(test)


@pytest.mark.interpreted("replaces a method of the helper's process")
def test_a_question_to_a_helper_that_dies_as_soon_as_it_is_ready_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reach_goal = device_helper._HelperProcess._reach_goal

    async def reach_goal_and_die(process: device_helper._HelperProcess) -> bytes:
        ready = await reach_goal(process)
        os.kill(process.pid, signal.SIGKILL)
        await process.wait_ended()
        return ready

    async def test() -> None:
        memory = ClientMemory(PretendDevice(0), 64)
        async with helpers() as made:
            with monkeypatch.context() as patched:
                patched.setattr(device_helper._HelperProcess, "_reach_goal", reach_goal_and_die)
                with pytest.raises(InferenceError, match="was killed by signal 9"):
                    await made.open(memory.handle, 0, 64)
            await made.open(memory.handle, 0, 64)

    run(test)
    assert len([line for line in caplog.messages if "starts another one" in line]) == 1


def test_memory_that_nobody_needs_is_closed_and_a_helper_without_any_ends() -> None:
    async def test() -> None:
        device = PretendDevice(0)
        memory, other = ClientMemory(device, 64), ClientMemory(device, 64)
        async with helpers(idle_s=0.0) as made:
            kept = await made.open(memory.handle, 0, 64)
            segment: DeviceSegment | None = await made.open(other.handle, 0, 64)
            (pid,) = made.pids
            assert device_files(pid) == 6
            segment = None
            gc.collect()
            await asyncio.sleep(0)  # the turn of the loop in which the helper is told to close it
            await made.read(kept, 0, 4)  # behind that
            assert device_files(pid) == 3
            del kept
            gc.collect()
            await ended(pid)
            assert made.pids == []
            assert segment is None

    run(test)


def test_memory_that_a_helper_has_opened_again_is_closed_there_as_well() -> None:
    async def test() -> None:
        device = PretendDevice(0)
        memory, other = ClientMemory(device, 64), ClientMemory(device, 64)
        async with helpers() as made:
            kept = await made.open(memory.handle, 0, 64)
            segment: DeviceSegment | None = await made.open(other.handle, 0, 64)
            await kill(made)
            for each in (kept, segment):
                assert each is not None
                await made.read(each, 0, 4)
            (pid,) = made.pids
            assert device_files(pid) == 6
            segment = each = None
            gc.collect()
            await asyncio.sleep(0)  # the turn of the loop in which the helper is told to close it
            await made.read(kept, 0, 4)  # behind that
            assert device_files(pid) == 3

    run(test)


def test_a_helper_that_dies_before_it_has_closed_memory_leaves_no_traceback() -> None:
    async def test() -> None:
        unexpected: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
        memory = ClientMemory(PretendDevice(0), 64)
        async with helpers() as made:
            segment: DeviceSegment | None = await made.open(memory.handle, 0, 64)
            assert segment is not None
            os.kill(made.pids[0], signal.SIGSTOP)
            segment = None
            gc.collect()
            await asyncio.sleep(0)  # the turn of the loop in which the helper is told to close it
            await kill(made)
            gc.collect()
            assert not unexpected

    run(test)


def test_memory_that_cannot_be_opened_again_fails_its_own_questions_alone() -> None:
    async def test() -> None:
        device = PretendDevice(0)
        memory, freed = ClientMemory(device, 64), ClientMemory(device, 64)
        async with helpers() as made:
            good, bad = await made.open(memory.handle, 0, 64), await made.open(freed.handle, 0, 64)
            await kill(made)
            freed.memory.close()
            asked = [made.read(bad, 0, 4), made.read(bad, 0, 4), made.read(good, 0, 4), made.read(bad, 0, 4)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [str(each) for each in found if isinstance(each, InferenceError)] == [
                "a handle for CUDA device 0 (pretended) cannot be opened: it was freed"
            ] * 3

    run(test)


def test_a_server_that_stops_answers_what_is_asked() -> None:
    async def test() -> None:
        memory = ClientMemory(PretendDevice(0), 64)
        async with helpers() as made:
            segment = await made.open(memory.handle, 0, 64)
            starting = asyncio.ensure_future(made.read(segment, 0, 64))
            await made.close()
            (found,) = await asyncio.gather(starting, return_exceptions=True)
            assert isinstance(found, (Segment, InferenceError))  # whichever was first
            with pytest.raises(InferenceError, match="the server is stopping"):
                await made.read(segment, 0, 64)

    run(test)


def test_a_device_that_nobody_has_is_refused() -> None:
    async def test() -> None:
        async with helpers() as made:
            with pytest.raises(InferenceError, match="there is no CUDA device 2, this server sees 2"):
                await made.open(bytes(64), 2, 64)
            with pytest.raises(InferenceError, match="cannot be used by this server"):
                await made.read(DeviceSegment(uuid_of(5), 64, handle=bytes(64)), 0, 4)
            assert made.pids == []

    run(test)
