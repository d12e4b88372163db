"""The access log without a server: its lines, its bounds, and what happens when they cannot be written."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite import access_log
from pytriton_lite.access_log import FORMATTERS, AccessLog, LineFile, members
from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.core.timeline import Timeline
from tests.harness import open_descriptors, until

TRACE = "0123456789abcdef0123456789abcdef"


def timeline(protocol: str = "http", **stations: Any) -> Timeline:
    made = Timeline(protocol, "add_sub", time.monotonic_ns)
    for name, value in stations.items():
        setattr(made, name, value)
    return made


def served(**more: Any) -> Timeline:
    return timeline(
        **{
            "method": "infer",
            "peer": "127.0.0.1:4711",
            "version": 2,
            "instance": "add_sub_0",
            "request_id": "abc",
            "status": 200,
            "bytes_received": 10,
            "bytes_sent": 20,
            "responses": 1,
            "executed_batch_size": 3,
            "receiving_ns": 1_000_000,
            "enqueued_ns": 2_000_000,
            "compute_start_ns": 4_000_000,
            "inputs_ns": 4_500_000,
            "executed_ns": 8_000_000,
            "compute_end_ns": 8_250_000,
            "sent_ns": 9_000_000,
            **more,
        }
    )


def with_log(use: Callable[[AccessLog], None], write: Callable[[str], None]) -> None:
    """Run *use* on an access log in a loop, and close it."""

    async def run() -> None:
        log = AccessLog(write, lambda: LogFormat.JSON)
        use(log)
        log.close()

    asyncio.run(run())


def line(log_format: LogFormat, made: Timeline) -> str:
    return FORMATTERS[log_format](1732152467_282570123, members(made))


# ---------------------------------------------------------------------------------------------- lines


def test_a_line_of_text_is_words_behind_the_logs_preamble() -> None:
    words = (
        "protocol=http method=infer client=127.0.0.1:4711 model=add_sub version=2 instance=add_sub_0 request_id=abc "
        "status=200 bytes_in=10 bytes_out=20 responses=1 batch_size=3 queue_us=2000 compute_input_us=500 "
        "compute_infer_us=3500 compute_output_us=250 total_us=8000"
    )
    pid = os.getpid()
    assert line(LogFormat.DEFAULT, served()) == f"I1121 01:27:47.282570 {pid} access] {words}\n"
    assert line(LogFormat.ISO8601, served()) == f"2024-11-21T01:27:47Z I {pid} access] {words}\n"


def test_a_line_of_json_has_the_same_members() -> None:
    found = json.loads(line(LogFormat.JSON, served(trace_id=TRACE)))
    assert found == {
        "time": "2024-11-21T01:27:47.282570Z",
        "level": "info",
        "pid": os.getpid(),
        "logger": "pytriton_lite.access",
        "protocol": "http",
        "method": "infer",
        "client": "127.0.0.1:4711",
        "model": "add_sub",
        "version": 2,
        "instance": "add_sub_0",
        "request_id": "abc",
        "trace_id": TRACE,
        "status": 200,
        "bytes_in": 10,
        "bytes_out": 20,
        "responses": 1,
        "batch_size": 3,
        "queue_us": 2000,
        "compute_input_us": 500,
        "compute_infer_us": 3500,
        "compute_output_us": 250,
        "total_us": 8000,
    }


def test_what_was_not_reached_is_left_out_and_zeros_that_say_something_are_not() -> None:
    refused = timeline(status=404, error="no such model", receiving_ns=1_000, sent_ns=3_000)
    assert members(refused) == {
        "protocol": "http",
        "model": "add_sub",
        "status": 404,
        "error": "no such model",
        "bytes_in": 0,
        "bytes_out": 0,
        "responses": 0,
        "total_us": 2,
    }


def test_a_client_that_went_away_unanswered_has_a_status_over_http_and_ok_is_none() -> None:
    assert members(timeline())["status"] == 499
    assert members(timeline("grpc"))["status"] == 0


@pytest.mark.parametrize(
    ("request_id", "word"),
    [
        ("abc-1.2", "abc-1.2"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('"', r'"\""'),
        ("one\ntwo", r'"one\ntwo"'),
        ("é", '"é"'),
        ("\udcff", r'"\udcff"'),
        ("x" * 300, "x" * 256 + "…"),
    ],
)
def test_a_value_is_one_word_on_one_line_whatever_it_is(request_id: str, word: str) -> None:
    text = line(LogFormat.DEFAULT, served(request_id=request_id))
    expected = f' request_id="{word}" ' if word.endswith("…") else f" request_id={word} "
    assert expected in text
    assert text.count("\n") == 1
    parsed = json.loads(line(LogFormat.JSON, served(request_id=request_id)))["request_id"]
    assert parsed == (request_id if len(request_id) < 257 else request_id[:256] + "…")


# ---------------------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("log_format", LogFormat)
def test_no_value_gives_a_command_to_a_terminal_or_ends_a_line(log_format: LogFormat) -> None:
    text = line(log_format, timeline(request_id="\x1b[31m\x9b31m\x85\u2028"))
    assert text.removesuffix("\n").isprintable()


def test_requests_that_models_make_are_not_watched() -> None:
    def use(log: AccessLog) -> None:
        assert not log.begins(timeline("bls"), {}.get)
        assert log.begins(timeline("grpc"), {}.get)

    with_log(use, lambda lines: None)


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (f"00-{TRACE}-0123456789abcdef-01".encode(), TRACE),
        (f"00-{TRACE}-01".encode(), ""),
        (b"garbage", ""),
        (None, ""),
    ],
)
def test_the_trace_is_that_of_the_clients_header(header: bytes | None, trace_id: str) -> None:
    made = timeline()
    with_log(lambda log: log.begins(made, {b"traceparent": header}.get) and None, lambda lines: None)
    assert made.trace_id == trace_id


# ---------------------------------------------------------------------------------------------- writing


def test_lines_are_written_soon_and_in_order() -> None:
    written: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        all_there = asyncio.Event()

        def write(lines: str) -> None:
            written.append(lines)
            if "".join(written).count("\n") == 120:
                loop.call_soon_threadsafe(all_there.set)

        log = AccessLog(write, lambda: LogFormat.JSON)
        for number in range(120):
            log.ended(served(request_id=str(number)))
        await asyncio.wait_for(all_there.wait(), 20)
        log.close()

    asyncio.run(run())
    ids = [json.loads(text)["request_id"] for text in "".join(written).splitlines()]
    assert ids == [str(number) for number in range(120)]
    assert len(written) > 1, "a burst is formatted in slices"


def test_what_waits_at_the_end_is_written() -> None:
    written: list[str] = []
    with_log(lambda log: [log.ended(served()) for _ in range(3)] and None, written.append)
    assert "".join(written).count('"request_id":"abc"') == 3


def test_more_than_can_wait_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    written: list[str] = []
    most = access_log._MOST_WAITING
    made = served()
    caplog.set_level(logging.WARNING, access_log.__name__)
    with_log(lambda log: [log.ended(made) for _ in range(most + 7)] and None, written.append)
    lines = [json.loads(text) for text in "".join(written).splitlines()]
    assert len(lines) == most + 1
    assert {**lines[-1], "time": ""} == {
        "time": "",
        "level": "info",
        "pid": os.getpid(),
        "logger": "pytriton_lite.access",
        "dropped": 7,
    }
    assert [record.getMessage() for record in caplog.records] == [
        "7 lines of the access log were dropped: they came faster than they are written"
    ]


def test_a_writer_that_is_held_up_holds_up_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "_CLOSE_S", 0.01)
    go_on = threading.Event()

    def write(lines: str) -> None:
        go_on.wait(30)

    with_log(lambda log: log.ended(served()), write)
    go_on.set()
    assert "the end of the access log is lost: it could not be written within 0.01 s" in caplog.text


def test_lines_that_cannot_be_written_are_counted_when_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    written: list[str] = []
    tries = iter([OSError(28, "No space left on device"), OSError(28, "No space left on device"), None])

    def write(lines: str) -> None:
        failure = next(tries)
        if failure is not None:
            raise failure
        written.append(lines)

    with_log(lambda log: [log.ended(served()) for _ in range(access_log._SLICE * 3)] and None, write)
    assert "".join(written).count("\n") == access_log._SLICE
    assert [record.getMessage() for record in caplog.records] == [
        "the access log cannot be written, lines are lost: [Errno 28] No space left on device",
        f"the access log is written again; {access_log._SLICE * 2} lines are lost",
    ]


def test_a_file_is_appended_to_and_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("before\n")
    file = LineFile(path)
    file.write("one\n")
    path.rename(tmp_path / "moved")
    file.write("two \udcff\n")
    file.reopen()
    file.write("three\n")
    file.close()
    assert (tmp_path / "moved").read_text() == "before\none\ntwo \\udcff\n"
    assert path.read_text() == "three\n"


_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from pytriton_lite.access_log import LineFile

def limit(nbytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

file = LineFile(Path(sys.argv[1]))
for nbytes, lines in ((10, "one\\ntwo two\\n"), (10, "lost\\n"), (-1, "three\\n"), (20, "four\\nlost\\n"), (-1, "five\\n")):
    limit(nbytes)
    try:
        file.write(lines)
    except OSError:
        assert nbytes > 0
    else:
        assert nbytes < 0
"""


