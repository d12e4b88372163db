"""``--cache-config`` as it is written (CLI spec, section 8). Imported to read a command line, so it imports nothing."""

from __future__ import annotations

from typing import NamedTuple


class CacheSetting(NamedTuple):
    """One ``--cache-config``."""

    cache: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.cache},{self.key}={self.value}"


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
