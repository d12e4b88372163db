"""Decisions of schedulers, with places that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.scheduling.queue import Scheduler
from pytriton_lite.scheduling.ticket import Ticket


@dataclass
class Decided:
    """A `Decision`, whose batches and their places are two lists."""

    batches: list[list[Ticket]]
    places: list[Any]
    expired: list[Ticket]
    cancelled: list[Ticket]
    failed: list[tuple[Ticket, InferenceError]]
    next_check_ns: int | None
    expired_text: str


def decide(
    scheduler: Scheduler, now_ns: int, *, idle: int = 0, ahead: int = 0, free: Sequence[int] | None = None
) -> Decided:
    """Have *scheduler* fill the *free* places, or *idle* ones from 0 on, and then *ahead* more behind them."""
    places = list(range(idle) if free is None else free)
    decision = scheduler.decide(now_ns, free=places, ahead=range(100, 100 + ahead))
    return Decided(
        [tickets for _, tickets in decision.batches],
        [place for place, _ in decision.batches],
        decision.expired,
        decision.cancelled,
        decision.failed,
        decision.next_check_ns,
        decision.expired_text,
    )
