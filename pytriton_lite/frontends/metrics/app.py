"""GET /metrics as an ASGI application (metrics spec, section 1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pytriton_lite.core.custom_metrics import Family, Kind
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send
from pytriton_lite.frontends.metrics.cache import cache_families
from pytriton_lite.frontends.metrics.families import counter, gauge, labelled
from pytriton_lite.frontends.metrics.gpu import GpuReadings, find_gpus
from pytriton_lite.frontends.metrics.machine import Clock, Machine
from pytriton_lite.frontends.metrics.model_families import Quantiles, Version, version_of
from pytriton_lite.frontends.metrics.page import page_parts
from pytriton_lite.frontends.metrics.process import build_info, process_families
from pytriton_lite.frontends.pauses import Pauses

if TYPE_CHECKING:
    from pytriton_lite.engine.counting.statistics import ModelStatistics, WorkOut
    from pytriton_lite.engine.server import Server

_PATHS = ("/metrics", "/metrics/")
_PAGE_TYPE = b"text/plain; charset=utf-8"
_ERROR_TYPE = b"text/plain"


class FrontEndCounts(Protocol):
    """Front ends in processes of their own."""

    @property
    def ready(self) -> int:
        """How many can take connections."""

    @property
    def restarts(self) -> int:
        """How often one was started in place of another that had ended."""


@dataclass(frozen=True)
class MetricsOptions:
    interval_ms: float = 2000.0
    """Least time between two readings of processors and GPUs."""
    has_latency_counters: bool = True
    has_cpu: bool = True
    gpu_uuids: Callable[[], Sequence[str]] | None = None
    """What tells the GPUs to show, without ``GPU-`` in front; asked once, at the start, in a thread. None to show none."""
    front_ends: FrontEndCounts | None = None
    """Front ends in processes of their own; None where there are none."""
    more: Callable[[], Iterable[Family]] = tuple
    """What other rooms count."""


class MetricsPage:
    """The page over a server's statistics and its models' own metrics, as they are when it is asked for.

    Made while the loop runs that asks for it.
    """

    def __init__(self, server: Server, options: MetricsOptions, clock: Clock = time.monotonic_ns) -> None:
        self._server = server
        self._clock = clock
        self._has_counters = options.has_latency_counters
        self._families = _ServerFamilies(server, options, clock)
        self._more = options.more
        self._turn = asyncio.Lock()

    async def text(self) -> str:
        """The page of now, in the text format 0.0.4.

        It takes a millisecond, and that of a thousand models a hundred times as long: the loop's other work goes on in between.
        Quantiles are worked out in a thread.
        """
        async with self._turn:
            pauses = Pauses(self._clock)
            rows = self._server.loaded_statistics()
            quantiles = await self._quantiles(rows, pauses)
            others = [*await self._families.now(), *self._more(), *self._server.custom_metrics.families()]
            parts = []
            for part in page_parts(rows, quantiles, others, has_counters=self._has_counters):
                parts.append(part)
                await pauses.rest()
            # The next page is made in another turn, too.
            await asyncio.sleep(0)
        return "".join(parts)

    async def _quantiles(self, rows: Sequence[ModelStatistics], pauses: Pauses) -> Quantiles:
        works: dict[Version, WorkOut] = {}
        for row in rows:
            if row.has_summaries:
                works[version_of(row)] = row.freeze_quantiles()
                await pauses.rest()
        return await asyncio.to_thread(_all_worked_out, works) if works else {}


def _all_worked_out(works: Mapping[Version, WorkOut]) -> Quantiles:
    return {version: work_out() for version, work_out in works.items()}


def metrics_app(page: MetricsPage) -> AsgiApp:
    """*page* for whoever scrapes it.

    Another path is 404, where Triton answers 200 with nothing; another method than GET is 405, as there.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in _PATHS:
            await _respond(send, 404, _ERROR_TYPE, b'{"error":"Not Found"}')
        elif scope["method"] != "GET":
            await _respond(send, 405, _ERROR_TYPE, b'{"error":"Method Not Allowed"}', (b"allow", b"GET"))
        else:
            await _respond(send, 200, _PAGE_TYPE, (await page.text()).encode("utf-8", "replace"))

    return app


class _ServerFamilies:
    """What belongs to no model."""

    def __init__(self, server: Server, options: MetricsOptions, clock: Clock) -> None:
        interval_ns = int(options.interval_ms * 1e6)
        self._server = server
        self._machine = Machine(interval_ns, clock) if options.has_cpu else None
        uuids = options.gpu_uuids
        self._gpus = None if uuids is None else GpuReadings(partial(find_gpus, uuids), interval_ns, clock)
        self._front_ends = options.front_ends
        self._build = build_info()

    async def now(self) -> list[Family]:
        gpus = [] if self._gpus is None else await self._gpus.families()
        return list(self._now(gpus))

    def _now(self, gpus: Iterable[Family]) -> Iterator[Family]:
        if self._machine is not None:
            yield from self._machine.families()
        yield from gpus
        # This server has no such pool; dashboards of Triton show the two.
        yield gauge("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0)
        yield gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0)
        cache = self._server.cache_statistics()
        if cache is not None:
            yield from cache_families(cache)
        yield self._requests()
        yield self._refused_connections()
        if self._front_ends is not None:
            ready = self._front_ends.ready
            yield gauge("pytriton_lite_front_ends", "Number of front end processes that take connections", ready)
            yield counter(
                "pytriton_lite_front_end_restarts",
                "Number of front end processes started in place of one that had ended",
                self._front_ends.restarts,
            )
        yield from process_families()
        yield self._build

    def _requests(self) -> Family:
        counts = self._server.request_counts
        return labelled(
            "pytriton_lite_requests",
            "Number of HTTP requests answered and of gRPC calls ended, by status",
            Kind.COUNTER,
            [
                *(
                    ({"protocol": "http", "code": str(code)}, count)
                    for code, count in sorted(counts.http_answers().items())
                ),
                *(({"protocol": "grpc", "code": code}, count) for code, count in sorted(counts.grpc_ends().items())),
            ],
        )

    def _refused_connections(self) -> Family:
        counts = self._server.request_counts.refused_connections
        return labelled(
            "pytriton_lite_refused_connections",
            "Number of connections closed at once because as many were open as there may be, by listener",
            Kind.COUNTER,
            [({"listener": name}, counts[name]) for name in ("http", "grpc", "metrics")],
        )


async def _respond(send: Send, status: int, content_type: bytes, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
