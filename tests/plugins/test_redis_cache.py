"""The response cache in a Redis server, which may be slow, full, gone, or no Redis at all.

What a real one does is in tests/contract/test_shared_cache.py.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from resp_server import RespServer, resp_server

from pytriton_lite.config.model_config import ModelConfig, parse_model_config
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.cache.response_cache import CachedOutput
from pytriton_lite.plugins.redis.cache import RedisCache, RedisSpace, packed, unpacked
from pytriton_lite.plugins.redis.options import RedisCacheOptions
from tests.certificates import Certificates

SECOND = 1_000_000_000
SILENT_MS = 1000
"""How long a Redis may be silent where it is to be silent for too long. On a busy machine a good answer may take some of it."""
OUTPUTS = [
    Tensor("OUT", dtypes.FP32, (2,), b"12345678"),
    Tensor("TEXT", dtypes.BYTES, (1,), b"\x01\x00\x00\x00x"),
    Tensor("NONE", dtypes.INT64, (0, 3), b""),
]
KEPT = tuple(CachedOutput(t.name, t.datatype, t.shape, bytes(t.data)) for t in OUTPUTS)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Scene(NamedTuple):
    server: RespServer
    cache: RedisCache
    clock: Clock
    directory: Path

    def space(self, config: ModelConfig | None = None, version: int = 1) -> RedisSpace:
        space = self.cache.space(config or config_of(), version, self.directory)
        space.begin_load()
        return space

    async def settled(self) -> None:
        """Everything that was begun is done."""
        while self.cache._tasks:
            await asyncio.wait(self.cache._tasks)


def config_of(name: str = "m", more: str = "") -> ModelConfig:
    text = f"""name: "{name}" backend: "python" max_batch_size: 1 {more}"""
    return ModelConfig.from_message(parse_model_config(text, source="test"))


def options_for(server: RespServer, **more: Any) -> RedisCacheOptions:
    return RedisCacheOptions("127.0.0.1", server.port, **{"socket_timeout": 30_000, **more})


@asynccontextmanager
async def scene_in(directory: Path, **options: Any) -> AsyncIterator[Scene]:
    (directory / "1").mkdir(exist_ok=True)
    (directory / "1" / "model.py").write_text("v1")
    async with resp_server() as server:
        clock = Clock()
        cache = RedisCache(options_for(server, **options), clock)
        try:
            yield Scene(server, cache, clock, directory)
        finally:
            await cache.close()


def play(directory: Path, act: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with scene_in(directory, **options) as scene:
            await act(scene)

    asyncio.run(asyncio.wait_for(scenario(), 30))


async def find(space: RedisSpace, digest: bytes = b"k") -> Any:
    found = space.lookup(digest)
    return await found if found is not None else None


async def keep(scene: Scene, space: RedisSpace, digest: bytes = b"k") -> None:
    space.insert(digest, OUTPUTS)
    await scene.settled()


# ---------------------------------------------------------------------------------------------- what is kept


def test_what_was_kept_is_found_by_every_server_of_the_same_files(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await keep(scene, scene.space())
        assert await find(scene.space()) == KEPT
        assert await find(scene.space(), b"other") is None

    play(tmp_path, act)


def test_a_key_names_the_model_and_its_version(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await keep(scene, scene.space())
        ((key, generation),) = scene.server.values.items() - scene.server.entries.items()
        assert list(scene.server.entries) == [key.replace(b"generation", generation) + b":" + b"k".hex().encode()]
        assert key.startswith(b"pytriton-lite:m:1:")

    play(tmp_path, act)


@pytest.mark.parametrize(
    ("change", "is_found"),
    [
        pytest.param(lambda folder: (folder / "1" / "model.py").write_text("v2"), False, id="the model's code"),
        pytest.param(lambda folder: (folder / "labels.txt").write_text("a"), False, id="a file beside the versions"),
        pytest.param(lambda folder: (folder / "1" / "more").mkdir(), True, id="an empty folder"),
        pytest.param(lambda folder: (folder / "2").mkdir() or (folder / "2" / "x").touch(), True, id="another version"),
        pytest.param(lambda folder: (folder / "1" / "__pycache__").mkdir(), True, id="bytecode"),
        pytest.param(lambda folder: (folder / "1" / "model.py").touch(), True, id="the time of a small file"),
        pytest.param(lambda folder: (folder / "config.pbtxt").touch(), True, id="the text of the configuration"),
    ],
)
def test_other_files_are_another_model(tmp_path: Path, change: Callable[[Path], object], is_found: bool) -> None:
    async def act(scene: Scene) -> None:
        await keep(scene, scene.space())
        change(tmp_path)
        assert (await find(scene.space()) == KEPT) is is_found

    play(tmp_path, act)


def test_links_are_followed_once_and_pipes_are_not_read(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "1" / "linked").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "1" / "back").symlink_to(tmp_path)
        os.mkfifo(tmp_path / "1" / "pipe")
        await keep(scene, scene.space())
        assert await find(scene.space()) == KEPT
        (tmp_path / "elsewhere" / "weights").write_text("new")
        assert await find(scene.space()) is None

    play(tmp_path, act)


def test_a_large_file_is_known_by_its_size_and_time(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        weights = tmp_path / "1" / "weights"
        weights.write_bytes(bytes(2 << 20))
        await keep(scene, scene.space())
        assert await find(scene.space()) == KEPT
        weights.write_bytes(bytes(3 << 20))
        assert await find(scene.space()) is None

    play(tmp_path, act)


@pytest.mark.parametrize(
    "other", [("n", ""), ("m", 'parameters { key: "k" value { string_value: "v" } }')], ids=["name", "configuration"]
)
def test_another_configuration_is_another_model(tmp_path: Path, other: tuple[str, str]) -> None:
    async def act(scene: Scene) -> None:
        await keep(scene, scene.space())
        assert await find(scene.space(config_of(*other))) is None

    play(tmp_path, act)


def test_an_ensemble_shares_nothing(tmp_path: Path) -> None:
    """Its answers depend on the files of other models."""
    step = 'step { model_name: "m" model_version: -1 input_map { key: "IN" value: "IN" } }'
    config = config_of(more=f'platform: "ensemble" ensemble_scheduling {{ {step} }}')

    async def act(scene: Scene) -> None:
        space = scene.space(config)
        await keep(scene, space)
        assert await find(space) == KEPT
        assert await find(scene.space(config)) is None

    play(tmp_path, act)


def test_an_unload_leaves_nothing_for_a_load_of_the_same_files(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        space.drop()
        await scene.settled()
        assert await find(space) is None
        await keep(scene, space)
        assert await find(scene.space()) is None

    play(tmp_path, act)


def test_an_unload_leaves_nothing_though_redis_has_thrown_out_what_generation_it_is(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        for _ in range(3):
            space = scene.space()
            assert await find(space) is None
            await keep(scene, space)
            scene.server.values = scene.server.entries
            space.drop()
            await scene.settled()

    play(tmp_path, act)


def test_a_load_behind_another_servers_finds_what_that_keeps(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        first, second = scene.space(), scene.space()  # both ask before there is a generation
        await scene.settled()
        await keep(scene, first)
        assert await find(second) == KEPT

    play(tmp_path, act)


def test_an_unload_leaves_nothing_also_where_it_came_before_anything_was_known(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        space.insert(b"k", OUTPUTS)  # waits until the files have been read
        space.drop()
        await scene.settled()
        assert await find(scene.space()) is None

    play(tmp_path, act)


def test_an_unload_that_redis_did_not_hear_of_leaves_nothing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        scene.server.mood = "silent"
        space.drop()
        await scene.settled()
        scene.server.mood = "well"
        scene.clock.now_ns += SECOND
        again = scene.space()
        assert await find(again) is None
        await keep(scene, again)
        assert await find(again) == KEPT

    play(tmp_path, act, socket_timeout=SILENT_MS)


def test_what_is_no_entry_is_not_found_and_said_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        (key,) = scene.server.entries
        scene.server.values[key] = b"PTLR1???"
        assert await find(space) is None

    play(tmp_path, act)
    assert "Redis has something else under a key of model 'm'" in caplog.text


HEADER = packed(KEPT)[5:9]
LONGER = bytes([HEADER[0] + 1]) + HEADER[1:]  # for a header with one byte more


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(lambda value: b"", id="empty"),
        pytest.param(lambda value: value[:7], id="no head"),
        pytest.param(lambda value: value[:-1], id="cut"),
        pytest.param(lambda value: value + b"x", id="longer"),
        pytest.param(lambda value: b"PTLR9" + value[5:], id="another version of it"),
        pytest.param(lambda value: value.replace(b"FP32", b"FP99"), id="a type that is none"),
        pytest.param(lambda value: value.replace(b"[2]", b"[3]"), id="a shape of more bytes"),
        pytest.param(lambda value: value.replace(b'"OUT"', b'"O\xff"'), id="no UTF-8"),
        pytest.param(lambda value: value.replace(b"[2]", b"[{}]").replace(HEADER, LONGER), id="a shape of no numbers"),
        pytest.param(lambda value: b"PTLR1\xa0\x86\x01\x00" + b"[" * 100_000, id="lists in lists"),
    ],
)
def test_only_a_whole_entry_is_read(spoilt: Callable[[bytes], bytes]) -> None:
    value = packed(KEPT)
    assert unpacked(value) == KEPT
    assert unpacked(spoilt(value)) is None


# ---------------------------------------------------------------------------------------------- when Redis does not answer


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("mood", ["silent", "garbage"])
def test_a_redis_that_does_not_answer_is_a_miss_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mood: str
) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        scene.server.mood = mood
        assert await find(space) is None
        asked = len(scene.server.commands)
        assert space.lookup(b"k") is None  # at once
        space.insert(b"l", OUTPUTS)
        await scene.settled()
        assert len(scene.server.commands) == asked
        scene.clock.now_ns += SECOND
        assert await find(space) is None  # asked again, in vain
        assert len(scene.server.commands) > asked
        scene.server.mood = "well"
        scene.clock.now_ns += SECOND
        caplog.set_level(logging.INFO)
        assert await find(space) == KEPT
        assert f"Redis at 127.0.0.1:{scene.server.port} answers again" in caplog.text

    play(tmp_path, act, socket_timeout=SILENT_MS)
    (warning,) = warnings_of(caplog)
    assert "does not answer: " in warning and warning.endswith("Requests are executed without it")


def test_a_lookup_for_which_no_connection_is_free_is_a_miss_and_no_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        scene.server.gate.clear()
        first = space.lookup(b"k")
        assert first is not None
        assert [await find(space) for _ in range(2)] == [None, None]
        scene.server.gate.set()
        assert await first == KEPT
        assert await find(space) == KEPT

    play(tmp_path, act, pool_size=1, wait_timeout=50)
    (warning,) = warnings_of(caplog)
    assert "1 connections were busy for 50 ms" in warning and "pool_size" in warning


def test_a_lookup_that_is_cancelled_leaves_its_answer_to_nobody_else(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        scene.server.gate.clear()
        lookup = space.lookup(b"k")
        assert lookup is not None
        scene.server.asked.clear()
        await scene.server.asked.wait()
        lookup.cancel()
        scene.server.gate.set()
        assert await find(space, b"other") is None
        assert await find(space) == KEPT

    play(tmp_path, act, pool_size=1)


def test_a_lookup_that_fails_when_it_is_cancelled_is_not_an_error_that_nobody_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library makes a time-out of a cancellation that comes when its time is over."""

    async def act(scene: Scene) -> None:
        space = scene.space()
        await scene.settled()
        asked = asyncio.Event()

        async def get(key: str) -> None:
            asked.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                raise TimeoutError("Timeout reading") from None

        monkeypatch.setattr(scene.cache._client, "get", get)
        lookup = space.lookup(b"k")
        assert lookup is not None
        await asked.wait()
        lookup.cancel()
        await scene.settled()
        gc.collect()

    play(tmp_path, act)
    assert "never retrieved" not in caplog.text


