"""``bench --tune``: which instance count, number of threads and batch delay suit a model on this machine, and what each costs.

The model runs on a server of its own, on a copy of the repository. Instance counts are tried with each number of threads first,
and the best of them with batches. What is within 3 % of the best rate counts as equal, and the least memory is chosen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from pytriton_lite.bench import report
from pytriton_lite.bench.measuring import Result, latency_of
from pytriton_lite.bench.own_server import OwnServer
from pytriton_lite.client import command_line
from pytriton_lite.client.clients import Client, HttpClient, open_client
from pytriton_lite.client.command_line import table
from pytriton_lite.client.errors import ClientError, Refused, Unreachable
from pytriton_lite.client.target import Protocol, Target, parse_target
from pytriton_lite.commands import Arguments, own_option
from pytriton_lite.core.cores import usable_cores
from pytriton_lite.settings import INT32_MAX, SWITCH, Kind, parse_integer

_EQUAL_SHARE = 0.97
_LOAD_TIMEOUT_S = 1800.0


def _whole_numbers(low: int) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(parse_integer(part, low=low, high=INT32_MAX) for part in text.split(","))


TUNE = own_option(
    "tune",
    SWITCH,
    "Try settings of a model on a server of its own, and say which is best and what it costs.",
    default=False,
)
REPOSITORY = own_option(
    "model-repository", Kind("<directory>", Path), "Where --tune finds the model; it works on a copy."
)
_INSTANCES = own_option(
    "tune-instances",
    Kind("<n>,<n>", _whole_numbers(1)),
    "Instance counts to try.",
    shown_default="1, 2, 4, … up to the cores",
)
_THREADS = own_option(
    "tune-threads",
    Kind("<n>,<n>", _whole_numbers(1)),
    "Values of OMP_NUM_THREADS to try.",
    shown_default="what the model has, and the cores divided by the instances",
)
_DELAYS = own_option(
    "tune-delays",
    Kind("<us>,<us>", _whole_numbers(0)),
    "Values of max_queue_delay_microseconds to try, for a model that takes batches.",
    default=(0, 500, 2000),
    shown_default="0,500,2000",
)
OPTIONS = (TUNE, REPOSITORY, _INSTANCES, _THREADS, _DELAYS)


def refuse_others(arguments: Arguments) -> None:
    """Refuse options of --tune without it. Raises ClientError."""
    for option in OPTIONS[1:]:
        if option.field in arguments.values:
            raise ClientError(f"--{option.flag} is for --tune")


@dataclass(frozen=True)
class Setting:
    """One way to run the model. None leaves what its configuration says."""

    instances: int | None = None
    threads: int | None = None
    delay_us: int | None = None
    """None is without dynamic batching, unless the configuration has it."""

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """*config*, the model's configuration as JSON, with this setting in it."""
        changed = dict(config)
        if self.instances is not None:
            changed["instance_group"] = [{**_first_group(config), "count": self.instances}]
        if self.threads is not None:
            parameters = dict(config.get("parameters") or {})
            parameters["ENV:OMP_NUM_THREADS"] = {"string_value": str(self.threads)}
            changed["parameters"] = parameters
        if self.delay_us is not None:
            batching = dict(config.get("dynamic_batching") or {})
            changed["dynamic_batching"] = {**batching, "max_queue_delay_microseconds": self.delay_us}
        return changed

    def cells(self) -> list[str]:
        """The row of the table."""
        return [
            "as configured" if value is None else f"{value:,}"
            for value in (self.instances, self.threads, self.delay_us)
        ]

    def pbtxt(self, config: Mapping[str, Any]) -> str:
        """What is to be written into config.pbtxt of the model whose configuration is *config*."""
        lines = []
        if self.instances is not None:
            group = _first_group(config)
            gpus = f" gpus: {list(group['gpus'])}" if group.get("gpus") else ""
            lines.append(f"instance_group [{{ kind: {group['kind']} count: {self.instances}{gpus} }}]")
        if self.threads is not None:
            lines.append(f'parameters {{ key: "ENV:OMP_NUM_THREADS" value: {{ string_value: "{self.threads}" }} }}')
        if self.delay_us is not None:
            lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {self.delay_us} }}")
        return "\n".join(lines) or "(as it is)"


def _first_group(config: Mapping[str, Any]) -> dict[str, Any]:
    """The instance group whose count is tried; others are left out meanwhile."""
    return {"kind": "KIND_AUTO", **(config.get("instance_group") or [{}])[0]}


