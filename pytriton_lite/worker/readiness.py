"""``is_ready`` of a model, asked when somebody asks for the model's readiness (model API, 3.5)."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from pytriton_lite.ipc import messages
from pytriton_lite.worker.tracebacks import describe

Warn = Callable[[str], None]


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
        if not isinstance(answer, bool):
            self._warn(f"is_ready() must return a boolean value, got {type(answer)}")
            return False
        return answer
