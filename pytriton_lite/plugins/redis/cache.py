"""The response cache in a Redis server, which other servers may use, too. Needs the extra ``redis``, and imports it only here.

* A key names model, version, what the model was loaded from (`_fingerprint`) and the request. So servers that serve the same
  files share entries, and neither a restart nor a reload finds those of other files. For a load of the same files there is the
  *generation*, a text that Redis keeps for each fingerprint: a server reads it when it loads, or makes one up where there is
  none, and ``drop`` deletes it. So nothing old is found either where Redis has thrown it out, as any entry.
* Nothing here fails or delays a request for long. A lookup that Redis does not answer in time is a miss; the next second's
  are misses at once. An outage is said once when it begins and once when it is over. One for which no connection is free in
  time is a miss, too, and says nothing of Redis; nor does an answer that it has not taken in time, as that may be a large one.
* Entries have no time to live, as with Triton: Redis is told how much it may hold, and what goes first (``maxmemory-policy``).
* What lies there is taken for what a server has put there. Who may write to that Redis decides what clients are answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.engine.cache.response_cache import CachedOutput, CacheSpace, Found, Outputs, ResponseCache, copied
from pytriton_lite.plugins.redis.options import RedisCacheOptions, parse_options
from pytriton_lite.repository.changes import is_bytecode
from pytriton_lite.repository.index import is_version
from pytriton_lite.repository.walk import walk

logger = logging.getLogger(__name__)

_PREFIX = "pytriton-lite"
_GENERATION = "generation"
_MAGIC = b"PTLR1"
_HEAD = struct.Struct("<5sI")
_LARGEST_VALUE = (512 << 20) - 1
"""Redis' own limit for a string."""
_PAUSE_NS = 1_000_000_000
"""Time after a failure in which nobody asks again."""
_NO_CONNECTION = "No connection available"
"""What the library says when the pool has none; an error of its own it has not."""
_MOST_INSERTS = 64
"""Inserts at a time. When Redis is slower than the model, what comes beyond is not kept: memory."""
_LARGEST_HASHED_FILE = 1 << 20
"""Larger ones, weights mostly, are known by their size and time: to read them would take as long as loading them."""


class Unanswered(Exception):
    """Redis has not said anything; why was logged."""


