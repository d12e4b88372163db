"""What the console keeps of the log: bounded for each model, whatever the others say."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pytriton_lite.console.lines import MOST_CHARACTERS, MOST_LINES, MOST_MODELS, RecentLines
from pytriton_lite.logs import Table


@pytest.fixture
def lines() -> RecentLines:
    return RecentLines()


@pytest.fixture
def logger(lines: RecentLines) -> Iterator[logging.Logger]:
    """A logger of its own that gives all to *lines*."""
    found = logging.Logger("pytriton_lite.console.test", logging.DEBUG)
    found.addHandler(lines)
    yield found


def test_a_line_of_a_model_is_kept_with_all_that_is_known_of_it(lines: RecentLines, logger: logging.Logger) -> None:
    extra = {
        "model": "add_sub", "version": 1, "instance": "add_sub_0", "request_id": "abc",
        "user_file": "/models/add_sub/1/model.py", "user_line": 12,
    }  # fmt: skip
    logger.warning("half of %s", "it", extra=extra)
    (line,) = lines.of_model("add_sub")
    assert (line.text, line.level, line.place) == ("half of it", "warning", "model.py:12")
    assert (line.model, line.version, line.instance, line.request_id) == ("add_sub", "1", "add_sub_0", "abc")
    assert lines.of_server() == []


def test_severities_have_the_names_of_the_log(lines: RecentLines, logger: logging.Logger) -> None:
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "x")
    assert [line.level for line in lines.of_server()] == ["verbose", "info", "warning", "error", "error"]


def test_errors_are_kept_beside_with_their_tracebacks(lines: RecentLines, logger: logging.Logger) -> None:
    logger.info("all is well")
    try:
        raise ValueError("boom")
    except ValueError:
        logger.exception("it failed", extra={"model": "m"})
    (error,) = lines.errors()
    assert error.text == "it failed"
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith("ValueError: boom")
    assert lines.of_model("m") == [error]


def test_only_what_is_new_is_told_to_who_says_what_he_has_seen(lines: RecentLines, logger: logging.Logger) -> None:
    logger.info("one")
    logger.info("two", extra={"model": "m"})
    logger.info("three")
    seen = lines.of_server()[0].number
    assert [line.text for line in lines.of_server(seen)] == ["three"]
    assert [line.text for line in lines.of_model("m", seen)] == ["two"]


def test_what_a_server_says_is_new_to_who_has_seen_lines_of_the_one_before_it(
    lines: RecentLines, logger: logging.Logger
) -> None:
    for _ in range(3):
        logger.error("earlier")
    logger.removeHandler(lines)
    next_one = RecentLines()
    logger.addHandler(next_one)
    logger.error("later")
    seen = lines.errors()[-1].number
    assert (
        [line.text for line in next_one.errors(seen)] == [line.text for line in next_one.of_server(seen)] == ["later"]
    )


def test_what_the_server_says_of_a_model_is_among_its_lines(lines: RecentLines, logger: logging.Logger) -> None:
    logger.info("loading: add:1")
    logger.info("printed", extra={"model": "add"})
    logger.error("failed to load 'add' version 1: Internal: boom")
    logger.error("failed to load 'add_sub' version 1: Internal: boom")
    assert [line.text[:11] for line in lines.of_model("add")] == ["loading: ad", "printed", "failed to l"]
    assert len(lines.of_model("add", after=lines.of_model("add")[1].number)) == 1


def test_a_table_stands_below_its_title(lines: RecentLines, logger: logging.Logger) -> None:
    logger.info("models", extra={"table": Table(("Model", "Status"), (("add", "READY"),))})
    assert lines.of_server()[0].text.splitlines()[0::2] == ["models", "| Model | Status |", "| add   | READY  |"]


def test_a_talkative_model_takes_nothing_from_another(lines: RecentLines, logger: logging.Logger) -> None:
    logger.error("the only one", extra={"model": "quiet"})
    for number in range(MOST_LINES + 50):
        logger.info("line %d", number, extra={"model": "loud"})
    assert [line.text for line in lines.of_model("quiet")] == ["the only one"]
    loud = lines.of_model("loud")
    assert (len(loud), loud[0].text, loud[-1].text) == (MOST_LINES, "line 50", f"line {MOST_LINES + 49}")


def test_long_lines_are_cut_and_few_of_them_are_kept(lines: RecentLines, logger: logging.Logger) -> None:
    for _ in range(40):
        logger.info("x" * 100_000, extra={"model": "m"})
    kept = lines.of_model("m")
    assert all(line.text.endswith("… (83616 more characters)") for line in kept)
    assert 1 < len(kept) < 10
    assert sum(len(line.text) for line in kept) <= MOST_CHARACTERS


def test_the_models_that_spoke_last_have_lines(lines: RecentLines, logger: logging.Logger) -> None:
    for number in range(MOST_MODELS):
        logger.info("hello", extra={"model": f"m{number}"})
    logger.info("again", extra={"model": "m0"})
    logger.info("hello", extra={"model": "one more"})
    assert len(lines.of_model("m0")) == 2
    assert lines.of_model("m1") == []
    assert len(lines.of_model("one more")) == 1


def test_a_message_that_does_not_fit_its_arguments_is_passed_over(
    lines: RecentLines, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("%d", "no number")
    logger.info("fine")
    assert [line.text for line in lines.of_server()] == ["fine"]
