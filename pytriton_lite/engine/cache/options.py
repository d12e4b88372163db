"""``--cache-config``: which response cache there is, and its options (CLI spec, section 8; Triton's redis_cache)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytriton_lite.core.errors import ErrorCode, InferenceError


class CacheSetting(NamedTuple):
    """One ``--cache-config``."""

    cache: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.cache},{self.key}={self.value}"


@dataclass(frozen=True)
class LocalCacheOptions:
    """Bytes."""

    size: int


@dataclass(frozen=True)
class RedisCacheOptions:
    """Times are milliseconds, none of them is without an end: a request never waits for a cache that does not answer.

    TLS is used when one of its files is named.
    """

    host: str
    port: int
    user: str | None = None
    password: str | None = None
    db: int = 0
    connect_timeout: int = 1000
    socket_timeout: int = 500
    """For an answer."""
    pool_size: int = 8
    """Connections, and so the most lookups at a time."""
    wait_timeout: int = 100
    """For one of them to be free."""
    cert: str | None = None
    key: str | None = None
    cacert: str | None = None

    @property
    def has_tls(self) -> bool:
        return any((self.cert, self.key, self.cacert))


CacheOptions = LocalCacheOptions | RedisCacheOptions

_MOST_BYTES = (1 << 63) - 1
_LOCAL = {"size": (1, _MOST_BYTES)}
_REDIS_NUMBERS = {
    "port": (1, 65535),
    "db": (0, (1 << 31) - 1),
    "connect_timeout": (1, (1 << 31) - 1),
    "socket_timeout": (1, (1 << 31) - 1),
    "pool_size": (1, 1024),
    "wait_timeout": (1, (1 << 31) - 1),
}
_REDIS_TEXTS = ("host", "user", "password", "cert", "key", "cacert")

USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"
"""Triton's: what others need not see in the command line. Options that are given win."""


def parse_cache_setting(text: str) -> CacheSetting:
    """``CACHE,K=V``. Raises ValueError with Triton's texts."""
    cache, comma, rest = text.partition(",")
    if not comma or not cache:
        raise ValueError(
            f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}"
        )
    key, _, value = rest.partition("=")
    if not key or not value:
        raise ValueError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
    return CacheSetting(cache, key, value)


def cache_options(settings: Iterable[CacheSetting], environ: Mapping[str, str]) -> CacheOptions | None:
    """None where no cache is asked for. Of an option that is given twice the last one counts.

    Raises InferenceError(INVALID_ARG) for what no cache can be made of.
    """
    given: dict[str, dict[str, str]] = {}
    for cache, key, value in settings:
        given.setdefault(cache, {})[key] = value
    if not given:
        return None
    if len(given) > 1:
        raise _refusal("found multiple cache configurations, but only a single cache is currently supported")
    ((cache, options),) = given.items()
    if cache == "local":
        return _local_options(options)
    if cache == "redis":
        return _redis_options(options, environ)
    raise _refusal(f"unable to find cache '{cache}': expected local or redis")


def _local_options(options: Mapping[str, str]) -> LocalCacheOptions:
    failed = "Failed to initialize LocalCache"
    _check_known(options, _LOCAL, failed)
    return LocalCacheOptions(_number(options["size"], "size", *_LOCAL["size"], failed))


def _redis_options(options: Mapping[str, str], environ: Mapping[str, str]) -> RedisCacheOptions:
    failed = "Failed to initialize RedisCache"
    _check_known(options, (*_REDIS_TEXTS, *_REDIS_NUMBERS), failed)
    if "host" not in options or "port" not in options:
        raise _refusal(
            f"{failed}, didn't specify address. Must at a minimum specify 'host' and 'port' in the configuration - e.g. "
            "--cache-config redis,host=redis --cache-config redis,port=6379"
        )
    if ("cert" in options) is not ("key" in options):
        raise _refusal(f"{failed}: 'cert' and 'key' are the two halves of one certificate, and only one is given")
    texts = {key: options[key] for key in _REDIS_TEXTS if key in options}
    texts.setdefault("user", environ.get(USER_VARIABLE, ""))
    texts.setdefault("password", environ.get(PASSWORD_VARIABLE, ""))
    numbers = {
        key: _number(options[key], key, *limits, failed) for key, limits in _REDIS_NUMBERS.items() if key in options
    }
    return RedisCacheOptions(
        **{key: text for key, text in texts.items() if text},  # type: ignore[arg-type]  # each key has its own type
        **numbers,  # type: ignore[arg-type]
    )


def _check_known(options: Iterable[str], known: Iterable[str], failed: str) -> None:
    known = tuple(known)
    for key in options:
        if key not in known:
            raise _refusal(f"{failed}: unknown option '{key}', expected one of {', '.join(known)}")


def _number(text: str, key: str, low: int, high: int, failed: str) -> int:
    # Python refuses to convert thousands of digits, and no bound has more than nineteen.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high):
        raise _refusal(f"{failed}: '{key}' must be a number from {low} to {high}. Got {text}")
    return int(text)


def _refusal(text: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, text)