def test_a_line_of_which_the_disk_took_a_half_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    subprocess.run([sys.executable, "-c", _ON_A_FULL_DISK, path], check=True)
    assert path.read_text() == "one\ntwo tw\nthree\nfou\nfive\n"


def test_a_file_that_cannot_be_opened_anew_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LineFile(folder / "access.log")
    folder.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        file.reopen()
    file.write("here\n")
    file.close()
    assert (tmp_path / "moved" / "access.log").read_text() == "here\n"


def unread(pipe: int) -> int:
    """Bytes that are in *pipe*."""
    (nbytes,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(nbytes)


def test_who_has_a_file_opened_anew_does_not_wait_for_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    os.mkfifo(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        os.set_blocking(reader.fileno(), True)
        file = LineFile(path)
        long = "x" * 1_000_000 + "\n"
        writing = threading.Thread(target=file.write, args=(long,), daemon=True)
        writing.start()
        until(lambda: unread(reader.fileno()) == fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ))
        path.rename(tmp_path / "moved")
        for _ in range(2):
            reopening = threading.Thread(target=file.reopen, daemon=True)
            reopening.start()
            reopening.join(20)
            assert not reopening.is_alive()
        assert reader.read(len(long)) == long.encode()
        writing.join()
        file.write("one\n")
        file.close()
        assert reader.read() == b""
    assert path.read_text() == "one\n"


def test_a_file_that_is_never_written_to_again_is_closed_in_both_forms(tmp_path: Path) -> None:
    before = open_descriptors()
    file = LineFile(tmp_path / "access.log")
    file.reopen()
    file.close()
    assert open_descriptors() == before
