"""wrk, h2load and perf_analyzer: started, bounded in time, their reports read.

All are closed loops: a caller sends its next request when it has the answer to the last. n callers are n connections
with one request in flight on each, for HTTP and for gRPC alike (h2load's `-c n -m 1`), which is what n clients are that
know nothing of each other.

wrk and h2load cost a few microseconds of CPU a request. That is why they are used: on a small machine a client in
Python, or perf_analyzer, takes so much of the processors that it is measured instead of the server.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmark_error import BenchmarkError
from calls import (
    SEQUENCES,
    Call,
    HttpRequest,
    Protocol,
    grpc_body,
    grpc_message,
    grpc_path,
    http_path,
    http_request,
    raw_http_request,
)
from grpc_load import messages_file
from measured_server import Ports

PACKAGES = {
    "wrk": "Debian and Ubuntu: wrk; Homebrew: wrk",
    "h2load": "Debian and Ubuntu: nghttp2-client; Homebrew: nghttp2",
}
# What a generator may need beyond the time that it was told to run: start, connections, the report.
GRACE_S = 30.0


@dataclass(frozen=True)
class Load:
    """What one run of a generator saw. *answered* and *body_bytes* are None where the generator does not tell.

    *body_bytes* is what all answers together had between headers and trailers, those included that were under way when
    the generator left.
    """

    answered: int | None
    per_second: float
    p50_us: float
    p99_us: float
    body_bytes: int | None = None


class Generator(typing.Protocol):
    """Something that can load a server with one call over one protocol."""

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> Protocol: ...

    def run(self, ports: Ports, *, callers: int, seconds: int) -> Load:
        """Load the server for about *seconds*. Raises BenchmarkError if a single answer was an error."""
        ...


def require_tools(tools: Iterable[str]) -> None:
    """Raises BenchmarkError that names every missing tool with the package that brings it."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        raise BenchmarkError("; ".join(f"{tool!r} is not installed ({PACKAGES[tool]})" for tool in missing))


def run_bounded(command: list[str], *, limit_s: float) -> str:
    """The command's standard output. It and its children are gone when this returns, however it returns."""
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise BenchmarkError(f"cannot start {command[0]!r}: {error}") from error
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command[0]!r} did not end within {limit_s:.0f} s") from error
    finally:
        _kill_group(process)
    if process.returncode != 0:
        last = "\n".join((errors or output).strip().splitlines()[-10:])
        raise BenchmarkError(f"{command[0]!r} ended with code {process.returncode}:\n{last}")
    return output


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody of the group is left (macOS says it with EPERM)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


# ----------------------------------------------------------------------------------------------------------------------
# wrk

# done() runs once, after the load: it prints what wrk's own report rounds, and the whole histogram of latencies in us.
_WRK_DONE = """
function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    "WRK answered=%.0f duration_us=%.0f connect=%.0f read=%.0f write=%.0f status=%.0f timeout=%.0f",
    summary.requests, summary.duration, errors.connect, errors.read, errors.write, errors.status, errors.timeout))
  for i = 1, #latency do
    local value, count = latency(i)
    print(string.format("WRK-LATENCY %.0f %.0f", value, count))
  end
end
"""
# wrk asks for each request how long to wait before it, and rounds down.
_WRK_THINKS = """
function delay()
  return -math.log(1 - math.random()) * %r + 0.5
end
"""
_WRK_ERRORS = ("connect", "read", "write", "status", "timeout")


@dataclass(frozen=True)
class Wrk:
    """HTTP/1.1 with keep-alive. *folder* takes the Lua script.

    With *think_ms* each caller waits between an answer and its next request, an exponential time of that mean in whole
    milliseconds; that is no part of a latency. It is for calls that do not differ.
    """

    call: Call
    protocol: Protocol
    folder: Path
    name: str = "wrk"
    think_ms: float = 0.0

    def run(self, ports: Ports, *, callers: int, seconds: int) -> Load:
        calls = self.call.over(self.protocol)
        if len(calls) > 1:
            requests = [raw_http_request(call, self.protocol, ports.http) for call in calls]
            return run_wrk_with(requests, self.folder, ports, callers=callers, seconds=seconds)
        script = wrk_script(http_request(calls[0], self.protocol))
        if self.think_ms:
            script += _WRK_THINKS % self.think_ms
        return _run_wrk(script, self.folder, ports, http_path(self.call), callers=callers, seconds=seconds)


