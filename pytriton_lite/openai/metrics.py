"""What is counted of requests to OpenAI's routes, by the names that vLLM's server and the dashboards for it use."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from pytriton_lite.core.custom_metrics import Family, Histogram, Kind, Labels, Number
from pytriton_lite.openai.usage import Usage

Clock = Callable[[], int]

# The bounds of vLLM, in seconds, so that panels of quantiles look alike.
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip

_RUNNING = ("vllm:num_requests_running", "Number of requests of OpenAI's API that are being answered", Kind.GAUGE)
_FIRST = ("vllm:time_to_first_token_seconds", "Time to the first piece of an answer, in seconds", Kind.HISTOGRAM)
_BETWEEN = (
    "vllm:inter_token_latency_seconds",
    "Time from a piece of an answer to the next, in seconds",
    Kind.HISTOGRAM,
)
_PER_TOKEN = (
    "vllm:time_per_output_token_seconds",
    "Time for each token behind the first of an answer, in seconds, where the model counts its tokens",
    Kind.HISTOGRAM,
)
_WHOLE = ("vllm:e2e_request_latency_seconds", "Time of whole requests, in seconds", Kind.HISTOGRAM)
_PROMPT = ("vllm:prompt_tokens_total", "Number of tokens of prompts, as models count them", Kind.COUNTER)
_WRITTEN = ("vllm:generation_tokens_total", "Number of tokens written, as models count them", Kind.COUNTER)
_SUCCESS = ("vllm:request_success_total", "Number of answers that ended, by finish_reason", Kind.COUNTER)

FAMILIES = (_RUNNING, _FIRST, _BETWEEN, _PER_TOKEN, _WHOLE, _PROMPT, _WRITTEN, _SUCCESS)


class OpenAiMetrics:
    """Families with a series for each model that was asked. No clock but the one that is given."""

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self.clock = clock
        self._families = {name: Family(name, text, kind) for name, text, kind in FAMILIES}

    def families(self, taken: Collection[str] = ()) -> Iterator[Family]:
        """What the page shows; without those of *taken*, which models export themselves by these names."""
        return (family for name, family in self._families.items() if name not in taken)

    def number(self, family: str, **labels: str) -> Number:
        """The series of *labels*, a counter or a gauge."""
        series = self._families[family].series.setdefault(_key(labels), Number())
        assert isinstance(series, Number)
        return series

    def observe(self, family: str, bounds: tuple[float, ...], model: str, nanoseconds: float) -> None:
        """Count a time in the histogram of *model*."""
        key = _key({"model_name": model})
        series = self._families[family].series.get(key)
        if series is None:
            series = self._families[family].series[key] = Histogram(bounds)
        assert isinstance(series, Histogram)
        series.observe(nanoseconds / 1e9)

    def forget_others(self, models: Collection[str]) -> None:
        """Drop the series of models that are not among *models* any more, as vLLM's end with its process.

        A model that ends answers what it has begun, and keeps its series until then: what ends is taken off what began.
        """
        running = self._families[_RUNNING[0]].series.items()
        kept = {dict(key)["model_name"] for key, series in running if isinstance(series, Number) and series.value}
        kept.update(models)
        for family in self._families.values():
            for key in [key for key in family.series if dict(key)["model_name"] not in kept]:
                del family.series[key]


def _key(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


class Counted:
    """One request, from its first byte to its end."""

    def __init__(self, metrics: OpenAiMetrics, model: str, began_ns: int) -> None:
        self._metrics = metrics
        self._model = model
        self._began_ns = began_ns
        self._first_ns = 0
        self._last_ns: dict[int, int] = {}
        """When the last piece of each choice came."""
        self._is_running = False
        self._reasons: list[str] = []

    def begun(self) -> None:
        """The engine has it."""
        self._is_running = True
        self._metrics.number(_RUNNING[0], model_name=self._model).value += 1

    def wrote(self, choice: int) -> None:
        """A piece of a choice is there."""
        now_ns = self._metrics.clock()
        before_ns = self._last_ns.get(choice)
        self._last_ns[choice] = now_ns
        if before_ns is not None:
            self._metrics.observe(_BETWEEN[0], _TOKEN_S, self._model, now_ns - before_ns)
        if not self._first_ns:
            self._first_ns = now_ns
            self._metrics.observe(_FIRST[0], _FIRST_TOKEN_S, self._model, now_ns - self._began_ns)

    def finished(self, reason: str) -> None:
        """A choice is whole."""
        self._reasons.append(reason)

    def ended(self, usage: Usage | None, unfinished: int) -> None:
        """All is over; *unfinished* choices are not whole: an error, or a client that has gone. Once counts."""
        if not self._is_running:
            return
        self._is_running = False
        self._metrics.number(_RUNNING[0], model_name=self._model).value -= 1
        for reason in [*self._reasons, *["abort"] * unfinished]:
            self._metrics.number(_SUCCESS[0], model_name=self._model, finished_reason=reason).value += 1
        if usage is not None:
            self._metrics.number(_PROMPT[0], model_name=self._model).value += usage.prompt_tokens
            self._metrics.number(_WRITTEN[0], model_name=self._model).value += usage.completion_tokens
        if unfinished:
            return
        now_ns = self._metrics.clock()
        self._metrics.observe(_WHOLE[0], _REQUEST_S, self._model, now_ns - self._began_ns)
        others = 0 if usage is None else usage.completion_tokens - len(self._last_ns)
        if others > 0 and len(self._last_ns) == 1:
            last_ns = max(self._last_ns.values())
            self._metrics.observe(_PER_TOKEN[0], _TOKEN_S, self._model, (last_ns - self._first_ns) / others)
