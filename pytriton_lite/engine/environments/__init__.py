"""Environments of models: which interpreter runs a model's workers, and under which variables.

`Environments` is the door. What takes long runs in processes of its own, started by path (`guard`, `archive`, `build`):
the event loop goes on serving, and they end with the server.
"""

from pytriton_lite.engine.environments.environment import Environment
from pytriton_lite.engine.environments.environments import Environments, check_environment

__all__ = ["Environment", "Environments", "check_environment"]
