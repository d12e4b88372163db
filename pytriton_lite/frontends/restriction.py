"""APIs that are answered only where a header has a secret value (HTTP spec, section 16; gRPC spec, section 1).

Each front end sorts its routes into the categories. Where nothing is restricted neither has anything to do.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field

CATEGORIES = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True)
class RestrictedGroup:
    """What one option says: who asks for one of *categories* must send header *key* with *value*."""

    categories: tuple[str, ...]
    key: str
    value: str = field(repr=False)


class Restriction:
    """A header that a request must have."""

    def __init__(self, header: str, value: str) -> None:
        self.header = header
        """The header as it was typed, for the text of a refusal."""
        self.name = header.lower().encode()
        """The header as it is looked for: lower-case, which is all that HTTP/2 and ASGI know."""
        self._value = value.encode("utf-8", "surrogateescape")

    def permits(self, value: bytes | None) -> bool:
        """Whether *value*, None for a header that is not there, is the right one; how long that takes tells nothing."""
        return value is not None and hmac.compare_digest(value, self._value)


def parse_group(text: str, *, flag: str, feature: str) -> RestrictedGroup:
    """``A,B:KEY=VALUE``. *feature* is what Triton calls a category of *flag*. Raises ValueError with Triton's texts."""
    names, _, setting = text.partition(":")
    key, _, value = setting.partition("=")
    if not names or not key or not value:
        raise ValueError(f"--{flag} option format is '<config name>:<setting>=<value>'. Got {text}")
    categories = tuple(names.split(","))
    for category in categories:
        if category not in CATEGORIES:
            raise ValueError(f"unknown restricted {feature} '{category}' ")  # the trailing blank is Triton's
    return RestrictedGroup(categories, key, value)


def check_groups(groups: Iterable[RestrictedGroup], *, feature: str) -> None:
    """Raises ValueError with Triton's text where a category is in two places."""
    seen: set[str] = set()
    for category in (category for group in groups for category in group.categories):
        if category in seen:
            raise ValueError(f"restricted {feature} '{category}' can not be specified in multiple config groups")
        seen.add(category)


def restrictions(groups: Iterable[RestrictedGroup], *, prefix: str = "") -> dict[str, Restriction]:
    """The restriction of each category that has one; *prefix* goes before the groups' keys."""
    found: dict[str, Restriction] = {}
    for group in groups:
        restriction = Restriction(prefix + group.key, group.value)
        found.update(dict.fromkeys(group.categories, restriction))
    return found
