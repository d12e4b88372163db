"""``--cache-config redis,…``: the options of Triton's redis_cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytriton_lite.engine.cache.option_checks import check_known, number, refusal


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
    """Time for an answer."""
    pool_size: int = 8
    """Connections, and so the most lookups at a time."""
    wait_timeout: int = 100
    """Time for one of them to be free."""
    cert: str | None = None
    key: str | None = None
    cacert: str | None = None

    @property
    def has_tls(self) -> bool:
        return any((self.cert, self.key, self.cacert))


_NUMBERS = {
    "port": (1, 65535),
    "db": (0, (1 << 31) - 1),
    "connect_timeout": (1, (1 << 31) - 1),
    "socket_timeout": (1, (1 << 31) - 1),
    "pool_size": (1, 1024),
    "wait_timeout": (1, (1 << 31) - 1),
}
_TEXTS = ("host", "user", "password", "cert", "key", "cacert")

USER_VARIABLE = "TRITONCACHE_REDIS_USERNAME"
PASSWORD_VARIABLE = "TRITONCACHE_REDIS_PASSWORD"
"""Triton's: what others need not see in the command line. Options that are given win."""


def parse_options(options: Mapping[str, str], environ: Mapping[str, str]) -> RedisCacheOptions:
    """What was given, checked. Raises InferenceError(INVALID_ARG)."""
    failed = "Failed to initialize RedisCache"
    check_known(options, (*_TEXTS, *_NUMBERS), failed)
    if "host" not in options or "port" not in options:
        raise refusal(
            f"{failed}, didn't specify address. Must at a minimum specify 'host' and 'port' in the configuration - e.g. "
            "--cache-config redis,host=redis --cache-config redis,port=6379"
        )
    if ("cert" in options) is not ("key" in options):
        raise refusal(f"{failed}: 'cert' and 'key' are the two halves of one certificate, and only one is given")
    texts = {key: options[key] for key in _TEXTS if key in options}
    texts.setdefault("user", environ.get(USER_VARIABLE, ""))
    texts.setdefault("password", environ.get(PASSWORD_VARIABLE, ""))
    numbers = {key: number(options[key], key, *limits, failed) for key, limits in _NUMBERS.items() if key in options}
    return RedisCacheOptions(
        **{key: text for key, text in texts.items() if text},  # type: ignore[arg-type]  # each key has its own type
        **numbers,  # type: ignore[arg-type]
    )
