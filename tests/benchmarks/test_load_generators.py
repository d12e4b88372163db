"""What wrk, h2load and perf_analyzer print, in texts that they have printed."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from benchmark_error import BenchmarkError
from calls import HttpRequest, Protocol
from grpc_load import load, messages_file, orders, read_messages
from load_generators import (
    GrpcLoad,
    histogram_percentile,
    measured_latencies,
    read_grpc_load,
    read_h2load,
    read_perf_analyzer,
    read_wrk,
    require_tools,
    run_bounded,
    wrk_script,
)
from measured_server import Ports
from scenarios import SEQUENCES

WRK = """Running 1s test @ http://127.0.0.1:8000/v2/models/add_sub/infer
  1 threads and 1 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   130.00us   33.00us   2.55ms   98.17%
    Req/Sec     6.33k     1.11k    8.44k    66.67%
  10 requests in 2.00ms, 3.48MB read
Requests/sec:   5000.00
Transfer/sec:      1.66MB
WRK answered=10 duration_us=2000 connect=0 read=0 write=0 status=0 timeout=0
WRK-LATENCY 100 6
WRK-LATENCY 150 3
WRK-LATENCY 300 1
"""

H2LOAD = """starting benchmark...
spawning thread #0: 8 total client(s). Timing-based test with 0s of warm-up time and 2s of main duration for measurements.
Main benchmark duration is over for thread #0. Stopping all clients.
Stopped all clients for thread #0

finished in 2.00s, 3559.50 req/s, 476.34KB/s
requests: 4 total, 12 started, 4 done, 4 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 4 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 952.68KB (975549) total, 20.93KB (21432) headers (space savings 96.28%), 646.55KB (662067) data
                     min         max         mean         sd        +/- sd
time for request:      119us      4.24ms       270us       100us    94.59%
"""
H2LOAD_LOG = (
    "1795268870782468\t200\t100\n1795268870784061\t200\t200\n1795268870784479\t200\t300\n1795268870784679\t200\t400\n"
)

PERF_ANALYZER = (
    "Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "1,4691.99,25,62,10,7,70,34,0,201,247,258,316\n"
)


def test_wrk_report_gives_rate_count_and_percentiles() -> None:
    load = read_wrk(WRK, callers=1)
    assert (load.answered, load.per_second, load.p50_us, load.p99_us) == (10, 5000.0, 100.0, 300.0)


@pytest.mark.parametrize("kind", ["connect", "read", "write", "status", "timeout"])
def test_wrk_report_with_an_error_is_refused(kind: str) -> None:
    with pytest.raises(BenchmarkError, match=f"'{kind}': 3"):
        read_wrk(WRK.replace(f"{kind}=0", f"{kind}=3"), callers=1)


def test_wrk_without_any_answer_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="no answer at all"):
        read_wrk("WRK answered=0 duration_us=2000 connect=0 read=0 write=0 status=0 timeout=0\n", callers=1)


def test_wrk_without_its_summary_is_refused_with_what_it_printed() -> None:
    with pytest.raises(BenchmarkError, match="unable to connect"):
        read_wrk("unable to connect to 127.0.0.1:8000 Connection refused\n", callers=1)


def corrected(histogram: dict[int, int], interval: int) -> dict[int, int]:
    """wrk 4's stats_correct, as it is written there: ascending from twice the interval."""
    data = Counter(histogram)
    for latency in range(2 * interval, max(histogram) + 1):
        made_up = latency - interval
        while data[latency] and made_up > interval:
            data[made_up] += data[latency]
            made_up -= interval
    return {latency: count for latency, count in data.items() if count}


def test_latencies_that_wrk_made_up_are_taken_back() -> None:
    histogram = {90: 500, 110: 480, 130: 15, 450: 2, 20_000: 2, 20_150: 1}
    answered, duration_us, callers = 1000, 250_000, 2
    printed = corrected(histogram, interval=duration_us // (answered // callers))
    assert sum(printed.values()) == 1115, "the stalls have made up 115 requests"
    restored = measured_latencies(printed, answered=answered, duration_us=duration_us, callers=callers)
    assert {latency: count for latency, count in restored.items() if count} == histogram


def test_latencies_of_another_correction_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="12 of them for 10 answers"):
        measured_latencies({100: 12}, answered=10, duration_us=1000, callers=1)


def test_percentile_is_the_smallest_latency_that_enough_requests_kept() -> None:
    histogram = {10: 50, 20: 49, 30: 1}
    assert [histogram_percentile(histogram, percent) for percent in (50, 51, 99, 99.5)] == [10, 20, 20, 30]


