"""Parameters of config.pbtxt that mean something to the server: what each is called, and what it may say.

A parameter is declared here, and added to `ALL`. The checks of a load, `pytriton-lite check` and its hints for slips know it
then, and a property of `ModelConfig` reads it. Triton gives a meaning to EXECUTION_ENV_PATH, FORCE_CPU_ONLY_INPUT_TENSORS
and TRITON_BATCH_STRATEGY_PATH; the others are ours (docs/model-configuration.md).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.proto import model_config_pb

Value = TypeVar("Value")

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?", re.ASCII)

_MOST_DIGITS = 18
"""Digits of a number, at most. Python refuses to convert thousands of them."""


class Parameter(ABC, Generic[Value]):
    """One parameter; ``expected`` says what its value has to be, for an error. Immutable."""

    def __init__(self, name: str, expected: str) -> None:
        self.name = name
        self.expected = expected

    @abstractmethod
    def value_of(self, text: str) -> Value | None:
        """What *text* means; None for what is no value of this parameter."""

    def read(self, parameters: Mapping[str, str]) -> Value | None:
        """The value in *parameters*; None where it is not given.

        None, too, for what the checks of a load refuse: a version that will never serve is made all the same.
        """
        text = parameters.get(self.name)
        return None if text is None else self.value_of(text)

    def text(self, message: model_config_pb.ModelConfig) -> str | None:
        """What *message* says; None for nothing."""
        # Reading an absent key of a protobuf map would create it.
        return message.parameters[self.name].string_value if self.name in message.parameters else None

    def given(self, message: model_config_pb.ModelConfig) -> Value | None:
        """The value in *message*, as `read` has it."""
        text = self.text(message)
        return None if text is None else self.value_of(text)

    @property
    def place(self) -> str:
        """Where it stands, for a finding."""
        return f'parameters["{self.name}"]'


class Text(Parameter[str]):
    """Any text; whoever uses it says what is wrong with it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "a text")

    def value_of(self, text: str) -> str:
        return text


class YesNo(Parameter[bool]):
    """``yes`` or ``no``."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "'yes' or 'no'")

    def value_of(self, text: str) -> bool | None:
        return {"yes": True, "no": False}.get(text)


class Number(Parameter[int]):
    """A whole number from *lowest* on."""

    def __init__(self, name: str, expected: str, *, lowest: int = 0) -> None:
        super().__init__(name, expected)
        self._lowest = lowest

    def value_of(self, text: str) -> int | None:
        if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
            return None
        number = int(text)
        return number if number >= self._lowest else None


class Sharing(Parameter[InstanceSharing]):
    """A way for instances to share their model."""

    def value_of(self, text: str) -> InstanceSharing | None:
        return {each.value: each for each in InstanceSharing if each.value}.get(text)


class Seconds(Parameter[float]):
    """A number of seconds, perhaps with a fraction."""

    def value_of(self, text: str) -> float | None:
        return float(text) if _SECONDS.fullmatch(text) else None


_NO_LIMIT = "a number, 0 for no limit"

EXECUTION_ENV_PATH = Text("EXECUTION_ENV_PATH")
REQUIREMENTS = Text("REQUIREMENTS")
TRITON_BATCH_STRATEGY_PATH = Text("TRITON_BATCH_STRATEGY_PATH")
FORCE_CPU_ONLY_INPUT_TENSORS = YesNo("FORCE_CPU_ONLY_INPUT_TENSORS")
EXECUTE_CONCURRENCY = Number("EXECUTE_CONCURRENCY", "a number from 1 on", lowest=1)
EXECUTION_TIMEOUT_SECONDS = Seconds("EXECUTION_TIMEOUT_SECONDS", "seconds, 0 for no limit")
CANCEL_COROUTINES = YesNo("CANCEL_COROUTINES")
SHARED_MEMORY_VIEWS = YesNo("SHARED_MEMORY_VIEWS")
KEEP_FREED_MEMORY = YesNo("KEEP_FREED_MEMORY")
INSTANCE_SHARING = Sharing("INSTANCE_SHARING", "'fork' or 'threads'")
BATCH_ANY_SHAPES = YesNo("BATCH_ANY_SHAPES")
BATCH_TENSORS = YesNo("BATCH_TENSORS")
MAX_UNANSWERED_REQUESTS = Number("MAX_UNANSWERED_REQUESTS", _NO_LIMIT)
MAX_UNANSWERED_BYTES = Number("MAX_UNANSWERED_BYTES", _NO_LIMIT)
MAX_QUEUE_SIZE = Number("MAX_QUEUE_SIZE", _NO_LIMIT)
OPENAI = Text("OPENAI")
OPENAI_TENSORS = Text("OPENAI_TENSORS")
OPENAI_DEFAULTS = Text("OPENAI_DEFAULTS")

ALL: Mapping[str, Parameter[Any]] = {
    parameter.name: parameter
    for parameter in (
        *(EXECUTION_ENV_PATH, REQUIREMENTS, TRITON_BATCH_STRATEGY_PATH, FORCE_CPU_ONLY_INPUT_TENSORS),
        *(EXECUTE_CONCURRENCY, EXECUTION_TIMEOUT_SECONDS, CANCEL_COROUTINES, SHARED_MEMORY_VIEWS, KEEP_FREED_MEMORY),
        INSTANCE_SHARING,
        *(BATCH_ANY_SHAPES, BATCH_TENSORS, MAX_UNANSWERED_REQUESTS, MAX_UNANSWERED_BYTES, MAX_QUEUE_SIZE),
        *(OPENAI, OPENAI_TENSORS, OPENAI_DEFAULTS),
    )
}
"""By name, in the order in which a load checks them."""
