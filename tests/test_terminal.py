"""What a person sees who starts the server at a terminal."""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from pytriton_lite import logs
from pytriton_lite.terminal import Formatter, Terminal
from tests.harness import PROJECT, free_ports, until_ready, write_model

CONFIG = 'backend: "python" input [{ name: "X" data_type: TYPE_FP32 dims: [-1] }]'
WARM_UP = """
model_warmup [{ name: "w" batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } } }]
"""
WAITS = """
    import triton_python_backend_utils as pb_utils

    def wait_at(name):
        with open({gates!r} + "/" + name) as gate:
            print(name, "says", gate.read())

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            wait_at("auto_complete_config")
            return config

        def initialize(self, args):
            wait_at("initialize")

        def execute(self, requests):
            wait_at("warm-up")
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


class Person:
    """A server with a terminal of its own, *columns* wide, and what has been seen on it."""

    def __init__(self, *arguments: str, columns: int) -> None:
        self._terminal, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.seen = ""
        environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytriton_lite", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=PROJECT, env={**environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)

    def until(self, pattern: str) -> re.Match[str]:
        while (found := re.search(pattern, plain(self.seen))) is None:
            assert self._read(), f"the command ended before {pattern!r} appeared:\n{self.seen}"
        return found

    def until_end(self) -> str:
        while self._read():
            pass
        return self.seen

    def hang_up(self) -> None:
        """Close the terminal: what the server writes there from now on is an error."""
        terminal, self._terminal = self._terminal, -1
        os.close(terminal)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self._terminal >= 0:
            self.hang_up()

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], 60)
        assert ready, f"nothing was written for a minute, behind:\n{self.seen}"
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # what Linux says at the end of a terminal
            data = b""
        self.seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)


@contextmanager
def sitting(*arguments: str, columns: int) -> Iterator[Person]:
    person = Person(*arguments, columns=columns)
    try:
        yield person
    finally:
        person.close()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


PORTS = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")


def test_what_loads_has_a_line_with_its_step_and_time_and_then_three_lines_say_what_is_there(tmp_path: Path) -> None:
    steps = ("auto_complete_config", "initialize", "warm-up")
    for step in steps:
        os.mkfifo(tmp_path / step)
    write_model(tmp_path / "models", "slow", WAITS.format(gates=str(tmp_path)), CONFIG + WARM_UP)
    with sitting("serve", str(tmp_path / "models"), *PORTS, columns=80) as person:
        for step in steps:
            person.until(rf"slow:1 +{step} +\d+\.\d s")
            (tmp_path / step).write_text("open")
        person.until("To stop: Ctrl-C, or kill ")
        person.process.send_signal(signal.SIGINT)
        screen = person.until_end()
        assert person.process.wait(60) == 0
    text = plain(screen)
    assert "\x1b[" in screen, "there are colours"
    assert re.search(r"(?:^|\r)\d\d:\d\d:\d\d   initialize says open \[slow:1 slow_0\] stdout$", text, re.MULTILINE)
    ready = re.search(
        r"(?:^|\r)Serving 1 model: slow\nHTTP http://127\.0\.0\.1:\d+, gRPC 127\.0\.0\.1:\d+, metrics\s+"
        r"http://127\.0\.0\.1:\d+/metrics,\s+console\s+http://127\.0\.0\.1:\d+/\nTo stop: Ctrl-C, or kill (\d+);",
        text,
        re.MULTILINE,
    )
    assert ready is not None, text
    assert int(ready[1]) == person.process.pid
    assert "+----" not in text, "what a table says the three lines say"


def test_a_start_goes_on_when_its_terminal_has_gone(tmp_path: Path) -> None:
    steps = ("auto_complete_config", "initialize", "warm-up")
    for step in steps:
        os.mkfifo(tmp_path / step)
    write_model(tmp_path / "models", "slow", WAITS.format(gates=str(tmp_path)), CONFIG + WARM_UP)
    (port,) = free_ports(1)
    ports = [f"--http-port={port}", "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
    with sitting("serve", str(tmp_path / "models"), *ports, columns=80) as person:
        person.until("slow:1 +auto_complete_config")
        person.hang_up()
        for step in steps:
            (tmp_path / step).write_text("open")
        until_ready(person.process, port)
        person.process.send_signal(signal.SIGINT)
        assert person.process.wait(60) == 0


@pytest.mark.parametrize("columns", [80, 120])
def test_the_cause_of_a_failed_start_is_in_sight(tmp_path: Path, columns: int) -> None:
    write_model(tmp_path, "broken", "import no_such_package\n", CONFIG)
    with sitting("serve", str(tmp_path), *PORTS, columns=columns) as person:
        text = plain(person.until_end())
        assert person.process.wait(60) == 1
    assert max(map(len, text.splitlines())) <= columns
    last = " ".join(text.splitlines()[-8:])
    assert "No module named 'no_such_package' (pip install no_such_package where the server runs;" in " ".join(
        last.split()
    )


def test_check_has_colours(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "class TritonPythonModel: pass", CONFIG + " max_batch_size: -1")
    with sitting("check", str(tmp_path), columns=80) as person:
        screen = person.until_end()
        assert person.process.wait(60) == 1
    assert re.search(r"\x1b\[1;31m error: \x1b\[0m'max_batch_size' must be non-negative", screen)
    assert plain(screen).endswith("1 model, 1 error, 0 warnings\n")


def test_who_does_not_look_is_told_the_same_in_the_log(tmp_path: Path) -> None:
    """Nor is rich imported there."""
    code = "import sys, pytriton_lite.app, pytriton_lite.cli.serve\nassert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT)


# Formatting ---------------------------------------------------------------------------------------------------------


def printed(record: logging.LogRecord, columns: int = 80) -> list[str]:
    stream = io.StringIO()
    Formatter().print(record, Console(file=stream, width=columns, highlight=False))
    return stream.getvalue().splitlines()


def record(message: str, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("pytriton_lite.x", level, "/somewhere/x.py", 7, message, (), None)
    vars(made).update(extra)
    return made


def test_a_table_is_no_wider_than_the_terminal() -> None:
    table = logs.Table(("Model", "Version", "Status"), (("m", "1", "UNAVAILABLE: " + "because of this " * 20),))
    lines = printed(record("models", table=table))
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("because") == 20


def test_what_a_model_prints_gives_the_terminal_no_command() -> None:
    (line,) = printed(record("a\x1b[31mb \x9b1m", user_file="stdout", model="m", version=1))
    assert line.endswith(r"  a\u001b[31mb \u009b1m [m:1] stdout")


def test_a_very_long_line_is_left_to_the_terminal_to_wrap() -> None:
    long = "word " * 2000 + "end"
    assert max(map(len, printed(record("word " * 200)))) <= 80
    (line,) = printed(record(long))
    assert line.endswith(long)
    _, below = printed(record("first\n" + long))
    assert below == f"  {long}"


def test_markup_of_rich_in_a_message_is_text() -> None:
    (line,) = printed(record("[bold]x[/bold] [red]"))
    assert line.endswith("[bold]x[/bold] [red]")


def test_details_are_for_logs() -> None:
    table = logs.Table(("Model",), (("m",),))
    assert printed(record("models", table=table, is_detail=True)) == []


def test_of_many_that_load_eight_have_a_line() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Screen()
    terminal = Terminal(stream)
    terminal.show([logs.Loading(f"m{number}:1", "initialize", 1.0) for number in range(11)])
    terminal.clear()
    drawn, *_ = plain(stream.getvalue()).split("and 3 more")
    assert drawn.count("initialize") == 8


def test_nothing_is_kept_of_what_a_terminal_that_has_gone_did_not_take() -> None:
    class Screen(io.StringIO):
        has_gone = False

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if self.has_gone:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

    stream = Screen()
    terminal = Terminal(stream)
    terminal.show([logs.Loading("m:1", "initialize", 1.0)])
    stream.has_gone = True
    terminal.show([logs.Loading("m:1", "initialize", 2.0)])
    terminal.handler.setFormatter(terminal.formatter)
    terminal.handler.emit(record("a line"))
    terminal.clear()
    stream.has_gone = False
    before = stream.getvalue()
    terminal.handler.emit(record("another"))
    assert "a line" not in stream.getvalue()
    assert plain(stream.getvalue().removeprefix(before)).endswith("another\n")