def run_wrk_with(requests: Sequence[bytes], folder: Path, ports: Ports, *, callers: int, seconds: int) -> Load:
    """Send *requests*, whole from the first byte to the last, one after the other. *folder* takes them and the script."""
    written = folder / "requests.bin"
    written.write_bytes(messages_file(requests))
    return _run_wrk(wrk_script_of_many(written), folder, ports, "/", callers=callers, seconds=seconds)


def _run_wrk(script: str, folder: Path, ports: Ports, path: str, *, callers: int, seconds: int) -> Load:
    """*path* is where a script posts that has no requests of its own."""
    written = folder / "wrk.lua"
    written.write_text(script)
    command = [
        "wrk",
        "--threads=1",
        f"--connections={callers}",
        f"--duration={seconds}s",
        f"--timeout={GRACE_S:g}s",  # what has not been answered by then is an error
        f"--script={written}",
        f"http://127.0.0.1:{ports.http}{path}",
    ]
    return read_wrk(run_bounded(command, limit_s=seconds + GRACE_S), callers=callers)


def wrk_script(request: HttpRequest) -> str:
    """A Lua script that sends *request* over and over. wrk builds it once, since request() is not defined."""
    lines = ['wrk.method = "POST"', f"wrk.body = {_lua_string(request.body)}"]
    lines += [
        f"wrk.headers[{_lua_string(name.encode())}] = {_lua_string(text.encode())}"
        for name, text in request.headers.items()
    ]
    return "\n".join(lines) + "\n" + _WRK_DONE


# The file is that of grpc_load.messages_file.
_WRK_MANY = """
local file = io.open(%s, "rb")
local lengths, all, requests, at, n = file:read("*l"), file:read("*a"), {}, 1, 0
for length in lengths:gmatch("%%d+") do
  requests[#requests + 1] = all:sub(at, at + length - 1)
  at = at + length
end
function request()
  n = n %% #requests + 1
  return requests[n]
end
"""


def wrk_script_of_many(requests: Path) -> str:
    """A Lua script that sends the requests in the file *requests* one after the other, and begins anew behind the last."""
    return _WRK_MANY % _lua_string(str(requests).encode()) + _WRK_DONE


def _lua_string(data: bytes) -> str:
    return '"' + "".join(f"\\{byte:03d}" for byte in data) + '"'


def read_wrk(output: str, *, callers: int) -> Load:
    found = re.search(r"^WRK (.*)$", output, re.MULTILINE)
    if found is None:
        raise BenchmarkError(f"wrk printed no summary:\n{output[-2000:]}")
    summary = {key: int(value) for key, _, value in (pair.partition("=") for pair in found[1].split())}
    errors = {kind: summary[kind] for kind in _WRK_ERRORS if summary[kind]}
    if errors:
        raise BenchmarkError(f"wrk met errors among {summary['answered']} answers: {errors}")
    if summary["answered"] == 0:
        raise BenchmarkError("wrk got no answer at all")
    pairs = re.findall(r"^WRK-LATENCY (\d+) (\d+)$", output, re.MULTILINE)
    histogram = measured_latencies(
        {int(value): int(count) for value, count in pairs},
        answered=summary["answered"],
        duration_us=summary["duration_us"],
        callers=callers,
    )
    return Load(
        answered=summary["answered"],
        per_second=summary["answered"] / (summary["duration_us"] / 1e6),
        p50_us=histogram_percentile(histogram, 50),
        p99_us=histogram_percentile(histogram, 99),
    )


def measured_latencies(
    histogram: Mapping[int, int], *, answered: int, duration_us: int, callers: int
) -> Mapping[int, int]:
    """The histogram without the latencies that wrk has made up.

    wrk corrects for "coordinated omission": for a request that took n times the mean interval of its connection it adds
    requests that took n-1, n-2, ... intervals and were never sent (wrk 4, stats_correct in stats.c, ascending from twice
    the interval). One stall of 20 ms in two seconds with one caller so moves the p99 from 0.3 ms to 3 ms. h2load does no
    such thing, and nothing arrives here from outside the loop, so it is taken back: what wrk added came from longer
    latencies only, hence descending undoes it exactly. The total then equals the number of answers, which is checked.
    """
    if sum(histogram.values()) == answered:
        return histogram
    interval = duration_us // (answered // callers) if answered >= callers else 0
    remaining = Counter(histogram)
    if interval:
        for latency in sorted(histogram, reverse=True):
            for made_up in range(latency - interval, interval, -interval):
                remaining[made_up] -= remaining[latency]
    if min(remaining.values()) < 0 or sum(remaining.values()) != answered:
        raise BenchmarkError(
            f"wrk's latencies: {sum(histogram.values())} of them for {answered} answers, and not by the correction "
            "that is known of wrk 4"
        )
    return remaining


