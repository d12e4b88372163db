"""Line formats, severities, tables. Time and pid are given to the record, so a line is compared whole."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite import logs
from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.settings import Settings

WHEN = datetime(2024, 11, 21, 1, 27, 47, 282570, tzinfo=timezone.utc).timestamp()

USER: dict[str, Any] = {
    "model": "add_sub",
    "version": 1,
    "instance": "add_sub_0",
    "user_file": "/models/add_sub/1/model.py",
    "user_line": 12,
}


def record(message: str = "hello", level: int = logging.INFO, *args: object, **extra: Any) -> logging.LogRecord:
    return logging.makeLogRecord(
        {
            "name": "pytriton_lite.engine",
            "msg": message,
            "args": args,
            "levelno": level,
            "created": WHEN,
            "process": 1234,
            "filename": "server.py",
            "lineno": 604,
            **extra,
        }
    )


def line(log_format: LogFormat, made: logging.LogRecord) -> str:
    return logs.FORMATTERS[log_format]().format(made)


def members(made: logging.LogRecord) -> dict[str, Any]:
    text = line(LogFormat.JSON, made)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(autouse=True)
def _restored_loggers() -> Iterator[None]:
    """Take back what configure did to the loggers."""
    loggers = [logging.getLogger(name) for name in ("pytriton_lite", *logs.FOREIGN_LOGGERS)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


# Formats ------------------------------------------------------------------------------------------------------------


def test_the_default_format_is_tritons() -> None:
    """model_api.md section 2.8."""
    assert line(LogFormat.DEFAULT, record()) == 'I1121 01:27:47.282570 1234 server.py:604] "hello"'


def test_the_iso8601_format_is_tritons() -> None:
    """cli.md section 2."""
    assert line(LogFormat.ISO8601, record()) == '2024-11-21T01:27:47Z I 1234 server.py:604] "hello"'


@pytest.mark.parametrize(
    ("level", "letter", "name"),
    [
        (logging.DEBUG, "I", "verbose"),
        (logging.INFO, "I", "info"),
        (logging.WARNING, "W", "warning"),
        (logging.ERROR, "E", "error"),
        (logging.CRITICAL, "E", "error"),
    ],
)
def test_severities_have_tritons_letters_and_names_in_json(level: int, letter: str, name: str) -> None:
    assert line(LogFormat.DEFAULT, record("x", level))[0] == letter
    assert line(LogFormat.ISO8601, record("x", level)).split()[1] == letter
    assert members(record("x", level))["level"] == name


def test_newlines_and_quotes_are_escaped_and_letters_of_all_alphabets_are_not() -> None:
    """model_api.md section 3.1: a traceback is one line."""
    assert line(LogFormat.DEFAULT, record('a\nb "c" é 世')).endswith(r'] "a\nb \"c\" é 世"')


@pytest.mark.parametrize("log_format", LogFormat)
def test_no_text_gives_a_command_to_a_terminal_or_ends_a_line(log_format: LogFormat) -> None:
    text = line(log_format, record("a\x1b[31m b\x9b31m c\x85 d\u2028 é"))
    assert r"a\u001b[31m b\u009b31m c\u0085 d\u2028 é" in text
    assert text.isprintable()


def test_no_exception_of_a_model_can_begin_a_line_of_the_log() -> None:
    message = "failed: ValueError: a\nE1121 b\n\nAt:\n  model.py(1): f\nE1121 01:27:47.282570 1 a.py:1] \x1b[31m\n"
    first, *below = line(LogFormat.DEFAULT, record(message)).splitlines()
    assert first.endswith(r'] "failed: ValueError: a\nE1121 b"')
    assert below == ["  At:", "    model.py(1): f", r"  E1121 01:27:47.282570 1 a.py:1] \u001b[31m"]


@pytest.mark.parametrize("log_format", LogFormat)
def test_no_name_can_begin_a_line_of_the_log(log_format: LogFormat) -> None:
    forged = "x\nE1121 01:27:47.282570 1 a.py:1] \x1b[31m"
    named = record(model=forged, version=1, instance=f"{forged}_0", request_id=forged, user_file=f"/{forged}.py")
    text = line(log_format, named)
    assert text.isprintable()
    assert text.count(r"x\nE1121") == 4


def test_a_traceback_is_lines_below_the_line() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        failed = record("model failed", logging.ERROR, exc_info=sys.exc_info())
    text = line(LogFormat.DEFAULT, failed)
    first, *below = text.splitlines()
    assert first.endswith('] "model failed"')
    assert below[0] == "  Traceback (most recent call last):"
    assert below[-1] == "  ValueError: boom"
    assert members(failed)["message"] == "model failed"
    assert members(failed)["exception"].endswith("ValueError: boom")


def test_arguments_are_put_into_the_message() -> None:
    assert line(LogFormat.DEFAULT, record("%s of %d", logging.INFO, "one", 2)).endswith('] "one of 2"')


def test_a_line_of_user_code_has_its_own_file_and_line_and_says_whose_it_is() -> None:
    assert line(LogFormat.DEFAULT, record(**USER)) == (
        'I1121 01:27:47.282570 1234 model.py:12] "hello" [add_sub:1 add_sub_0]'
    )


def test_a_printed_line_has_the_stream_in_place_of_file_and_line() -> None:
    printed = record(**{**USER, "user_file": "stderr", "user_line": None})
    assert line(LogFormat.DEFAULT, printed) == 'I1121 01:27:47.282570 1234 stderr] "hello" [add_sub:1 add_sub_0]'
    assert "line" not in members(printed)


@pytest.mark.parametrize(
    ("extra", "subject"),
    [
        ({"model": "m"}, "[m]"),
        ({"model": "m", "version": 2}, "[m:2]"),
        ({"model": "m", "version": "2", "request_id": "abc"}, "[m:2 request abc]"),
        ({"request_id": "abc"}, "[request abc]"),
        ({"instance": "m_0"}, "[m_0]"),
    ],
)
def test_a_line_says_as_much_as_is_known_of_what_it_is_about(extra: dict[str, Any], subject: str) -> None:
    assert line(LogFormat.DEFAULT, record(**extra)).endswith(f'"hello" {subject}')


def test_a_json_line_is_one_object_with_what_there_is() -> None:
    assert members(record('a\n"b"')) == {
        "time": "2024-11-21T01:27:47.282570Z",
        "level": "info",
        "pid": 1234,
        "logger": "pytriton_lite.engine",
        "file": "server.py",
        "line": 604,
        "message": 'a\n"b"',
    }


def test_a_json_line_of_user_code_has_model_version_instance_and_request() -> None:
    found = members(record(**USER, request_id="abc"))
    assert (
        found.items()
        >= {
            "model": "add_sub",
            "version": 1,
            "instance": "add_sub_0",
            "request_id": "abc",
            "file": "model.py",
            "line": 12,
        }.items()
    )


# Configuration ------------------------------------------------------------------------------------------------------


def written(settings: Settings) -> list[str]:
    """The messages that come through, of one line in each severity."""
    stream = io.StringIO()
    logs.configure(settings, stream)
    logger = logging.getLogger("pytriton_lite.engine")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, logging.getLevelName(level).lower())
    return [text.split('"')[1] for text in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({}, ["info", "warning", "error", "critical"]),
        ({"log_verbose": 1}, ["debug", "info", "warning", "error", "critical"]),
        ({"log_info": False}, ["warning", "error", "critical"]),
        ({"log_warning": False}, ["info", "error", "critical"]),
        ({"log_error": False}, ["info", "warning"]),
        ({"log_info": False, "log_verbose": 1}, ["debug", "warning", "error", "critical"]),
        ({"log_info": False, "log_warning": False}, ["error", "critical"]),
        ({"log_info": False, "log_warning": False, "log_error": False}, []),
    ],
)
def test_each_severity_has_its_own_switch(given: dict[str, Any], messages: list[str]) -> None:
    """cli.md section 2."""
    assert written(Settings(**given)) == messages


def test_a_suppressed_level_makes_no_record() -> None:
    logs.configure(Settings(log_info=False), io.StringIO())
    assert not logging.getLogger("pytriton_lite.engine").isEnabledFor(logging.INFO)


def test_a_second_configuration_takes_the_place_of_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(Settings(), first)
    logs.configure(Settings(), second)
    logs.LOGGER.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_lines_go_to_stderr_without_a_log_file(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    logs.LOGGER.info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith('"hello"\n')


def test_a_log_file_is_appended_to_and_takes_text_that_utf8_has_not(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("before\n")
    logs.configure(Settings(log_file=log))
    logs.LOGGER.info("%s", "lone \udc80 surrogate")
    assert log.read_text().splitlines()[0] == "before"
    assert log.read_text().splitlines()[1].endswith(r'"lone \udc80 surrogate"')


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_said_once_on_stderr_and_the_next_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, file = tmp_path / "server.log", tmp_path / "elsewhere.log"
    place.symlink_to("/dev/full")
    log = logs.configure(Settings(log_file=place))
    for _ in range(3):
        logs.LOGGER.info("hello")
    told = f"the log '{place}' cannot be written, lines are lost: {OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))}\n"
    assert capsys.readouterr().err == told
    place.unlink()
    place.symlink_to(file)
    log.reopen()
    logs.LOGGER.info("here")
    logs.LOGGER.info("and here")
    assert [text.partition("] ")[2] for text in file.read_text().splitlines()] == [
        '"here"',
        '"the log is written again; 3 lines may be lost"',
        '"and here"',
    ]
    assert capsys.readouterr().err == ""


def test_a_pipe_that_nobody_reads_is_an_error_and_no_wait_for_its_reader(tmp_path: Path) -> None:
    pipe = tmp_path / "server.log"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        logs.configure(Settings(log_file=pipe))
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = logs.configure(Settings(log_file=pipe))
    logs.LOGGER.info("before")
    assert b'"before"' in os.read(reading, 4096)
    os.close(reading)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        log.reopen()
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log.reopen()
    logs.LOGGER.info("behind")
    assert b'"behind"' in os.read(reading, 4096)
    os.close(reading)


def test_a_log_file_that_cannot_be_opened_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    stream = io.StringIO()
    logs.configure(Settings(), stream)
    with pytest.raises(FileNotFoundError):
        logs.configure(Settings(log_file=tmp_path / "absent" / "a.log"))
    logs.LOGGER.info("still here")
    assert "still here" in stream.getvalue()


@pytest.mark.parametrize("name", logs.FOREIGN_LOGGERS)
def test_warnings_of_libraries_come_in_our_format_and_their_chatter_does_not(name: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_verbose=1, log_format=LogFormat.JSON), stream)
    logging.getLogger(name).info("chatter")
    logging.getLogger(f"{name}.part").warning("trouble")
    (text,) = stream.getvalue().splitlines()
    assert json.loads(text).items() >= {"message": "trouble", "logger": f"{name}.part", "level": "warning"}.items()


# Tables -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["socket.send() raised exception.", "SSL connection is closed"])
def test_event_loops_say_nothing_of_peers_that_have_gone(message: str) -> None:
    stream = io.StringIO()
    logs.configure(Settings(), stream)
    logging.getLogger("asyncio").warning(message)
    logging.getLogger("asyncio").warning("something else")
    [written] = stream.getvalue().splitlines()
    assert "something else" in written


def test_a_table_has_tritons_look() -> None:
    """repository.md section 8."""
    rows = [["add_sub", "1", "READY"], ["broken", "-", "UNAVAILABLE: no"]]
    assert logs.table(["Model", "Version", "Status"], rows) == "\n".join(
        [
            "+---------+---------+-----------------+",
            "| Model   | Version | Status          |",
            "+---------+---------+-----------------+",
            "| add_sub | 1       | READY           |",
            "| broken  | -       | UNAVAILABLE: no |",
            "+---------+---------+-----------------+",
        ]
    )


def test_a_table_without_rows_is_its_frame() -> None:
    assert logs.table(["Model"], []) == "+-------+\n| Model |\n+-------+\n+-------+"


def test_a_cell_of_several_lines_stays_in_its_column() -> None:
    assert logs.table(["A", "B"], [["x", "one\ntwo"], ["", "y"]]).splitlines()[3:6] == [
        "| x | one |",
        "|   | two |",
        "|   | y   |",
    ]


def test_a_logged_table_stands_under_its_title_with_the_callers_file() -> None:
    stream = io.StringIO()
    logs.configure(Settings(), stream)
    logs.log_table(logs.LOGGER, "Models", ["Model", "Status"], [["add_sub", "READY"]])
    head, rest = stream.getvalue().split("\n", 1)
    assert "test_logs.py:" in head
    assert head.endswith('] "Models"')
    assert rest == logs.table(["Model", "Status"], [["add_sub", "READY"]]) + "\n\n"


def test_a_table_is_rows_of_cells_in_json() -> None:
    stream = io.StringIO()
    logs.configure(Settings(log_format=LogFormat.JSON), stream)
    logs.log_table(logs.LOGGER, "Models", ["Model", "Status"], [["add_sub", "READY"]])
    (text,) = stream.getvalue().splitlines()
    assert json.loads(text)["table"] == [{"Model": "add_sub", "Status": "READY"}]


def test_an_explanation_stands_below_its_line_and_obeys_nobody() -> None:
    made = record("failed", logging.ERROR, explanation="model.py:3: ValueError: \x1b[31mred\n  in initialize")
    head, *below = line(LogFormat.DEFAULT, made).splitlines()
    assert head.endswith('] "failed"')
    assert below == ["model.py:3: ValueError: \\u001b[31mred", "  in initialize"]
    assert members(made)["explanation"] == "model.py:3: ValueError: \\u001b[31mred\n  in initialize"
    assert "explanation" not in members(record())
