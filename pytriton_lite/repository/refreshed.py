"""What following remote repositories came to; apart from what follows them, which those without any need not import."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Refreshed:
    """What could not be brought up to date: ``repositories`` as texts, ``models`` as texts by name.

    Of these the local copies are as they were.
    """

    repositories: list[str] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
