"""What holds for every test."""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytriton_lite.core.build import build_kind

gc.disable()  # until all tests are collected: of what modules and tests are made nothing is garbage

HANG_S = 450
"""pytest-timeout fails a test after 300 s. What hangs even then, as a thread may that the test waits for, is cut off."""
_RENEW_S = 30
"""So much of it may have been used up by tests before."""
END_S = 120
"""When all tests are done: a thread that waits for ever would keep the process."""


def _pass_over(number: int, frame: FrameType | None) -> None:
    """What SIG_IGN does, but what is started from here does not inherit it."""


# A shell that puts a command into the background has it ignore SIGINT, nohup SIGHUP, and children inherit that. What tests
# start must heed both as it does at a terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _pass_over)

_SAID_TO_OTHERS = ("FORCE_COLOR", "PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS")
# What whoever runs the tests has said to other programs, and to servers in earnest. Programs that tests start would heed it:
# with the third of these each server would compile all its modules again.
for _name in list(os.environ):
    if _name.startswith(("AWS_", "OTEL_", "PYTRITON_LITE_", "TRITON")) or _name in _SAID_TO_OTHERS:
        del os.environ[_name]
for _name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
    os.environ[_name] = os.devnull  # not those of a home

# Threads of OpenBLAS spin for some 50 ms before they sleep, in each of a thousand processes that import numpy and have nothing
# for them to do. Here they sleep at once; there are as many as before.
os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"

# Servers of tests are on the loopback, where no proxy reaches them; installers may need the one that there is.
_DIRECT = ("localhost", "127.0.0.1", "127.0.0.2", "::1")
for _name in ("no_proxy", "NO_PROXY"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), *_DIRECT)))


_LONGEST = (
    *(
        "test_hostile_http",
        "test_environments",
        "test_capacity",
        "test_bench_command",
        "test_campaign",
        "test_packaging",
    ),
    *("test_remote_copies", "test_siege", "test_compare", "test_overload", "test_bare_environment", "test_grpc_http2"),
    *("test_peers", "test_model_api_environments", "test_manual_examples", "test_bls_chain", "test_security_rows"),
    *("test_hung_disk", "test_hostile_worker", "test_stuck_executions", "test_dispatch_recovery", "test_access_lines"),
    *("test_api_outside_a_server", "test_fuzz", "test_shutdown", "test_model_life"),
)
"""Files that take longest. Each is run by one process from its first test to its last: they begin first, so that nobody waits
for one of them at the end (make test says ``--no-loadscope-reorder``, or pytest-xdist would put the fullest file first)."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Skip tests that put something of their own into the place of what compiled code knows the type or the address of."""
    marker = item.get_closest_marker("interpreted")
    if marker is not None and build_kind() == "compiled":
        item.add_marker(pytest.mark.skip(reason=f"compiled: {marker.args[0]}"))


def pytest_collection_finish() -> None:
    """Tests that collect garbage look through their own then, and not through 13,000 tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


class _EndOfWaiting:
    """Ends the process, with every thread's stack on the terminal, when a test or the end takes too long."""

    def __init__(self) -> None:
        self._terminal = os.dup(2)  # pytest puts something else into its place
        self._begun_at = -math.inf

    def begin(self, limit_s: int) -> None:
        faulthandler.dump_traceback_later(limit_s, exit=True, file=self._terminal)
        self._begun_at = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        # Each beginning is a thread that the one before has to end for: half of what pytest itself costs for a small test. The
        # tests of a file follow each other, so one limit may be for many of them, as long as nearly all of it is left.
        if time.monotonic() - self._begun_at > _RENEW_S:
            self.begin(HANG_S)
        try:
            return (yield)
        finally:
            if nextitem is None or nextitem.path != item.path:
                self._call_off()  # from here on pytest-xdist may have nothing to do for long

    def _call_off(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._begun_at = -math.inf

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        self.begin(HANG_S)  # pytest has just called it off

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            self._call_off()  # one of several waits for the others, and is ended by pytest-xdist
        else:
            self.begin(END_S)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder of the test's own. Its name leaves room for that of a Unix socket, whose path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_EndOfWaiting())
    if config.pluginmanager.hasplugin("hypothesispytest"):  # which the tests of frameworks do without
        _never_mind_the_time()


def _never_mind_the_time() -> None:
    """Hypothesis fails what takes longer than 200 ms, or long to generate: on a busy machine anything may."""
    from hypothesis import HealthCheck, settings

    settings.register_profile("busy", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