@dataclass(frozen=True)
class Trial:
    """What a setting gave, and what it cost."""

    setting: Setting
    result: Result | None
    """None where the model does not serve with it; `error` says why."""
    memory_mib: float | None
    """Memory of the whole server; None where the system does not tell."""
    cores: float
    """Cores that the whole server kept busy meanwhile."""
    load_s: float
    error: str = ""

    @property
    def rate(self) -> float:
        """Inferences a second."""
        return 0.0 if self.result is None else self.result.figures.inferences_per_s

    @property
    def name(self) -> str:
        """The setting in words."""
        return ", ".join(f"{name} {cell}" for name, cell in zip(_HEADS, self.setting.cells()))


@dataclass(frozen=True)
class Outcome:
    """All that was tried of *model*, first as it is, and which of it is best, if any qualifies."""

    model: str
    config: Mapping[str, Any]
    """The model's own."""
    trials: Sequence[Trial]
    best: Trial | None


def best_of(trials: Sequence[Trial], *, threshold_ms: float | None, percentile: float | None) -> Trial | None:
    """The trial to choose: right answers, below the threshold, the best rate, and of equals that with the least memory.

    None where no trial qualifies.
    """
    fit = [
        trial
        for trial in trials
        if trial.result is not None
        and not trial.result.failed
        and trial.result.figures.answered
        and (threshold_ms is None or latency_of(trial.result.figures, percentile) <= threshold_ms * 1e3)
    ]
    if not fit:
        return None
    most = max(trial.rate for trial in fit)
    equals = [trial for trial in fit if trial.rate >= _EQUAL_SHARE * most]
    return min(equals, key=lambda trial: (trial.memory_mib or 0.0, -trial.rate))


