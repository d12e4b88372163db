"""What a thread asks of Linux for itself. The ends of parents and orphans are tested with the fork server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.core import prctl

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a call of Linux")


def told_in_a_thread(ask: Callable[[], object], file: str) -> str:
    """What *file* of a thread of its own says when it has asked."""
    found: list[bytes] = []

    def run() -> None:
        ask()
        found.append(Path(f"/proc/{threading.get_native_id()}/{file}").read_bytes())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0].decode("utf-8", "replace").removesuffix("\n")


@pytest.mark.parametrize(
    ("name", "shown"), [("model_0_0", "model_0_0"), ("image_preprocessing_0", "image_preproces"), ("größe", "größe")]
)
def test_a_thread_has_the_name_as_far_as_it_fits(name: str, shown: str) -> None:
    assert told_in_a_thread(lambda: prctl.name_thread(name), "comm") == shown


def test_timers_of_a_thread_are_as_late_as_it_allows() -> None:
    assert told_in_a_thread(lambda: prctl.set_timer_slack(1000), "timerslack_ns") == "1000"
