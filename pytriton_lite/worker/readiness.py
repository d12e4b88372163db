"""``is_ready`` of a model, asked when somebody asks for the model's readiness (model API, 3.5)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pytriton_lite.ipc import messages
from pytriton_lite.worker.tracebacks import describe

Warn = Callable[[str], None]

_NAME = "is_ready"


def has_is_ready(model: Any, warn: Warn) -> bool:
    """Whether *model* has a method ``is_ready`` that can be called without arguments.

    Anything else of that name, as an attribute or a property, is the model's own affair: it is not evaluated, and *warn* says
    that the model is not asked. What ``__getattr__`` would make up is not there at all.
    """
    if inspect.getattr_static(model, _NAME, None) is None:
        return False
    if _is_method(model):
        return True
    warn(
        "is_ready of the model is no method that can be called without arguments: the model is not asked whether it is ready"
    )
    return False


def _is_method(model: Any) -> bool:
    method = inspect.getattr_static(type(model), _NAME, None)
    if not callable(method) and not isinstance(method, (classmethod, staticmethod)):
        return False
    try:
        inspect.signature(model.is_ready).bind()
    except ValueError:
        return True  # one that is written in C, and does not say what it takes
    except Exception:
        return False
    return True


class ReadinessProbe:
    """Runs ``is_ready`` beside ``execute``, in a thread of its own for each question; the engine asks one at a time."""

    def __init__(self, model: Any, send: Callable[[bytes], None], warn: Warn) -> None:
        self._model = model
        self._send = send
        self._warn = warn

    def start(self) -> None:
        """Ask the model; the answer is sent when it has one."""
        try:
            threading.Thread(target=self._run, name="is_ready", daemon=True).start()
        except RuntimeError as error:  # there can be no more of them
            self._warn(f"is_ready of the model cannot be asked: {error}")
            self._send(messages.probed_frame(is_ready=False))

    def _run(self) -> None:
        self._send(messages.probed_frame(is_ready=self._ask()))

    def _ask(self) -> bool:
        try:
            answer = self._model.is_ready()
            if inspect.iscoroutine(answer):
                answer = asyncio.run(answer)
        except BaseException as error:
            self._warn(f"is_ready of the model failed: {describe(error)}")
            return False
        if not isinstance(answer, (bool, np.bool_)):
            self._warn(f"is_ready() must return a boolean value, got {type(answer)}")
            return False
        return bool(answer)
