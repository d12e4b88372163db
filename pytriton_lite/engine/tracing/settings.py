"""The trace settings as they are now, of the server and of single models, and who is sampled (HTTP spec, section 14).

What a model does not set follows the server's, and what nobody has set since the start follows `TraceOptions`. Pure state:
no clock, no I/O.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytriton_lite.config.directory_name import shown
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.tracing.options import OFF, OPENTELEMETRY, TRITON, Levels, TraceLevel, TraceOptions, ordered

FILE_IS_FIXED = "trace file location can not be updated through network protocol"

T = TypeVar("T")

_INT32 = range(-(1 << 31), 1 << 31)
_LEADING_NUMBER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)


@dataclass(frozen=True)
class Overrides:
    """What was set for one model, or for the server since its start; None follows. A count of -1 sets no limit."""

    levels: Levels | None = None
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None


@dataclass(frozen=True)
class Effective:
    """What holds for a model. ``count`` is how many more traces will be taken, None for any number."""

    levels: Levels
    rate: int
    count: int | None
    log_frequency: int


class _Budget:
    """Traces that may still be taken, shared by all that follow the same count."""

    def __init__(self, left: int | None) -> None:
        self.left = left


class _Sampler:
    """The choice of requests of one model with settings of its own, or of all others together."""

    def __init__(self, effective: Effective, budget: _Budget) -> None:
        self.effective = effective
        self.budget = budget
        self._seen = 0

    def takes_next(self) -> bool:
        """Every n-th request, from the n-th on (asked of 2.51), while the count lasts. A rate of 0 takes none."""
        if self.budget.left == 0 or not self.effective.rate:
            return False
        self._seen = (self._seen + 1) % self.effective.rate
        if self._seen:
            return False
        if self.budget.left:
            self.budget.left -= 1
        return True


class TraceSettings:
    """The state. *model* is "" for the server's own settings throughout."""

    def __init__(self, options: TraceOptions) -> None:
        self.options = options
        self._overrides: dict[str, Overrides] = {}
        self._budgets: dict[str, _Budget] = {}
        """The server's, and those of models that set a count of their own."""
        self._samplers: dict[str, _Sampler] = {}
        self._renew_budget("")
        self._rebuild("")

    def effective(self, model: str = "") -> Effective:
        sampler = self._samplers.get(model) or self._samplers[""]
        return dataclasses.replace(sampler.effective, count=sampler.budget.left)

    def levels(self, model: str) -> Levels:
        return (self._samplers.get(model) or self._samplers[""]).effective.levels

    @property
    def is_on_anywhere(self) -> bool:
        """Whether there can be a request that is traced."""
        return self._can_record and any(sampler.effective.levels for sampler in self._samplers.values())

    @property
    def _can_record(self) -> bool:
        return self.options.mode != TRITON or bool(self.options.file)

    def samples(self, model: str, *, is_forced: bool = False) -> bool:
        """Decide on the next request to *model*. *is_forced* belongs to a trace already, whatever rate and count."""
        sampler = self._samplers.get(model) or self._samplers[""]
        if not sampler.effective.levels or not self._can_record:
            return False
        if is_forced:
            return True
        return sampler.takes_next()

    def update(self, changes: Mapping[str, object], model: str = "") -> None:
        """Set the named fields of `Overrides`; None clears one. Raises InferenceError, and nothing is changed then.

        A count begins anew where *changes* name it, and goes on with what is left where they do not, as in Triton.
        """
        if not changes:
            return
        before = dict(self._overrides)
        self._overrides[model] = dataclasses.replace(before.get(model, Overrides()), **changes)  # type: ignore[arg-type]
        reason = self._why_invalid(self._combined(model))
        if reason:
            self._overrides = before
            raise InferenceError(ErrorCode.INVALID_ARG, f"Attempting to set invalid trace setting :{reason}")
        if "count" in changes:
            self._renew_budget(model)
        self._rebuild(model)

    def _why_invalid(self, effective: Effective) -> str:
        if not effective.levels or self.options.mode != TRITON:
            return ""
        if not effective.rate:
            return "sample rate must be non-zero"
        return "" if self.options.file else "trace file name is not given"

    def _combined(self, model: str) -> Effective:
        options, server = self.options, self._overrides.get("", Overrides())
        own = self._overrides.get(model, Overrides()) if model else Overrides()
        count = _first(own.count, server.count, -1 if options.count is None else options.count)
        return Effective(
            levels=_first(own.levels, server.levels, options.levels),
            rate=_first(own.rate, server.rate, options.rate),
            count=None if count < 0 else count,
            log_frequency=_first(own.log_frequency, server.log_frequency, options.log_frequency),
        )

    def _renew_budget(self, model: str) -> None:
        if model and self._overrides[model].count is None:
            self._budgets.pop(model, None)
        else:
            self._budgets[model] = _Budget(self._combined(model).count)

    def _rebuild(self, model: str) -> None:
        """Begin to count requests anew for *model*; for the server's settings everywhere, because all may follow them."""
        if model:
            self._samplers[model] = self._sampler(model)
            if self._overrides[model] == Overrides():
                del self._overrides[model], self._samplers[model]
            return
        self._samplers = {"": self._sampler("")}
        for name in self._overrides:
            if name:
                self._samplers[name] = self._sampler(name)

    def _sampler(self, model: str) -> _Sampler:
        return _Sampler(self._combined(model), self._budgets.get(model) or self._budgets[""])