def test_lua_script_spells_every_byte_of_body_and_headers() -> None:
    script = wrk_script(HttpRequest({"X": 'a"\n'}, bytes(range(256))))
    body = "".join(f"\\{byte:03d}" for byte in range(256))
    assert f'wrk.body = "{body}"\n' in script
    assert 'wrk.headers["\\088"] = "\\097\\034\\010"\n' in script


def test_messages_come_back_from_their_file_as_they_were() -> None:
    messages = [b"", b"1 2\n3", bytes(1000), b"x"]
    assert read_messages(messages_file(messages)) == messages


def test_callers_share_the_messages_or_have_some_of_their_own() -> None:
    shared, own = orders(6, 2, own=0), orders(6, 2, own=2)
    assert [next(shared[number % 2]) for number in range(7)] == [0, 1, 2, 3, 4, 5, 0]
    assert [[next(order) for _ in range(3)] for order in own] == [[0, 1, 0], [2, 3, 2]]


def test_there_are_no_more_callers_than_sequences(tmp_path: Path) -> None:
    generator = GrpcLoad(SEQUENCES.call, Protocol.GRPC, tmp_path)
    with pytest.raises(BenchmarkError, match="sequences has 50 sequences, one for each caller, and 51 callers"):
        generator.run(Ports(0, 0, 0), callers=51, seconds=1)


def test_grpc_load_says_why_it_has_no_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=lambda: server.accept()[0].close())
        thread.start()
        found = load(port, "/a.B/C", [b"x"], callers=1, seconds=5)
        thread.join()
    assert (found["answered"], bool(found["error"])) == (0, True)
    with pytest.raises(BenchmarkError, match="grpc_load met an error behind 0 answers: "):
        read_grpc_load(json.dumps(found))


def test_grpc_load_without_any_answer_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="got no answer at all"):
        read_grpc_load('{"answered": 0, "seconds": 1, "p50_us": 0, "p99_us": 0, "body_bytes": 0, "error": ""}')


def test_h2load_report_gives_rate_count_and_bytes_and_its_log_the_percentiles() -> None:
    load = read_h2load(H2LOAD, H2LOAD_LOG)
    assert (load.answered, load.per_second, load.body_bytes) == (4, 3559.5, 662067)
    assert (load.p50_us, load.p99_us) == (250.0, pytest.approx(397.0))


def test_more_columns_in_the_log_of_h2load_do_no_harm() -> None:
    assert read_h2load(H2LOAD, H2LOAD_LOG.replace("\n", "\tmore\n")).p50_us == 250.0


def test_failed_streams_of_h2load_are_refused() -> None:
    report = H2LOAD.replace("4 succeeded, 0 failed", "3 succeeded, 1 failed")
    with pytest.raises(BenchmarkError, match="1 failed"):
        read_h2load(report, H2LOAD_LOG)


def test_answers_of_h2load_that_its_log_does_not_show_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="3 latencies for 4 answers"):
        read_h2load(H2LOAD, H2LOAD_LOG.replace("\t200\t400", "\t-1\t400"))


def test_h2load_without_its_summary_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="no summary"):
        read_h2load("starting benchmark...\n", "")


def test_perf_analyzer_report_gives_rate_and_percentiles_and_no_count() -> None:
    load = read_perf_analyzer(PERF_ANALYZER)
    assert (load.answered, load.per_second, load.p50_us, load.p99_us) == (None, 4691.99, 201.0, 316.0)


@pytest.mark.parametrize("report", ["", PERF_ANALYZER.replace("p99", "p98"), PERF_ANALYZER.replace("201", "-nan x")])
def test_perf_analyzer_report_that_lacks_a_figure_is_refused(report: str) -> None:
    with pytest.raises(BenchmarkError, match="perf_analyzer's report"):
        read_perf_analyzer(report)


def test_missing_tools_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError) as raised:
        require_tools(["h2load", "wrk"])
    assert str(raised.value) == (
        "'h2load' is not installed (Debian and Ubuntu: nghttp2-client; Homebrew: nghttp2); "
        "'wrk' is not installed (Debian and Ubuntu: wrk; Homebrew: wrk)"
    )


def test_command_that_does_not_end_is_ended_with_its_children() -> None:
    code = "import os, time; os.fork(); time.sleep(3600)"
    # The child holds the pipe open: this returns only because both are killed.
    with pytest.raises(BenchmarkError, match="did not end within 0 s"):
        run_bounded([sys.executable, "-c", code], limit_s=0.3)


def test_failed_command_is_reported_with_its_code_and_last_words() -> None:
    with pytest.raises(BenchmarkError, match="ended with code 3:\nno such host"):
        run_bounded(
            [sys.executable, "-c", "import sys; print('no such host', file=sys.stderr); sys.exit(3)"], limit_s=30
        )


def test_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="cannot start"):
        run_bounded([str(tmp_path / "nothing")], limit_s=30)
