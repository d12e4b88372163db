"""The processes that load a server."""

from __future__ import annotations

import signal

from pytriton_lite.bench.calls import Plan
from pytriton_lite.bench.fleet import _Sender
from pytriton_lite.bench.settings import Traffic
from pytriton_lite.client.target import Protocol, parse_target


def test_ctrl_c_is_for_the_command_however_early_it_comes() -> None:
    sender = _Sender(Plan(Traffic(parse_target("127.0.0.1:1", Protocol.HTTP), "m")))
    sender.process.send_signal(signal.SIGINT)
    sender.close()
    assert sender.process.returncode == 0
