"""Bound models whose template is stopped: another takes its place, and workers that execute serve on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack

import pytest

from pytriton_lite.binding.specification import Specification
from pytriton_lite.binding.template import Template
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ForkServerStuck
from tests.engine.fork_server_kit import Ends, stop
from tests.engine.version_kit import WAIT_S
from tests.harness import is_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bound models are forked on Linux alone")


@pytest.mark.parametrize("is_unbound", [False, True])
def test_workers_of_a_template_that_is_stopped_serve_on_until_they_end(is_unbound: bool) -> None:
    async def scenario() -> None:
        template = Template(Specification((print,), "tried", (), ()))
        environment = Environment(sys.executable, dict(os.environ))
        with ExitStack() as stack:
            stack.callback(template.close)
            ends = Ends(stack)
            server = await template.prepared(environment)
            pid, exited = await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            stop(server)
            with pytest.raises(ForkServerStuck):
                await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            other = await template.prepared(environment)
            assert (await asyncio.wait_for(other.spawn(ends.descriptors()), WAIT_S))[0] != pid
            if is_unbound:
                template.close_when_idle()
            assert is_running(pid) and other.is_alive
            other_pid, other_exited = next(iter(other._exits.items()))
            other.kill(other_pid)
            await asyncio.wait_for(other_exited, WAIT_S)
            assert other.is_alive  # there is a worker of the one before
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait_for(exited, WAIT_S)
            assert not server.is_alive
            assert other.is_alive is not is_unbound

    asyncio.run(scenario())
