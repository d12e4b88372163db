"""Tools for tests of models: a model folder without a server, stand-ins for the models that it calls, and a real server.

The fixtures over these are in pytriton_lite/pytest_plugin.py. docs/developing.md shows how to use them.
"""

from pytriton_lite.config.errors import PollError
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.testing.exchange import Outcome, Request, Response
from pytriton_lite.testing.host import LogLine
from pytriton_lite.testing.model import ModelUnderTest
from pytriton_lite.testing.server import RunningServer
from pytriton_lite.testing.stand_ins import LoadCall, NoStandIn, StandIns
from pytriton_lite.worker.execute import ExecuteFailed

__all__ = [
    "ErrorCode",
    "ExecuteFailed",
    "InferenceError",
    "LoadCall",
    "LogLine",
    "ModelUnderTest",
    "NoStandIn",
    "Outcome",
    "PollError",
    "Request",
    "Response",
    "RunningServer",
    "StandIns",
]
