"""How many replicas there are to be: a policy of Ray Serve's autoscaler that knows the engine's queues."""

from __future__ import annotations

from typing import Any, Protocol

UNANSWERED = "unanswered"
"""What replicas report: requests that were accepted and not answered, queued ones among them."""
QUEUED = "queued"
"""Requests of those that are in no worker's hands."""


class ScalingConfig(Protocol):
    """The part of ``ray.serve.config.AutoscalingConfig`` that is read here."""

    def get_target_ongoing_requests(self) -> float: ...


class ScalingContext(Protocol):
    """The part of ``ray.serve.config.AutoscalingContext`` that is read here."""

    @property
    def config(self) -> ScalingConfig: ...
    @property
    def target_num_replicas(self) -> int: ...
    @property
    def current_num_replicas(self) -> int: ...
    @property
    def total_queued_requests(self) -> float: ...
    @property
    def aggregated_metrics(self) -> dict[str, dict[Any, float]] | None: ...


def by_unanswered(context: ScalingContext) -> tuple[float, dict[str, Any]]:
    """As many replicas as hold the requests that are unanswered, ``target_ongoing_requests`` in each.

    Counted are those in the engines, and those that still wait at Ray's proxies for a replica. Ray's own policy counts calls: a
    stream that waits for its client is one, and a stream with a hundred requests is one as well. Ray applies its factors,
    delays and limits to the answer.
    """
    reported = (context.aggregated_metrics or {}).get(UNANSWERED, {})
    if not reported:  # before the first report, or while all replicas are starting
        return context.target_num_replicas, {}
    waiting = sum(reported.values()) + context.total_queued_requests
    return waiting / context.config.get_target_ongoing_requests(), {}
