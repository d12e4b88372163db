"""The rate limiter at work: instances of all models wait for resources, and are told when they may take them.

They are told at the end of a turn of the loop, so that all that changed in it counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from pytriton_lite.engine.serving.deadlock import helpers_of
from pytriton_lite.scheduling.rate_limit import Claim, RateLimiter, ResourceSize
from pytriton_lite.scheduling.ticket import Executor

Use = Callable[[], None]
"""Called when the resources are there: `ResourceGrants.take` them, or `ResourceGrants.leave`."""


class ResourceGrants:
    """The resources of one server. An instance has a claim, which is registered from its load until it is gone."""

    def __init__(self, sizes: Iterable[ResourceSize] = ()) -> None:
        self._limiter = RateLimiter(sizes)
        self._loop = asyncio.get_running_loop()
        self._uses: dict[Claim, Use] = {}
        self._executing: dict[Claim, Executor] = {}
        self._is_due = False

    def register(self, claims: Sequence[Claim], *, replaced: Iterable[Claim] = ()) -> None:
        """See `RateLimiter.register`."""
        self._limiter.register(claims, replaced=replaced)
        self._settle_soon()  # a pool may be larger now

    def unregister(self, claim: Claim) -> None:
        """The instance is gone; what it held is free."""
        self._limiter.unregister(claim)
        self._uses.pop(claim, None)
        self._executing.pop(claim, None)
        self._settle_soon()

    def wait(self, claim: Claim, use: Use) -> None:
        """Wait for what one more execution needs: *use* is called when it may begin."""
        self._uses[claim] = use
        self._limiter.wait(claim)
        self._settle_soon()

    def leave(self, claim: Claim) -> None:
        """Wait no more: there is no work, or nobody to do it."""
        if claim.is_waiting:
            self._limiter.leave(claim)
            self._settle_soon()

    def take(self, claim: Claim, instance: Executor) -> None:
        """*instance* begins with an execution."""
        self._limiter.take(claim)
        self._executing[claim] = instance

    def keep(self, claim: Claim, executions: int) -> None:
        """Hold *claim* for *executions*, those under way; what was held for others is given back."""
        if executions < claim.held:
            self._limiter.release(claim, claim.held - executions)
            self._settle_soon()

    def holders(self, claim: Claim) -> list[Executor]:
        """Instances that have what *claim* lacks."""
        missing = self._limiter.missing(claim)
        return [self._executing[holder] for pool in missing for holder in self._limiter.holders(pool)]

    def _settle_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._is_due = False
        while (claim := self._limiter.ready() or self._helper()) is not None:
            self._uses[claim]()

    def _helper(self) -> Claim | None:
        """The claim that goes past the first: without it, what that one lacks would not be given back."""
        first = self._limiter.first()
        if first is None:
            return None
        helpers = helpers_of(self.holders(first))
        return self._limiter.ready_of([helper.claim for helper in helpers if helper.claim is not None])