def test_requests_wait_only_once_for_files_that_take_long_to_be_read(tmp_path: Path) -> None:
    """A load has begun to read them long before the first request."""

    async def act(scene: Scene) -> None:
        free = threading.Event()
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(free.wait)  # the files are read after this
        try:
            space = scene.space()
            assert await find(space) is None
            assert space.lookup(b"k") is None  # at once
            space.insert(b"lost", OUTPUTS)
        finally:
            free.set()
        await scene.settled()
        await keep(scene, space)
        assert await find(space) == KEPT
        assert await find(space, b"lost") is None

    play(tmp_path, act, connect_timeout=500, socket_timeout=SILENT_MS, wait_timeout=50)


def test_connections_that_were_closed_are_opened_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space)
        await scene.server.stop()
        assert await find(space) is None
        await scene.server.start()
        scene.clock.now_ns += SECOND
        assert await find(space) == KEPT

    play(tmp_path, act)
    assert len(warnings_of(caplog)) == 1


def test_a_redis_that_is_full_still_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space, b"old")
        scene.server.mood = "full"
        await keep(scene, space, b"new")
        await keep(scene, space, b"newer")
        assert await find(space, b"new") is None
        assert await find(space, b"old") == KEPT

    play(tmp_path, act)
    first = warnings_of(caplog)[0]
    assert "refuses: command not allowed when used memory" in first


