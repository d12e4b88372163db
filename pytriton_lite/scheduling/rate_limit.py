"""The rate limiter: who of those with work gets the resources that it needs to execute (scheduling spec, section 7).

Guarantees:

* What is given out of a pool is never more than its size was when it was given.
* Who waits is served as soon as it is first in the order and the pools have all that it needs; nobody is served past the
  first, but for those who need nothing. They never wait, where Triton has them wait behind the first. And but for those who
  serve a call of somebody who holds what the first lacks: it would wait for ever otherwise, as it does in Triton.
* Everybody's turn comes: among those who always wait, in the ratio of 1 / priority. Who comes later, or had nothing to do for
  a while, begins where the others are. Triton counts all executions since the load, so that an instance which was idle is
  alone until it has caught up.

Assumption: each grant that was taken is given back, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import ErrorCode, InferenceError

if TYPE_CHECKING:  # settings.py imports this module, and is read where no protobuf is needed
    from pytriton_lite.config.instances import InstanceSpec

ANY_DEVICE = None
"""The device of a global resource, and of a size that holds for every device."""


@dataclass(frozen=True)
class ResourceSize:
    """One ``--rate-limit-resource``: how much of *name* there is, on *device* or on each one."""

    name: str
    count: int
    device: int | None = ANY_DEVICE

    def __str__(self) -> str:
        text = f"{self.name}:{self.count}"
        return text if self.device is None else f"{text}:{self.device}"


@dataclass(frozen=True)
class Pool:
    """Where a resource comes from: of the server where *device* is None, else of that device."""

    name: str
    device: int | None


class Claim:
    """What one instance needs for every execution, and its place in the order. Compared by identity."""

    __slots__ = ("_last", "_turn", "held", "is_waiting", "name", "needs", "priority")

    def __init__(self, name: str, needs: Mapping[Pool, int], priority: int = 0) -> None:
        """*priority* 2 is half the turns of 1; 0 counts as 1."""
        self.name = name
        self.needs = {pool: count for pool, count in needs.items() if count > 0}
        self.priority = max(1, priority)
        self.held = 0
        """Executions under way, each of which has all of ``needs``."""
        self.is_waiting = False
        self._last = 0
        self._turn = 0

    @classmethod
    def of(cls, spec: InstanceSpec) -> Claim:
        """What the configuration says of an instance. Those on CPUs share device 0, as in Triton."""
        needs: dict[Pool, int] = {}
        for resource in spec.group.resources:
            pool = Pool(resource.name, None if resource.is_global else spec.device_id)
            needs[pool] = max(needs.get(pool, 0), resource.count)
        return cls(spec.name, needs, spec.group.priority)

    def __repr__(self) -> str:
        return f"Claim({self.name}, turn {self._turn}, {self.held} held)"


class RateLimiter:
    """The pools of one server, and the instances that take from them."""

    def __init__(self, sizes: Iterable[ResourceSize] = ()) -> None:
        """Make pools as large as the largest need of any instance, or as *sizes* say; a resource not among those has 0 then.

        Of two sizes for the same device the last counts.
        """
        self._sizes = {(size.name, size.device): size.count for size in sizes}
        self._claims: list[Claim] = []
        self._largest: dict[Pool, int] = {}
        self._in_use: Counter[Pool] = Counter()
        self._waiting: list[Claim] = []
        self._now = 0
        """The turn that was taken last."""

    # ------------------------------------------------------------------------------------------ who there is

    def register(self, claims: Sequence[Claim], *, replaced: Iterable[Claim] = ()) -> None:
        """Let *claims* take part; all or none.

        Raises InferenceError(INVALID_ARG) when one of them could never be served, or takes a resource for a global one that
        is not for another; but for *replaced* ones, which will go.
        """
        gone = set(replaced)
        others = [claim for claim in self._claims if claim not in gone]
        self._check_kinds([*others, *claims])
        for claim in claims:
            self._check_sizes(claim)
        self._claims += claims
        self._measure()

    def unregister(self, claim: Claim) -> None:
        """*claim* is gone, with everything that it holds."""
        self.leave(claim)
        self.release(claim, claim.held)
        self._claims.remove(claim)
        self._measure()

    def _measure(self) -> None:
        self._largest = _largest(self._claims)

    def _check_kinds(self, claims: Iterable[Claim]) -> None:
        pools = _largest(claims)
        for pool in pools:
            if pool.device is not None and Pool(pool.name, None) in pools:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f'Resource "{pool.name}" is present as both global and device-specific resource in the model '
                    "configuration.",
                )

    def _check_sizes(self, claim: Claim) -> None:
        for pool, count in claim.needs.items():
            size = self._explicit_size(pool)
            if size is not None and size < count:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f'Resource count for "{pool.name}" is limited to {size} which will prevent scheduling of one or more '
                    f"model instances, the minimum required count is {count}",
                )

    def size(self, pool: Pool) -> int:
        """How much there is in *pool*, given out or not."""
        size = self._explicit_size(pool)
        return self._largest.get(pool, 0) if size is None else size

    def _explicit_size(self, pool: Pool) -> int | None:
        if not self._sizes:
            return None
        if pool.device is None:  # for a global resource no device is looked at (asked of 2.51)
            return max((count for (name, _), count in self._sizes.items() if name == pool.name), default=0)
        everywhere = self._sizes.get((pool.name, ANY_DEVICE), 0)
        return self._sizes.get((pool.name, pool.device), everywhere)

    # ------------------------------------------------------------------------------------------ whose turn it is

    def wait(self, claim: Claim) -> None:
        """*claim* has work for one more execution. Nothing happens where it waits already."""
        if not claim.is_waiting:
            claim.is_waiting = True
            claim._turn = max(claim._last, self._now) + claim.priority
            self._waiting.append(claim)

    def leave(self, claim: Claim) -> None:
        """*claim* has no work after all. Nothing happens where it does not wait."""
        if claim.is_waiting:
            claim.is_waiting = False
            self._waiting.remove(claim)

    def ready(self) -> Claim | None:
        """The claim that may `take` now. If it does not want to it has to `leave`, for no other claim is served before it."""
        first = self.first()
        return first if first is not None and not self.missing(first) else None

    def ready_of(self, helpers: Collection[Claim]) -> Claim | None:
        """The one of *helpers* who may `take` now, although others are before it: they wait for what it is to free."""
        waiting = (claim for claim in self._waiting if claim in helpers and not self.missing(claim))
        return min(waiting, key=_order, default=None)

    def first(self) -> Claim | None:
        """The first in the order; the more urgent one of two whose turns are the same, and then the one that came first."""
        return min(self._waiting, key=_order, default=None)

    def missing(self, claim: Claim) -> list[Pool]:
        """The pools that have too little left for *claim*."""
        return [pool for pool, count in claim.needs.items() if self._in_use[pool] + count > self.size(pool)]

    def take(self, claim: Claim) -> None:
        """Give *claim*, which is `ready`, what it needs. `release` must follow."""
        assert claim.is_waiting and not self.missing(claim)
        self.leave(claim)
        if claim.needs:
            claim._last = self._now = claim._turn
        claim.held += 1
        self._in_use.update(claim.needs)

    def release(self, claim: Claim, times: int = 1) -> None:
        """*times* executions of *claim* are over."""
        assert 0 <= times <= claim.held
        claim.held -= times
        for pool, count in claim.needs.items():
            self._in_use[pool] -= count * times

    def holders(self, pool: Pool) -> list[Claim]:
        """Claims that have something of *pool* now."""
        return [claim for claim in self._claims if claim.held and pool in claim.needs]


def _order(claim: Claim) -> tuple[bool, int, int]:
    return bool(claim.needs), claim._turn, claim.priority


def _largest(claims: Iterable[Claim]) -> dict[Pool, int]:
    """The largest need of any of *claims*, by pool."""
    largest: dict[Pool, int] = {}
    for claim in claims:
        for pool, count in claim.needs.items():
            largest[pool] = max(largest.get(pool, 0), count)
    return largest