def histogram_percentile(histogram: Mapping[int, int], percent: float) -> float:
    """The smallest latency that at least *percent* of the requests did not exceed."""
    wanted = sum(histogram.values()) * percent / 100
    reached = 0
    for latency in sorted(histogram):
        reached += histogram[latency]
        if reached >= wanted:
            return float(latency)
    raise BenchmarkError("no latencies to take a percentile of")


# ----------------------------------------------------------------------------------------------------------------------
# h2load


@dataclass(frozen=True)
class H2load:
    """gRPC as what it is on the wire: HTTP/2 POSTs of one prebuilt message. *folder* takes the message and the log.

    A stream is asked for in the same way: one message, the end of the client's side with it, and whatever comes back until
    the server ends its own.

    A gRPC error arrives with HTTP status 200 and its code in the trailers, which h2load does not read, so *answered*
    counts errors too, and streams that broke off: whoever uses it compares it with the server's own statistics, and
    *body_bytes* with what so many whole answers would have.
    """

    call: Call
    protocol: Protocol
    folder: Path
    name: str = "h2load"

    def run(self, ports: Ports, *, callers: int, seconds: int) -> Load:
        message, log = self.folder / "grpc.bin", self.folder / "h2load.log"
        (call,) = self.call.over(self.protocol)
        message.write_bytes(grpc_body(call, self.protocol))
        log.unlink(missing_ok=True)
        command = ["h2load", "--threads=1", f"--clients={callers}", "--max-concurrent-streams=1"]
        command += [f"--duration={seconds}", f"--data={message}", f"--log-file={log}"]
        command += ["--header=content-type: application/grpc", "--header=te: trailers"]
        command += [f"http://127.0.0.1:{ports.grpc}{grpc_path(self.protocol)}"]
        output = run_bounded(command, limit_s=seconds + GRACE_S)
        if not log.exists():
            raise BenchmarkError(f"h2load wrote no log:\n{output[-2000:]}")
        return read_h2load(output, log.read_text())


def read_h2load(output: str, log: str) -> Load:
    """Rate, count and bytes from the report, percentiles from the log: the report has only mean and deviation."""
    rate = re.search(r"^finished in [^,]+, ([\d.]+) req/s", output, re.MULTILINE)
    counts = re.search(
        r"^requests: \d+ total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout",
        output,
        re.MULTILINE,
    )
    traffic = re.search(r"^traffic: .*\((\d+)\) data$", output, re.MULTILINE)
    if rate is None or counts is None or traffic is None:
        raise BenchmarkError(f"h2load printed no summary:\n{output[-2000:]}")
    done, succeeded, failed, errored, timeout = (int(count) for count in counts.groups())
    if done == 0:
        raise BenchmarkError("h2load got no answer at all")
    if succeeded != done or failed or errored or timeout:
        raise BenchmarkError(
            f"h2load met errors among {done} answers: {failed} failed, {errored} errored, {timeout} late"
        )
    latencies = read_h2load_log(log)
    if len(latencies) < done:
        raise BenchmarkError(f"h2load's log has {len(latencies)} latencies for {done} answers")
    p50, p99 = np.percentile(latencies, [50, 99])
    return Load(
        answered=done, per_second=float(rate[1]), p50_us=float(p50), p99_us=float(p99), body_bytes=int(traffic[1])
    )


def read_h2load_log(log: str) -> list[int]:
    """Latencies in us of the answers with status 200. Columns: start in us, status (-1: failed), latency, maybe more."""
    rows = (line.split("\t") for line in log.splitlines())
    return [int(row[2]) for row in rows if row[1] == "200"]


# ----------------------------------------------------------------------------------------------------------------------
# Our own, for gRPC