def _first(*values: T | None) -> T:
    return next(value for value in values if value is not None)


# ---------------------------------------------------------------------------------------------- what clients write


def read_levels(names: Sequence[str]) -> Levels | None:
    """The levels that *names* say; None where they say nothing: unknown names are ignored.

    Raises InferenceError for OFF beside another.
    """
    if OFF in names and len(names) > 1:
        raise InferenceError(ErrorCode.INVALID_ARG, "Expect only one trace level 'OFF' is specified")
    if OFF in names:
        return ()
    known = [level for level in TraceLevel if level.value in names]
    return ordered(known) if known else None


def show_levels(levels: Levels) -> list[str]:
    return [level.value for level in levels] or [OFF]


def read_number(name: str, text: str, *, blank: str) -> int:
    """The value of ``trace_rate``, ``trace_count`` or ``log_frequency``: a leading number, as C's ``stoi`` reads it.

    *blank* is what Triton's front end writes before the number in one of the texts. Raises InferenceError.
    """
    found = _LEADING_NUMBER.match(text)
    if found is None:
        raise InferenceError(ErrorCode.INVALID_ARG, f"Unable to parse '{name}', got: {text}")
    is_count = name == "trace_count"
    number = int(found.group()) if len(found.group()) < 32 else _INT32.stop
    if number not in _INT32 or (number < 0 and not is_count):
        bounds = "[ -1, 2147483647 ]" if is_count else "[ 0, 4294967295 ]"
        text = f"Unable to parse '{name}', value is out of range {bounds}, got: {text}"
        raise InferenceError(ErrorCode.INVALID_ARG, text)
    if number < -1:
        text = f"Unable to parse '{name}'. Expecting value >= -1, got:{blank}{text}"
        raise InferenceError(ErrorCode.INVALID_ARG, text)
    return number


def show(settings: TraceSettings, model: str = "") -> dict[str, list[str]]:
    """All settings as texts, in Triton's order. What is not UTF-8, in the name of a file say, is escaped."""
    return {name: [shown(text) for text in texts] for name, texts in _rows(settings, model).items()}


def _rows(settings: TraceSettings, model: str) -> dict[str, list[str]]:
    effective, options = settings.effective(model), settings.options
    rows = {
        "trace_level": show_levels(effective.levels),
        "trace_rate": [str(effective.rate)],
        "trace_count": ["-1" if effective.count is None else str(effective.count)],
    }
    if options.mode == TRITON:
        rows["log_frequency"] = [str(effective.log_frequency)]
        rows["trace_file"] = [options.file]
        rows["trace_mode"] = [options.mode]
        return rows
    rows["trace_mode"] = [options.mode]
    if options.mode != OPENTELEMETRY:
        for key, value in options.own:
            rows.setdefault(key, []).append(value)
        return rows
    otel = options.opentelemetry
    rows["url"] = [otel.url]
    if otel.resource:
        rows["resource"] = [",".join(f"{key}={value}" for key, value in otel.resource)]
    for name in ("bsp_max_export_batch_size", "bsp_schedule_delay", "bsp_max_queue_size"):
        rows[name] = [str(getattr(otel, name))]
    return rows