class RedisCache(ResponseCache):
    """Asks one Redis server, from this event loop."""

    def __init__(self, options: RedisCacheOptions, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Raises InferenceError(UNAVAILABLE) where the package is not installed."""
        try:
            import redis.asyncio
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ImportError as error:
            text = (
                f"the redis cache needs a package that is not installed ({error}); install it with: "
                "pip install 'pytriton-lite[redis]'"
            )
            raise InferenceError(ErrorCode.UNAVAILABLE, text) from None
        self._refusals: type[Exception] = redis.ResponseError
        self._timeouts: tuple[type[Exception], ...] = (redis.TimeoutError, asyncio.TimeoutError)
        self._place = f"{options.host}:{options.port}"
        self._clock = clock
        self._busy = f"all {options.pool_size} connections were busy for {options.wait_timeout} ms"
        self.limit_s = (options.connect_timeout + options.socket_timeout + options.wait_timeout) / 1000
        """How long one answer is waited for, and what a version is made of."""
        tls: dict[str, Any] = {"connection_class": redis.asyncio.SSLConnection} if options.has_tls else {}
        if options.has_tls:
            tls |= {"ssl_certfile": options.cert, "ssl_keyfile": options.key, "ssl_ca_certs": options.cacert}
        self._pool = redis.asyncio.BlockingConnectionPool(
            max_connections=options.pool_size,
            timeout=options.wait_timeout / 1000,
            host=options.host,
            port=options.port,
            db=options.db,
            username=options.user,
            password=options.password,
            socket_connect_timeout=options.connect_timeout / 1000,
            socket_timeout=options.socket_timeout / 1000,
            retry=Retry(NoBackoff(), 0),  # another try would take another timeout
            protocol=2,
            **tls,
        )
        self._client = redis.asyncio.Redis(connection_pool=self._pool)
        self._is_out = False
        self._refused: set[str] = set()
        """Commands that Redis refused when they were sent last. One that is full refuses ``set``, and answers ``get``."""
        self._said: set[str] = set()
        """Warnings that the log has once, and not for each request."""
        self._closed_until_ns = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._inserts = 0
        self._doubtful: set[str] = set()
        """Keys that were to be deleted, and perhaps were not."""

    async def open(self) -> None:
        """Ask for an answer. As in Triton a Redis that gives none fails the start: it is far more often misspelt than down."""
        try:
            await asyncio.wait_for(self._client.ping(), self.limit_s)
        except Exception as error:
            text = f"Failed to initialize RedisCache: {self._place}: {_reason(error)}"
            raise InferenceError(ErrorCode.INTERNAL, text) from None

    async def close(self) -> None:
        """What is being inserted has a moment left."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self.limit_s)
            for task in late:
                task.cancel()
        with suppress(Exception):  # they end with the process, too
            await self._pool.disconnect()

    def space(self, config: ModelConfig, version: int, directory: Path) -> RedisSpace:
        return RedisSpace(self, config, version, directory)

    # ------------------------------------------------------------------------------------------ for the spaces

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Keep a task until it is done."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def get(self, key: str) -> bytes | None:
        """None where there is nothing. Raises Unanswered."""
        value: bytes | None = await self._ask("get", lambda: self._client.get(key))
        return value

    async def set(self, key: str, value: bytes) -> None:
        """Raises Unanswered."""
        await self._ask("set", lambda: self._client.set(key, value))

    async def text_of(self, key: str, new: str) -> str:
        """The text that all servers read there: *new*, where there was none. Raises Unanswered."""
        if key in self._doubtful:
            raise Unanswered
        found = await self.get(key)
        if found is None:
            await self._ask("set", lambda: self._client.set(key, new, nx=True))
            found = await self.get(key)  # another server may have been first
        if found is None:
            raise Unanswered
        return found.decode("latin-1")

    async def delete(self, key: str) -> None:
        """Until Redis has done it, nobody here is told what is there."""
        self._doubtful.add(key)
        with suppress(Unanswered):
            await self._ask("delete", lambda: self._client.delete(key))
            self._doubtful.discard(key)

    def begin_insert(self) -> bool:
        """Whether one more may be under way; `end_insert` must follow."""
        if self._inserts >= _MOST_INSERTS or self.is_paused:
            return False
        self._inserts += 1
        return True

    def end_insert(self) -> None:
        self._inserts -= 1

    @property
    def is_paused(self) -> bool:
        return self._clock() < self._closed_until_ns

    async def _ask(self, name: str, command: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_paused:
            raise Unanswered
        try:
            answer = await asyncio.wait_for(_outcome(command), self.limit_s)
            if isinstance(answer, Exception):
                raise answer
        except self._refusals as error:  # it answers, and does not want to: it may be full, or read-only
            if name not in self._refused:
                logger.warning("response cache: Redis at %s refuses: %s", self._place, _reason(error))
            self._refused.add(name)
            raise Unanswered from None
        except Exception as error:  # not the library's own alone: what answers there may be no Redis
            if str(error).startswith(_NO_CONNECTION):
                self._say_once(
                    "response cache: %s. Who waits longer for Redis at %s is executed without it (pool_size, wait_timeout)",
                    self._busy,
                    self._place,
                )
                raise Unanswered from None
            if name == "set" and isinstance(error, self._timeouts):
                # It may be a large one. Nobody waits for it, and the next lookup hears whether Redis is there.
                self._say_once(
                    "response cache: Redis at %s has not taken an answer in time: %s. "
                    "Such answers are not kept (socket_timeout)",
                    self._place,
                    _reason(error),
                )
                raise Unanswered from None
            self._closed_until_ns = self._clock() + _PAUSE_NS
            if not self._is_out:
                logger.warning(
                    "response cache: Redis at %s does not answer: %s. Requests are executed without it",
                    self._place,
                    _reason(error),
                )
            self._is_out = True
            raise Unanswered from None
        if self._is_out:
            logger.info("response cache: Redis at %s answers again", self._place)
        self._is_out = False
        self._refused.discard(name)
        return answer

    def _say_once(self, text: str, *arguments: object) -> None:
        if text not in self._said:
            logger.warning(text, *arguments)
        self._said.add(text)


class RedisSpace(CacheSpace):
    """Where in Redis a generation's entries are."""

    def __init__(self, cache: RedisCache, config: ModelConfig, version: int, directory: Path) -> None:
        self._cache = cache
        self._config = config
        self._version = version
        self._directory = directory
        self._prefix: asyncio.Task[str] | None = None
        self._generation_key = ""
        self._is_late = False
        """A request has waited for the prefix in vain."""
        self._is_dropped = False

    def begin_load(self) -> None:
        self._prefix = self._cache.run(self._find_prefix())

    async def _find_prefix(self) -> str:
        fingerprint = await asyncio.to_thread(_fingerprint, self._config, self._version, self._directory)
        prefix = f"{_PREFIX}:{self._config.name}:{self._version}:{fingerprint}"
        # Where nobody knows which generation this is: one that nobody else has, so that nothing is shared. An ensemble's
        # answers depend on the files of other models.
        generation = secrets.token_hex(8)
        self._generation_key = f"{prefix}:{_GENERATION}"
        if self._config.ensemble is None:
            with suppress(Unanswered):
                generation = await self._cache.text_of(self._generation_key, generation)
        return f"{prefix}:{generation}"

    def lookup(self, digest: bytes) -> asyncio.Future[Found] | None:
        if self._cache.is_paused or self._is_dropped or not self._is_known_in_time:
            return None
        return self._cache.run(self._get(digest))

    async def _get(self, digest: bytes) -> Found:
        try:
            value = await self._cache.get(await self._key(digest))
        except Unanswered:
            return None
        if value is None:
            return None
        outputs = unpacked(value)
        if outputs is None:
            logger.warning("response cache: Redis has something else under a key of model '%s'", self._config.name)
        return outputs

    def insert(self, digest: bytes, tensors: list[Tensor]) -> None:
        if (
            self._is_dropped
            or not self._is_known_in_time
            or sum(tensor.nbytes for tensor in tensors) > _LARGEST_VALUE - (1 << 20)
        ):
            return
        if self._cache.begin_insert():
            try:
                value = packed(copied(tensors))
            except BaseException:
                self._cache.end_insert()
                raise
            self._cache.run(self._put(digest, value))

    async def _put(self, digest: bytes, value: bytes) -> None:
        try:
            with suppress(Unanswered):
                await self._cache.set(await self._key(digest), value)
        finally:
            self._cache.end_insert()

    @property
    def _is_known_in_time(self) -> bool:
        """False while the files are still being read for which a request has waited already."""
        return not self._is_late or (self._prefix is not None and self._prefix.done())

    async def _key(self, digest: bytes) -> str:
        """Raises Unanswered where what a version is made of is not known in time: its files may be many, or far away."""
        assert self._prefix is not None, "begin_load comes first"
        try:
            prefix = await asyncio.wait_for(asyncio.shield(self._prefix), self._cache.limit_s)
        except asyncio.TimeoutError:
            self._is_late = True
            raise Unanswered from None
        return f"{prefix}:{digest.hex()}"

    def drop(self) -> None:
        """Whatever is loaded next from these files looks elsewhere; Redis throws out what nobody asks for."""
        if not self._is_dropped and self._prefix is not None and self._config.ensemble is None:
            self._cache.run(self._leave(self._prefix))
        self._is_dropped = True

    async def _leave(self, prefix: asyncio.Task[str]) -> None:
        await prefix  # what still waits for it is going to be kept there
        await self._cache.delete(self._generation_key)


# ---------------------------------------------------------------------------------------------- values


def packed(outputs: Outputs) -> bytes:
    """*outputs* as Redis keeps them: what they are as JSON, then their bytes."""
    header = json.dumps([[o.name, o.datatype.name, o.shape, len(o.data)] for o in outputs]).encode()
    return b"".join([_HEAD.pack(_MAGIC, len(header)), header, *(output.data for output in outputs)])


def unpacked(value: bytes) -> Outputs | None:
    """None for what `packed` has not made."""
    try:
        magic, length = _HEAD.unpack_from(value)
        header = json.loads(value[_HEAD.size : _HEAD.size + length])
        at = _HEAD.size + length
        outputs = []
        for name, datatype, shape, nbytes in header:
            outputs.append(CachedOutput(name, dtypes.BY_NAME[datatype], tuple(shape), value[at : at + nbytes]))
            at += nbytes
        is_whole = magic == _MAGIC and at == len(value) and all(map(_has_its_size, outputs))
    except (struct.error, ValueError, TypeError, KeyError, RecursionError):
        return None
    return tuple(outputs) if is_whole else None


def _has_its_size(output: CachedOutput) -> bool:
    itemsize = output.datatype.itemsize
    return not itemsize or len(output.data) == element_count(output.shape) * itemsize


# ---------------------------------------------------------------------------------------------- what a version is made of


def _fingerprint(config: ModelConfig, version: int, directory: Path) -> str:
    """Equal on servers whose version was loaded from the same configuration and files. Reads them: not in the event loop."""
    digest = hashlib.blake2b(config.json_text.encode("utf-8", "surrogateescape"), digest_size=16)
    for path in sorted(_files(directory, version)):
        digest.update(repr(str(path.relative_to(directory))).encode())
        with suppress(OSError):  # it has just gone, and with it what depends on it
            digest.update(_content_of(path))
    return digest.hexdigest()


def _files(directory: Path, version: int) -> list[Path]:
    """Files of the version, and what all versions share. The configuration is known, and bytecode is no news."""
    return [
        directory / found.path
        for found in walk(directory, is_bytecode)
        if not found.is_directory
        and found.path != "config.pbtxt"
        and (found.entry == str(version) or not is_version(found.entry))
    ]


def _content_of(path: Path) -> bytes:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return b""  # nobody may ever write to a pipe
    if status.st_size > _LARGEST_HASHED_FILE:
        return repr((status.st_size, status.st_mtime_ns)).encode()
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


async def _outcome(command: Callable[[], Awaitable[Any]]) -> Any:
    """What *command* gives, or raises: whoever waits for it may be cancelled just then, and nobody would look at the error."""
    try:
        return await command()
    except Exception as error:
        return error


def _reason(error: Exception) -> str:
    """Errors of time have no text."""
    return str(error) or type(error).__name__


def make_cache(options: Mapping[str, str], environ: Mapping[str, str]) -> RedisCache:
    """See `response_cache.MakeCache`: ``--cache-config redis,host=…`` and what else `options` has."""
    return RedisCache(parse_options(options, environ))