def test_a_redis_that_is_full_is_said_once_although_it_answers_lookups(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        for at, mood in enumerate(("full", "full", "well", "full", "full")):
            scene.server.mood = mood
            assert await find(space, b"%d" % at) is None
            await keep(scene, space, b"%d" % at)
        assert len(scene.server.entries) == 1

    play(tmp_path, act)
    assert len([line for line in warnings_of(caplog) if "refuses: command not allowed" in line]) == 2


def test_an_answer_that_redis_does_not_take_in_time_closes_it_for_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be so large that the network needs longer for it."""

    async def act(scene: Scene) -> None:
        space = scene.space()
        await keep(scene, space, b"old")
        scene.server.mood = "slow to keep"
        for digest in (b"large", b"larger"):
            await keep(scene, space, digest)
            assert await find(space, digest) is None
            assert await find(space, b"old") == KEPT

    play(tmp_path, act, socket_timeout=SILENT_MS)
    (line,) = warnings_of(caplog)
    assert "has not taken an answer in time" in line


def test_a_version_that_cannot_ask_for_its_generation_shares_nothing(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await keep(scene, scene.space())
        scene.server.mood = "silent"
        space = scene.space()
        await scene.settled()
        scene.server.mood = "well"
        scene.clock.now_ns += SECOND
        assert await find(space) is None
        await keep(scene, space)
        assert await find(space) == KEPT

    play(tmp_path, act, socket_timeout=SILENT_MS)


def test_no_more_than_so_many_answers_wait_to_be_kept(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        await scene.settled()
        for at in range(100):
            space.insert(b"%d" % at, OUTPUTS)
        await scene.settled()
        assert len(scene.server.entries) == 64

    play(tmp_path, act, wait_timeout=30_000)


def test_an_answer_larger_than_redis_takes_is_not_kept(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        space = scene.space()
        space.insert(b"k", [Tensor("OUT", dtypes.UINT8, (512 << 20,), None, nbytes=512 << 20)])
        await scene.settled()
        assert not scene.server.entries

    play(tmp_path, act)


# ---------------------------------------------------------------------------------------------- start and end


def test_the_start_looks_whether_redis_is_there(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.cache.open()
        assert [command[0] for command in scene.server.commands].count(b"PING") == 1

    play(tmp_path, act)


@pytest.mark.parametrize("mood", ["gone", "silent", "garbage", "closed to strangers"])
def test_the_start_fails_where_it_is_not(tmp_path: Path, mood: str) -> None:
    async def act(scene: Scene) -> None:
        scene.server.mood = mood
        scene.server.asks_for_password = mood == "closed to strangers"
        if mood == "gone":
            await scene.server.stop()
        with pytest.raises(InferenceError) as raised:
            await scene.cache.open()
        assert raised.value.code is ErrorCode.INTERNAL
        assert raised.value.message.startswith(f"Failed to initialize RedisCache: 127.0.0.1:{scene.server.port}: ")

    play(tmp_path, act, socket_timeout=SILENT_MS)


def test_user_password_and_database_are_told(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.server.asks_for_password = True
        await scene.cache.open()
        assert [b"AUTH", b"u", b"secret"] in scene.server.commands
        assert [b"SELECT", b"3"] in scene.server.commands

    play(tmp_path, act, user="u", password="secret", db=3)


def test_tls_is_used_where_its_files_are_named(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made.root)
    tls.load_cert_chain(made.server, made.server_key)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def scenario() -> None:
        files = {"cert": str(made.client), "key": str(made.client_key), "cacert": str(made.root)}
        async with resp_server(tls) as server:
            cache = RedisCache(options_for(server, **files))
            await cache.open()
            await cache.close()
            plain = RedisCache(options_for(server, socket_timeout=1000))
            with pytest.raises(InferenceError, match="Failed to initialize RedisCache"):
                await plain.open()
            await plain.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_what_is_being_kept_when_the_server_ends_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene_in(tmp_path) as scene:
            scene.space().insert(b"k", OUTPUTS)
        assert len(scene.server.entries) == 1

    asyncio.run(scenario())


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis.asyncio", None)
    with pytest.raises(InferenceError) as raised:
        RedisCache(RedisCacheOptions("h", 1))
    assert raised.value.code is ErrorCode.UNAVAILABLE
    assert raised.value.message.endswith("install it with: pip install 'pytriton-lite[redis]'")
