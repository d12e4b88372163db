"""Results as a table for people, as JSON, and as the CSV that perf_analyzer writes."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pytriton_lite import __version__
from pytriton_lite.bench.measuring import Figures, Result, is_behind
from pytriton_lite.bench.settings import Pace, Steadiness, Traffic
from pytriton_lite.client.clients import Statistics
from pytriton_lite.client.command_line import table

_HEADS = {Pace.CONCURRENCY: "callers", Pace.RATE: "rate"}
_SERVER_NOTE = "queue, compute and batch are the server's own means, the warm-up included"


def milliseconds(us: float | None) -> str:
    """With three digits that mean something; ``-`` where there is none."""
    if us is None:
        return "-"
    ms = us / 1e3
    return f"{ms:.2f}" if ms < 100 else f"{ms:,.0f}"


def result_table(results: Sequence[Result], traffic: Traffic, steadiness: Steadiness) -> str:
    """A row for each level; what a reader has to know of it stands below."""
    shows_server = any(result.server is not None and result.server.successes for result in results)
    heads = [_HEADS[results[0].level.pace], "requests/s"]
    if traffic.batch > 1:
        heads.append("inferences/s")
    if traffic.is_streaming:
        heads += ["responses/s", "first p50 ms"]
    points = sorted({50.0, 90.0, 99.0} | ({steadiness.percentile} if steadiness.percentile is not None else set()))
    heads += [f"p{point:g} ms" for point in points] + ["errors"]
    if shows_server:
        heads += ["queue ms", "compute ms", "batch"]
    rows = [_row(result, traffic, points, shows_server=shows_server) for result in results]
    lines = [table(heads, rows, right=[True] * len(heads))]
    if shows_server:
        lines.append(f"({_SERVER_NOTE})")
    lines += [f"! {note}" for result in results for note in notes(result, steadiness)]
    return "\n".join(lines)


def _row(result: Result, traffic: Traffic, points: Sequence[float], *, shows_server: bool) -> list[str]:
    figures = result.figures
    row = [
        result.level.name,
        f"{figures.requests_per_s:,.0f}" if figures.requests_per_s >= 100 else f"{figures.requests_per_s:.1f}",
    ]
    if traffic.batch > 1:
        row.append(f"{figures.inferences_per_s:,.0f}")
    if traffic.is_streaming:
        row += [f"{figures.responses_per_s:,.0f}", milliseconds((figures.first_us or {}).get(50.0))]
    row += [milliseconds((figures.percentiles_us or {}).get(point)) for point in points]
    row.append(f"{result.failed:,}")
    if shows_server:
        row += _server_cells(result.server)
    return row


def _server_cells(server: Statistics | None) -> list[str]:
    if server is None or not server.successes:
        return ["-", "-", "-"]
    queue, compute = server_means_us(server)
    return [milliseconds(queue), milliseconds(compute), f"{server.inferences / max(server.executions, 1):.1f}"]


def server_means_us(server: Statistics) -> tuple[float, float]:
    """Mean time of a request in the queue, and in the three steps of being computed."""
    computed = server.compute_input_ns + server.compute_infer_ns + server.compute_output_ns
    return server.queue_ns / server.successes / 1e3, computed / server.successes / 1e3


def notes(result: Result, steadiness: Steadiness) -> list[str]:
    """What the figures of a level must not be read without."""
    figures = result.figures
    name = f"{'concurrency' if result.level.pace is Pace.CONCURRENCY else 'rate'} {result.level.name}"
    found = []
    if result.failed:
        found.append(f"{name}: {result.failed:,} of {result.failed + figures.answered:,} answers were wrong")
        found += [f"{name}: {number:,} × {text}" for text, number in result.errors.items()]
    if not result.is_steady and figures.answered:
        found.append(
            f"{name}: not steady: {len(result.windows)} windows of {figures.seconds / len(result.windows):.1f} s did not "
            f"come within {steadiness.within_percent:g} % of each other (-s, -p, -r)"
        )
    if result.is_sender_limited:
        found.append(
            f"{name}: the load generator was at its limit ({result.processes} process{'es' if result.processes > 1 else ''}, "
            f"the busiest at {figures.sender_share:.0%} of a core): the server may do more"
        )
    if figures.answered and is_behind(result.level, figures):
        found.append(
            f"{name}: {figures.requests_per_s:,.0f} of {result.level.value:,.0f} requests/s were answered; "
            f"{result.waiting:,} waited for their turn in the end, and their latencies count from when they were due"
        )
    if result.has_reloaded:
        found.append(f"{name}: the model was loaded anew meanwhile, so the server's own figures say nothing")
    server = result.server
    if server is not None and not result.failed and server.successes + server.cache_hits < figures.answered:
        found.append(
            f"{name}: the server has counted {server.successes:,} successes, and {figures.answered:,} answers came: something "
            "between answers in its place"
        )
    return found


def heading() -> dict[str, Any]:
    """What made a document, and when."""
    return {"tool": f"pytriton-lite {__version__}", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def document(
    results: Sequence[Result], traffic: Traffic, steadiness: Steadiness, *, data: str, different: int
) -> dict[str, Any]:
    """Everything, for programs. Times are in microseconds."""
    return {
        **heading(),
        "server": traffic.target.url,
        "protocol": traffic.target.protocol.value,
        "model": traffic.model,
        "model_version": traffic.version,
        "batch": traffic.batch,
        "streaming": traffic.is_streaming,
        "sequences": traffic.sequences is not None,
        "input_data": data,
        "different_requests": different,
        "steadiness": asdict(steadiness),
        "levels": [level(result) for result in results],
    }


def level(result: Result) -> dict[str, Any]:
    """Everything of one level, for programs."""
    server = result.server
    return {
        result.level.pace.value: result.level.value,
        "distribution": result.level.distribution.value if result.level.pace is Pace.RATE else None,
        **_figures(result.figures),
        "spread_percent": round(result.spread_percent, 2),
        "is_steady": result.is_steady,
        "processes": result.processes,
        "is_sender_limited": result.is_sender_limited,
        "failed": result.failed,
        "errors": result.errors,
        "waiting": result.waiting,
        "server": None if server is None else asdict(server),
        "has_reloaded": result.has_reloaded,
        "windows": [_figures(window) for window in result.windows],
    }


def _figures(figures: Figures) -> dict[str, Any]:
    def points(values: dict[float, float] | None) -> dict[str, float] | None:
        return None if values is None else {f"p{point:g}": round(value, 1) for point, value in values.items()}

    return {
        "requests_per_s": round(figures.requests_per_s, 2),
        "inferences_per_s": round(figures.inferences_per_s, 2),
        "responses_per_s": round(figures.responses_per_s, 2),
        "mean_us": None if figures.mean_us is None else round(figures.mean_us, 1),
        "latency_us": points(figures.percentiles_us),
        "first_response_us": points(figures.first_us),
        "begun_late_p99_us": None if figures.lag_p99_us is None else round(figures.lag_p99_us, 1),
        "answered": figures.answered,
        "seconds": round(figures.seconds, 3),
        "sender_share_of_core": round(figures.sender_share, 3),
    }


def csv_text(results: Sequence[Result]) -> str:
    """perf_analyzer's columns (``-f``), as far as they can be known from outside its client."""
    pace = results[0].level.pace
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        [
            "Concurrency" if pace is Pace.CONCURRENCY else "Request Rate",
            "Inferences/Second",
            "Network+Server Send/Recv",
            "Server Queue",
            "Server Compute Input",
            "Server Compute Infer",
            "Server Compute Output",
            "p50 latency",
            "p90 latency",
            "p95 latency",
            "p99 latency",
            "Avg latency",
        ]
    )
    for result in results:
        figures, server = result.figures, result.server
        parts = ["0"] * 4
        outside = figures.mean_us or 0.0
        if server is not None and server.successes:
            means = [
                nanoseconds / server.successes / 1e3
                for nanoseconds in (
                    server.queue_ns,
                    server.compute_input_ns,
                    server.compute_infer_ns,
                    server.compute_output_ns,
                )
            ]
            parts = [f"{mean:.0f}" for mean in means]
            outside = max(outside - sum(means), 0.0)
        points = figures.percentiles_us or {}
        writer.writerow(
            [
                result.level.name,
                f"{figures.inferences_per_s:.2f}",
                f"{outside:.0f}",
                *parts,
                *(f"{points.get(point, 0.0):.0f}" for point in (50.0, 90.0, 95.0, 99.0)),
                f"{figures.mean_us or 0.0:.0f}",
            ]
        )
    return file.getvalue()