def settings_to_try(cores: int, instances: Sequence[int] | None, threads: Sequence[int] | None) -> list[Setting]:
    """Instance counts with numbers of threads, fewest first; the model as it is comes first of all."""
    counts = (
        list(instances) if instances is not None else [count for count in (1, 2, 4, 8, 16, 32, 64) if count <= cores]
    )
    found = [Setting()]
    for count in counts:
        per_instance = threads if threads is not None else sorted({1, max(1, cores // count)})
        choices: list[int | None] = [None, *per_instance] if threads is None else list(per_instance)
        found += [Setting(count, number) for number in choices]
    return list(dict.fromkeys(found))


def run(
    arguments: Arguments,
    model: str,
    measured: Callable[[Client, Target], Result],
    *,
    threshold_ms: float | None,
    percentile: float | None,
) -> Outcome:
    """Try settings, and choose. *measured* puts load on a model that serves. Raises ClientError."""
    repository = arguments.value(REPOSITORY)
    if repository is None:
        raise ClientError(
            "--tune needs --model-repository, which it copies: a server that others use is not for trials"
        )
    if not (repository / model).is_dir():
        raise ClientError(f"--model-repository {repository}: no model '{model}' in it")
    asked = arguments.value(command_line.PROTOCOL) or "http"
    with (
        OwnServer(repository) as server,
        open_client(parse_target(server.http_url, Protocol.HTTP), timeout_s=_LOAD_TIMEOUT_S) as control,
    ):
        assert isinstance(control, HttpClient)
        url = server.http_url if asked == "http" else server.grpc_url
        target = parse_target(url, Protocol(asked))
        trier = _Trier(server, control, target, model, measured, timeout_s=arguments.value(command_line.TIMEOUT))
        trials: list[Trial] = []
        for setting in settings_to_try(usable_cores(), arguments.value(_INSTANCES), arguments.value(_THREADS)):
            trials.append(trier.try_setting(setting))
        best = best_of(trials, threshold_ms=threshold_ms, percentile=percentile)
        if trier.takes_batches:
            base = best.setting if best is not None else Setting()
            for delay in arguments.value(_DELAYS):
                trials.append(trier.try_setting(replace(base, delay_us=delay)))
            best = best_of(trials, threshold_ms=threshold_ms, percentile=percentile)
        return Outcome(model, trier.config, trials, best)


class _Trier:
    """Loads the model with one setting after another and measures it."""

    def __init__(
        self,
        server: OwnServer,
        control: HttpClient,
        target: Target,
        model: str,
        measured: Callable[[Client, Target], Result],
        *,
        timeout_s: float,
    ) -> None:
        self._server = server
        self._control = control
        self._target = target
        self._model = model
        self._measured = measured
        self._timeout_s = timeout_s
        self._load(None)
        self.config = control.config(model)
        self.takes_batches = (
            int(self.config.get("max_batch_size") or 0) > 0
            and not self.config.get("sequence_batching")
            and not self.config.get("ensemble_scheduling")
        )

    def try_setting(self, setting: Setting) -> Trial:
        """Raises ClientError where nothing can be measured of the model as it is, or the server is gone."""
        try:
            trial = self._try(setting)
        except Unreachable:
            raise
        except ClientError as error:
            if setting == Setting():
                raise
            trial = Trial(setting, None, None, 0.0, 0.0, str(error).partition("\n")[0])
        print(f"{trial.name}: {trial.error or f'{trial.rate:,.0f}/s'}", file=sys.stderr)
        return trial

    def _try(self, setting: Setting) -> Trial:
        began = time.monotonic()
        self._load(None if setting == Setting() else setting.config(self.config))
        load_s = time.monotonic() - began
        cpu_s, began = self._server.cpu_s(), time.monotonic()
        with open_client(self._target, timeout_s=self._timeout_s) as client:
            result = self._measured(client, self._target)
        cores = (self._server.cpu_s() - cpu_s) / (time.monotonic() - began)
        return Trial(setting, result, self._server.memory_mib(), cores, load_s)

    def _load(self, config: Mapping[str, Any] | None) -> None:
        try:
            self._control.unload(self._model)  # so that memory and processes are those of this setting alone
        except Refused:
            pass  # it was not loaded
        try:
            self._control.load(self._model, None if config is None else orjson.dumps(config).decode())
        except Refused as error:
            raise ClientError(f"model '{self._model}' does not load: {error}") from None


_HEADS = ("instances", "threads", "delay us")


def show(outcome: Outcome, *, threshold_ms: float | None) -> None:
    """Print the table, and what to write into config.pbtxt."""
    trials, best = outcome.trials, outcome.best
    heads = [*_HEADS, "inferences/s", "p50 ms", "p99 ms", "errors", "cores", "memory MiB", "load s", ""]
    rows = [[*trial.setting.cells(), *_cells(trial), "best" if trial is best else ""] for trial in trials]
    print("\n" + table(heads, rows, right=[True] * (len(heads) - 1)))
    for trial in trials:
        if trial.error:
            print(f"! {trial.name}: {trial.error}")
    results = [trial.result for trial in trials if trial.result is not None]
    unsteady = sum(not result.is_steady for result in results)
    if unsteady:
        print(f"! {unsteady} of {len(trials)} were not steady (-s, -p, -r): small differences mean nothing")
    if any(result.is_sender_limited for result in results):
        print("! the load generator was at its limit for some of them, on the same cores: the server may do more")
    if best is None:
        limit = "" if threshold_ms is None else f" with a latency of at most {threshold_ms:g} ms"
        print(f"no setting answers rightly{limit}")
        return
    first = trials[0]
    gain = "" if best is first or not first.rate else f", {best.rate / first.rate:.2f} times what it does as configured"
    costs = []
    if best.memory_mib is not None and first.memory_mib is not None and best is not first:
        costs.append(f"{best.memory_mib - first.memory_mib:+,.0f} MiB")
    if best is not first:
        costs.append(f"{best.cores - first.cores:+.2f} cores")
    print(
        f"\nbest for {outcome.model}: {best.rate:,.0f} inferences/s{gain}"
        + (f" ({', '.join(costs)})" if costs else "")
        + "\n"
    )
    print(best.setting.pbtxt(outcome.config))


def _cells(trial: Trial) -> list[str]:
    if trial.result is None:
        return ["fails", *["-"] * 6]
    points = trial.result.figures.percentiles_us or {}
    return [
        f"{trial.rate:,.0f}",
        report.milliseconds(points.get(50.0)),
        report.milliseconds(points.get(99.0)),
        f"{trial.result.failed:,}",
        f"{trial.cores:.2f}",
        "-" if trial.memory_mib is None else f"{trial.memory_mib:,.0f}",
        f"{trial.load_s:.1f}",
    ]


def document(outcome: Outcome) -> dict[str, Any]:
    """Everything, for programs."""
    best = outcome.best
    return {
        **report.heading(),
        "model": outcome.model,
        "best": None if best is None else outcome.trials.index(best),
        "config": None if best is None else best.setting.pbtxt(outcome.config),
        "trials": [
            {
                **asdict(trial.setting),
                "error": trial.error,
                "memory_mib": trial.memory_mib,
                "cores": trial.cores,
                "load_s": trial.load_s,
                "level": None if trial.result is None else report.level(trial.result),
            }
            for trial in outcome.trials
        ],
    }