@dataclass(frozen=True)
class GrpcLoad:
    """`grpc_load` in a process of its own: calls that differ, each answer's status read. *folder* takes the messages.

    Where the call is the first of a sequence, each caller has a sequence of its own, over and over.
    """

    call: Call
    protocol: Protocol
    folder: Path
    name: str = "grpc_load"

    def run(self, ports: Ports, *, callers: int, seconds: int) -> Load:
        if self.call.steps and callers > SEQUENCES:
            raise BenchmarkError(
                f"{self.call.model} has {SEQUENCES} sequences, one for each caller, and {callers} callers"
            )
        messages = self.folder / "messages.bin"
        messages.write_bytes(
            messages_file([grpc_message(call, self.protocol) for call in self.call.over(self.protocol)])
        )
        command = [sys.executable, str(Path(__file__).with_name("grpc_load.py")), f"--port={ports.grpc}"]
        command += [f"--callers={callers}", f"--seconds={seconds}", f"--path={grpc_path(self.protocol)}"]
        command += [f"--own={self.call.steps}", str(messages)]
        return read_grpc_load(run_bounded(command, limit_s=seconds + GRACE_S))


def read_grpc_load(output: str) -> Load:
    found = json.loads(output)
    if found["error"]:
        raise BenchmarkError(f"grpc_load met an error behind {found['answered']} answers: {found['error']}")
    if not found["answered"]:
        raise BenchmarkError("grpc_load got no answer at all")
    return Load(
        answered=found["answered"],
        per_second=found["answered"] / found["seconds"],
        p50_us=found["p50_us"],
        p99_us=found["p99_us"],
        body_bytes=found["body_bytes"],
    )


# ----------------------------------------------------------------------------------------------------------------------
# perf_analyzer

# It measures in windows until three agree. Told that any three agree, it takes three.
_WINDOWS = 3
_ANY_SPREAD_PERCENT = "999"


@dataclass(frozen=True)
class PerfAnalyzer:
    """NVIDIA's own load generator, a heavy client, as a cross-check. *command* may carry arguments of its own.

    Not for JSON tensors: what perf_analyzer 2.51 sends with `--input-tensor-format json`, Triton itself refuses ("Shape
    does not match true shape of 'data' field"). Not for streams: there it keeps one stream for all callers.
    """

    PROTOCOLS: typing.ClassVar[Collection[Protocol]] = (Protocol.HTTP_BINARY, Protocol.GRPC)

    command: str
    call: Call
    protocol: Protocol
    folder: Path
    name: str = "perf_analyzer"

    def run(self, ports: Ports, *, callers: int, seconds: int) -> Load:
        report = self.folder / "perf_analyzer.csv"
        report.unlink(missing_ok=True)
        port = ports.grpc if self.protocol is Protocol.GRPC else ports.http
        command = [*shlex.split(self.command), "-m", self.call.model, "-u", f"127.0.0.1:{port}"]
        command += ["-i", "grpc" if self.protocol is Protocol.GRPC else "http"]
        command += ["--concurrency-range", str(callers), "--measurement-interval", str(seconds * 1000 // _WINDOWS)]
        command += ["--stability-percentage", _ANY_SPREAD_PERCENT, "--percentile", "99", "-f", str(report)]
        # The first window is dropped and the last one runs over; a slow server makes it stretch the windows.
        output = run_bounded(command, limit_s=4 * seconds + GRACE_S)
        if not report.exists():
            raise BenchmarkError(f"perf_analyzer wrote no report:\n{output[-2000:]}")
        return read_perf_analyzer(report.read_text())


def read_perf_analyzer(report: str) -> Load:
    rows = list(csv.DictReader(report.strip().splitlines()))
    if len(rows) != 1:
        raise BenchmarkError(
            f"perf_analyzer's report: expected one line of figures, got {len(rows)}:\n{report[-2000:]}"
        )
    row = rows[0]
    try:
        rate, p50, p99 = (float(row[column]) for column in ("Inferences/Second", "p50 latency", "p99 latency"))
    except (KeyError, ValueError) as error:
        raise BenchmarkError(f"perf_analyzer's report cannot be read ({error!r}):\n{report[-2000:]}") from error
    return Load(answered=None, per_second=rate, p50_us=p50, p99_us=p99)
