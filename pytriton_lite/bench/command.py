"""``pytriton-lite bench``: load a v2 server, and say how many requests it answers and how fast."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from pytriton_lite.bench import calls, input_data, plot, report, tune
from pytriton_lite.bench.calls import Plan
from pytriton_lite.bench.fleet import Fleet
from pytriton_lite.bench.measuring import Figures, Result, latency_of, measure
from pytriton_lite.bench.settings import Distribution, Level, Pace, Sequences, Steadiness, Traffic, parse_range
from pytriton_lite.client import command_line
from pytriton_lite.client.clients import Client, find_model, open_client
from pytriton_lite.client.command_line import Progress
from pytriton_lite.client.errors import ClientError, Refused, unwritable
from pytriton_lite.client.messages import ModelMetadata, Parameter
from pytriton_lite.client.target import Protocol, Target
from pytriton_lite.commands import Arguments, Command, Words, own_option
from pytriton_lite.settings import INT64_MAX, SWITCH, Kind, parse_integer

NOT_STEADY = 2
"""Exit status where a level was measured, and its windows did not agree."""

_FIRST_LOOKS = 8
"""Requests whose answers are looked at whole before the load begins."""


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = high + 1
        if not low <= value <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, got '{text}'")
        return value

    return parse


_MILLISECONDS = Kind("<ms>", _number(0, 1e8))
_INTERVAL = Kind("<ms>", _number(10, 1e8))
_LIMIT = Kind("<ms>", command_line.positive)
_RANGE = Kind("<start>:<end>:<step>", str)

_BATCH = own_option("batch-size", command_line.COUNT, "Rows of data in each request.", default=1)
_CONCURRENCY = own_option(
    "concurrency-range",
    _RANGE,
    "Requests under way at a time, for each level: 4, 1:8:1, 1:32:x2 or 1,4,16. The next begins when an answer has come.",
    shown_default="1",
)
_RATE = own_option(
    "request-rate-range",
    _RANGE,
    "Requests that begin each second, for each level, whatever has been answered; latencies count from when they were due.",
)
_DISTRIBUTION = own_option(
    "request-distribution",
    command_line.choice("constant", "poisson"),
    "Times between the beginnings of requests at a rate.",
    default="constant",
)
_DATA = own_option(
    "input-data",
    Kind("<source>", str),
    "random, zero, a folder with a file for each input, or a JSON file in perf_analyzer's format.",
    default="random",
)
_SHAPE = own_option(
    "shape",
    Kind("<name>:<n>,<n>", str),
    "Shape of an input whose shape the model leaves open, without the batch.",
    repeatable=True,
)
_STRING_LENGTH = own_option("string-length", command_line.COUNT, "Letters of random strings.", default=128)
_STRING_DATA = own_option(
    "string-data", Kind("<string>", command_line.utf8), "The string to send for all BYTES inputs, not random ones."
)
_PARAMETER = own_option(
    "request-parameter",
    Kind("<name>:<value>:<type>", command_line.utf8),
    "A parameter of every request; the type is string, int, float or bool.",
    repeatable=True,
)
_STREAMING = own_option(
    "streaming", SWITCH, "Send requests in gRPC streams; decoupled models are always asked so.", default=False
)
_SEQUENCES = own_option("num-of-sequences", command_line.COUNT, "Sequences under way at a time, at a rate.", default=4)
_SEQUENCE_LENGTH = own_option(
    "sequence-length",
    command_line.COUNT,
    "Requests of a sequence.",
    default=20,
    shown_default="20, or those of a list in a file",
)
_VARIATION = own_option(
    "sequence-length-variation",
    Kind("<percent>", _number(0, 100)),
    "By how much lengths of sequences differ from that.",
    default=20.0,
)
_ID_RANGE = own_option(
    "sequence-id-range",
    Kind("<start>:<end>", str),
    "Ids of sequences, from the first on and up to before the second.",
    default="1",
)
_INPUT_FORMAT = own_option(
    "input-tensor-format",
    command_line.choice("binary", "json"),
    "How tensors go over HTTP.",
    shown_default="binary, where the server has it",
)
_OUTPUT_FORMAT = own_option(
    "output-tensor-format",
    command_line.choice("binary", "json"),
    "How they come.",
    shown_default="binary, where the server has it",
)
_CONNECTIONS = own_option(
    "max-connections", command_line.COUNT, "Connections that a rate may need at most.", default=512
)
_PROCESSES = own_option(
    "processes",
    command_line.COUNT,
    "Processes that send.",
    shown_default="one, and more while they cannot send enough and there are cores",
)
_INTERVAL_OPTION = own_option("measurement-interval", _INTERVAL, "Length of a window of measurement.", default=5000.0)
_MODE = own_option(
    "measurement-mode",
    command_line.choice("time_windows", "count_windows"),
    "Whether a window ends by time or by the number of its answers.",
    default="time_windows",
)
_COUNT = own_option(
    "measurement-request-count", command_line.COUNT, "Answers in a window of count_windows.", default=50
)
_STABILITY = own_option(
    "stability-percentage",
    Kind("<percent>", _number(0.01, 1000)),
    "A level is steady when the rates and latencies of three windows are within that of their mean.",
    default=10.0,
)
_TRIALS = own_option(
    "max-trials", command_line.COUNT, "Windows after which a level ends without being steady.", default=10
)
_PERCENTILE = own_option(
    "percentile",
    Kind("<percent>", _number(0.01, 100)),
    "The latency that has to be steady and is compared.",
    shown_default="the mean",
)
_WARM_UP = own_option("warmup-interval", _MILLISECONDS, "Load before the first window of each level.", default=1000.0)
_THRESHOLD = own_option("latency-threshold", _LIMIT, "A sweep ends with the level whose latency is above that.")
_BINARY = own_option(
    "binary-search",
    SWITCH,
    "Look for the highest level below --latency-threshold, between the ends of the range.",
    default=False,
)
_CSV = own_option("latency-report-file", command_line.FILE, "Write the levels as perf_analyzer's CSV.")
_JSON = own_option("json", command_line.FILE, "Write everything as JSON; - is stdout, in place of the table.")
_PLOT = own_option("plot", command_line.FILE, "Draw rate and latencies over the levels, an SVG.")
_VERBOSE = own_option("verbose", SWITCH, "Print each window as it ends.", default=False)

_OPTIONS = (
    *command_line.TARGET_OPTIONS, _BATCH, _CONCURRENCY, _RATE, _DISTRIBUTION, _DATA, _SHAPE, _STRING_LENGTH, _STRING_DATA,
    _PARAMETER, _STREAMING, _SEQUENCES, _SEQUENCE_LENGTH, _VARIATION, _ID_RANGE, _INPUT_FORMAT, _OUTPUT_FORMAT, _CONNECTIONS,
    _PROCESSES, _INTERVAL_OPTION, _MODE, _COUNT, _STABILITY, _TRIALS, _PERCENTILE, _WARM_UP, _THRESHOLD, _BINARY, _CSV, _JSON,
    _PLOT, _VERBOSE, *tune.OPTIONS,
)  # fmt: skip


# What was asked for -------------------------------------------------------------------------------------------------


def _levels(arguments: Arguments) -> list[Level]:
    concurrency, rate = arguments.value(_CONCURRENCY), arguments.value(_RATE)
    if concurrency is not None and rate is not None:
        raise ClientError("--concurrency-range and --request-rate-range are two ways to load a server: choose one")
    if rate is not None:
        distribution = Distribution(arguments.value(_DISTRIBUTION))
        return [Level(Pace.RATE, value, distribution) for value in parse_range(rate, _RATE.flag, is_whole=False)]
    if _DISTRIBUTION.field in arguments.values:
        raise ClientError("--request-distribution is for --request-rate-range")
    points = parse_range(concurrency or "1", _CONCURRENCY.flag, is_whole=True)
    return [Level(Pace.CONCURRENCY, value) for value in points]


def _steadiness(arguments: Arguments) -> Steadiness:
    by_count = arguments.value(_MODE) == "count_windows"
    if not by_count and _COUNT.field in arguments.values:
        raise ClientError("--measurement-request-count is for --measurement-mode count_windows")
    return Steadiness(
        window_s=arguments.value(_INTERVAL_OPTION) / 1e3,
        window_requests=arguments.value(_COUNT) if by_count else None,
        within_percent=arguments.value(_STABILITY),
        max_windows=arguments.value(_TRIALS),
        warm_up_s=arguments.value(_WARM_UP) / 1e3,
        percentile=arguments.value(_PERCENTILE),
    )


def _data_options(arguments: Arguments) -> input_data.DataOptions:
    return input_data.DataOptions(
        arguments.value(_DATA),
        command_line.shapes_of(arguments.value(_SHAPE)),
        arguments.value(_STRING_LENGTH),
        arguments.value(_STRING_DATA),
    )


def _int64(text: str) -> int:
    return parse_integer(text, low=-1 << 63, high=INT64_MAX)


def _request_parameters(arguments: Arguments) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for text in arguments.value(_PARAMETER):
        try:
            name, rest = text.split(":", 1)
            value, kind = rest.rsplit(":", 1)
            kinds: Mapping[str, Callable[[str], Parameter]] = {
                "string": str, "int": _int64, "float": float, "bool": {"true": True, "false": False}.__getitem__,
            }  # fmt: skip
            found[name] = kinds[kind](value)
        except (ValueError, KeyError):
            raise ClientError(
                f"--request-parameter {text}: expected NAME:VALUE:TYPE, of string, int of 64 bits, float or bool"
            ) from None
    return found


def _sequences(arguments: Arguments, levels: Sequence[Level]) -> Sequences:
    """How requests of a model with sequences go together at *levels*. Raises ClientError."""
    length = arguments.value(_SEQUENCE_LENGTH)
    if _data_options(arguments).is_file and _SEQUENCE_LENGTH.field not in arguments.values:
        length = None
        if _VARIATION.field in arguments.values:
            raise ClientError("--sequence-length-variation goes with --sequence-length where a file has the sequences")
    count = arguments.value(_SEQUENCES)
    first_id, end_id = _ids(arguments.value(_ID_RANGE))
    at_a_time = round(max(level.value for level in levels)) if levels[0].pace is Pace.CONCURRENCY else count
    if end_id is not None and end_id - first_id < at_a_time:
        raise ClientError(
            f"--sequence-id-range {first_id}:{end_id}: these are {end_id - first_id:,} ids, and {at_a_time:,} sequences "
            "are under way at a time"
        )
    return Sequences(count, length, arguments.value(_VARIATION), first_id, end_id)


def _ids(text: str) -> tuple[int, int | None]:
    first, _, end = text.partition(":")
    try:
        first_id = parse_integer(first, low=1, high=INT64_MAX)
        return first_id, parse_integer(end, low=first_id + 1, high=INT64_MAX) if end else None
    except ValueError:
        raise ClientError(
            f"--sequence-id-range {text}: expected START:END, whole numbers from 1 on, END above START"
        ) from None


# What is sent -------------------------------------------------------------------------------------------------------


class _Model:
    """What a server says of the model that is to be loaded."""

    def __init__(self, client: Client, name: str, version: str) -> None:
        self.metadata: ModelMetadata = find_model(client, name, version)
        self._config: Mapping[str, Any] = client.config(name, version)

    @property
    def batches(self) -> bool:
        """Whether its shapes begin with the batch."""
        if self._config:
            return int(self._config.get("max_batch_size") or 0) > 0
        return bool(self.metadata.inputs) and all(spec.shape[:1] == (-1,) for spec in self.metadata.inputs)

    @property
    def optional_inputs(self) -> frozenset[str]:
        """Names of the inputs that a request may lack."""
        return frozenset(str(entry.get("name")) for entry in self._config.get("input") or () if entry.get("optional"))

    @property
    def is_decoupled(self) -> bool:
        return bool((self._config.get("model_transaction_policy") or {}).get("decoupled"))

    @property
    def has_sequences(self) -> bool:
        return bool(self._config.get("sequence_batching") is not None)


def _traffic(arguments: Arguments, client: Client, target: Target, model: _Model, levels: Sequence[Level]) -> Traffic:
    name = model.metadata.name
    is_streaming = arguments.value(_STREAMING) or model.is_decoupled
    if is_streaming and target.protocol is Protocol.HTTP:
        why = f"model '{name}' gives any number of responses" if model.is_decoupled else "--streaming"
        raise ClientError(f"{why}: that goes over gRPC, -i grpc")
    if arguments.value(_BATCH) > 1 and not model.batches:
        raise ClientError(f"-b {arguments.value(_BATCH)}: model '{name}' takes no batches (max_batch_size is 0)")
    formats = [arguments.value(_INPUT_FORMAT), arguments.value(_OUTPUT_FORMAT)]
    if target.protocol is Protocol.HTTP and None in formats:
        known = "binary" if "binary_tensor_data" in client.extensions() else "json"
        formats = [form or known for form in formats]
    return Traffic(
        target,
        name,
        arguments.value(command_line.MODEL_VERSION),
        arguments.value(_BATCH),
        is_streaming,
        _sequences(arguments, levels) if model.has_sequences else None,
        formats[0] != "json",
        formats[1] != "json",
        _request_parameters(arguments),
        arguments.value(command_line.TIMEOUT),
        arguments.value(_CONNECTIONS),
    )


def _first_look(client: Client, traffic: Traffic, plan: Plan, streams: input_data.Streams, model: _Model) -> Plan:
    """Ask for some rows one by one and look at the answers whole; the plan with what was learned. Raises ClientError."""
    places = [(rows, at) for rows in streams for at in range(len(rows))]
    has_expected = any(row.expected for rows in streams for row in rows)
    looks = places if has_expected and traffic.sequences is None else places[:_FIRST_LOOKS]
    if traffic.sequences is not None:
        looks = looks[:1]
    gives_ids = True
    for number, (rows, at) in enumerate(looks):
        row = input_data.batched(rows, at, traffic.batch, batches=model.batches)  # of one list, as the plan has them
        flags: list[tuple[str, Parameter]] = []
        if traffic.sequences is not None:
            first_id = traffic.sequences.first_id
            flags = [("sequence_id", first_id), ("sequence_start", True), ("sequence_end", True)]
        request = calls.make_request(traffic, row, f"bench-look-{number}", flags)
        try:
            responses = list(client.stream(request)) if traffic.is_streaming else [client.infer(request)]
        except Refused as error:
            raise ClientError(f"model '{traffic.model}' refuses a request: {error}") from None
        for response in responses:
            calls.check_response(response, [spec.name for spec in model.metadata.outputs])
            gives_ids = gives_ids and response.id == request.id
        first = responses[0] if responses else None
        if row.expected and (wrong := calls.difference(first, row.expected)):
            raise ClientError(f"row {number} of the data: {wrong}")
    return dataclasses.replace(plan, checks_ids=gives_ids)


# Measuring ----------------------------------------------------------------------------------------------------------


class _Sweep:
    """Levels one after another, and what is shown meanwhile."""

    def __init__(self, arguments: Arguments, client: Client, traffic: Traffic, steadiness: Steadiness) -> None:
        self._arguments = arguments
        self._client = client
        self._traffic = traffic
        self._steadiness = steadiness
        self._progress = Progress()
        self._threshold_ms: float | None = arguments.value(_THRESHOLD)
        self.results: list[Result] = []
        self._text = ""
        self._share = 0.0

    def run(self, fleet: Fleet, levels: Sequence[Level]) -> None:
        """Measure *levels*, or what a threshold leaves of them."""
        try:
            if self._arguments.value(_BINARY):
                self._search(fleet, levels)
                return
            for level in levels:
                result = self._measure(fleet, level)
                if not result.figures.answered or not self._is_within(result):
                    return
        finally:
            self._progress.clear()

    def _search(self, fleet: Fleet, levels: Sequence[Level]) -> None:
        """The highest of *levels* that is within the threshold, with as few of them measured as possible."""
        levels = sorted(levels, key=lambda level: level.value)
        low, high = -1, len(levels)
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_within(self._measure(fleet, levels[middle])):
                low = middle
            else:
                high = middle
        self.results.sort(key=lambda result: result.level.value)

    def _is_within(self, result: Result) -> bool:
        if self._threshold_ms is None:
            return True
        return result.figures.answered > 0 and (
            latency_of(result.figures, self._steadiness.percentile) <= self._threshold_ms * 1e3
        )

    def _measure(self, fleet: Fleet, level: Level) -> Result:
        name = "concurrency" if level.pace is Pace.CONCURRENCY else "rate"
        self._text, self._share = f"{name} {level.name}: warm-up", 0.0

        def on_window(figures: Figures, number: int) -> None:
            latency = report.milliseconds((figures.percentiles_us or {}).get(99.0))
            self._text = f"{name} {level.name}: window {number}, {figures.requests_per_s:,.0f}/s, p99 {latency} ms"
            self._share = min(number / self._steadiness.windows_needed, 1.0)
            if self._arguments.value(_VERBOSE):
                self._progress.clear()
                print(self._text, file=sys.stderr)

        result = measure(
            fleet,
            self._client,
            level,
            self._traffic,
            self._steadiness,
            processes=self._arguments.value(_PROCESSES),
            on_window=on_window,
            on_tick=lambda: self._progress.show(self._text, self._share),
        )
        self.results.append(result)
        return result


def run(arguments: Arguments) -> int:
    """Load the server and print the result; the exit status. Raises ClientError."""
    if arguments.words:
        raise ClientError(f"unexpected '{arguments.words[0]}'; the model is -m NAME, the server -u HOST:PORT")
    name = arguments.value(command_line.MODEL_NAME)
    if name is None:
        raise ClientError("which model? As in: pytriton-lite bench -m add_sub")
    if arguments.value(_BINARY) and arguments.value(_THRESHOLD) is None:
        raise ClientError("--binary-search needs --latency-threshold")
    levels = _levels(arguments)
    steadiness = _steadiness(arguments)
    if arguments.value(tune.TUNE):
        return _tune(arguments, name, levels, steadiness)
    tune.refuse_others(arguments)
    target = command_line.target_of(arguments)
    for path in _files(arguments):
        _check_writable(path)
    with open_client(target, timeout_s=arguments.value(command_line.TIMEOUT)) as client:
        traffic, plan, different = _prepare(arguments, client, target, name, levels)
        sweep = _Sweep(arguments, client, traffic, steadiness)
        stopped: KeyboardInterrupt | ClientError | None = None
        try:
            with Fleet(plan) as fleet:
                sweep.run(fleet, levels)
        except (KeyboardInterrupt, ClientError) as error:
            if not sweep.results:
                raise
            stopped = error
    _write(arguments, sweep.results, traffic, steadiness, different)
    if isinstance(stopped, ClientError):
        raise stopped
    return 130 if stopped is not None else _status(sweep.results)


def _prepare(
    arguments: Arguments, client: Client, target: Target, name: str, levels: Sequence[Level]
) -> tuple[Traffic, Plan, int]:
    """The target with what it is sent, the plan, and how many different requests that has. Raises ClientError."""
    model = _Model(client, name, arguments.value(command_line.MODEL_VERSION))
    traffic = _traffic(arguments, client, target, model, levels)
    options = dataclasses.replace(_data_options(arguments), optional=model.optional_inputs)
    streams = input_data.make_streams(model.metadata, batches=model.batches, options=options)
    plan = calls.make_plan(traffic, streams, batches=model.batches)
    different = len(plan.prepared) or sum(map(len, plan.streams))
    return traffic, _first_look(client, traffic, plan, streams, model), different


def _status(results: Sequence[Result]) -> int:
    if any(result.failed or not result.figures.answered for result in results):
        return 1
    return 0 if all(result.is_steady for result in results) else NOT_STEADY


def _files(arguments: Arguments) -> list[str]:
    paths = [path for option in (_CSV, _JSON, _PLOT) if (path := arguments.value(option)) is not None]
    for path in paths:
        if paths.count(path) > 1:
            raise ClientError(f"{path} is named for two of -f, --json and --plot: one would replace the other")
    return [path for path in paths if path != "-"]


def _check_writable(path: str) -> None:
    """So that an hour of measurement is not lost for a folder that does not exist. No file is left behind."""
    was_there = os.path.exists(path)
    try:
        with open(path, "a"):
            pass
        if not was_there:
            os.remove(os.path.realpath(path))
    except OSError as error:
        raise unwritable(path, error) from None


def _save(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None


def _write(
    arguments: Arguments, results: Sequence[Result], traffic: Traffic, steadiness: Steadiness, different: int
) -> None:
    title = f"{traffic.model} at {traffic.target.url}"
    if arguments.value(_JSON) != "-":
        kinds = ", in streams" if traffic.is_streaming else ", in sequences" if traffic.sequences is not None else ""
        batch = f", batches of {traffic.batch}" if traffic.batch > 1 else ""
        print(f"{title}, {different:,} different request{'s' if different != 1 else ''}{batch}{kinds}")
        print(report.result_table(results, traffic, steadiness))
    _write_json(
        arguments, report.document(results, traffic, steadiness, data=arguments.value(_DATA), different=different)
    )
    if arguments.value(_CSV) is not None:
        _save(arguments.value(_CSV), report.csv_text(results))
    if arguments.value(_PLOT) is not None:
        _save(arguments.value(_PLOT), plot.draw(results, title))


def _write_json(arguments: Arguments, document: Mapping[str, Any]) -> None:
    path = arguments.value(_JSON)
    if path is None:
        return
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    if path == "-":
        print(text)
    else:
        _save(path, text + "\n")


def _tune(arguments: Arguments, name: str, levels: Sequence[Level], steadiness: Steadiness) -> int:
    def measured(client: Client, target: Target) -> Result:
        traffic, plan, _ = _prepare(arguments, client, target, name, levels)
        sweep = _Sweep(arguments, client, traffic, steadiness)
        with Fleet(plan) as fleet:
            sweep.run(fleet, levels[:1])
        return sweep.results[0]

    for option in (
        command_line.URL, command_line.HEADER, command_line.CACERT, command_line.CERT, command_line.KEY, command_line.INSECURE,
        _CSV, _PLOT, _BINARY,
    ):  # fmt: skip
        if option.field in arguments.values:
            raise ClientError(f"--{option.flag} does not go with --tune, which starts a server of its own")
    if len(levels) > 1:
        raise ClientError("--tune measures at one level: say --concurrency-range 16, for instance")
    for path in _files(arguments):
        _check_writable(path)
    threshold_ms = arguments.value(_THRESHOLD)
    # What is ignored, under nohup for instance, stays so.
    before = {number: handler for number in _ENDING if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, _exit)
    try:
        outcome = tune.run(arguments, name, measured, threshold_ms=threshold_ms, percentile=steadiness.percentile)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arguments.value(_JSON) != "-":
        tune.show(outcome, threshold_ms=threshold_ms)
    _write_json(arguments, tune.document(outcome))
    return 0 if outcome.best is not None else 1


_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end --tune. After one of them the other may follow at once."""


def _exit(number: int, frame: object) -> None:
    """End as the handler of a signal, with all that is to be closed: the server of --tune, and its copy of a repository."""
    for ending in _ENDING:
        signal.signal(ending, signal.SIG_IGN)
    raise SystemExit(128 + number)


COMMAND = Command(
    usage=("bench -m MODEL [options]",),
    introduction="""\
Loads a running server, of this one, Triton or any that speaks the v2 protocol, and says how many requests it answers and how
fast. Options that perf_analyzer has mean the same.

  pytriton-lite bench -m add_sub                               one request at a time
  pytriton-lite bench -m add_sub --concurrency-range 1:64:x2   a sweep
  pytriton-lite bench -m add_sub --request-rate-range 500      500 requests a second
  pytriton-lite bench -m add_sub -u HOST:8001 -i grpc          another server, over gRPC
  pytriton-lite bench -m add_sub --tune --model-repository model_repository
                                                               the best number of instances, delay and threads

The exit status is 0, 1 where answers were wrong or nothing could be measured, 2 where a level was not steady.""",
    options={option.flag: option for option in _OPTIONS},
    letters={
        **command_line.TARGET_LETTERS,
        "b": _BATCH.flag,
        "p": _INTERVAL_OPTION.flag,
        "s": _STABILITY.flag,
        "r": _TRIALS.flag,
        "l": _THRESHOLD.flag,
        "f": _CSV.flag,
        "v": _VERBOSE.flag,
    },
    common=tuple(
        option.flag
        for option in (
            command_line.MODEL_NAME,
            command_line.URL,
            command_line.PROTOCOL,
            _CONCURRENCY,
            _RATE,
            _BATCH,
            _DATA,
            _SHAPE,
            _STREAMING,
            _INTERVAL_OPTION,
            _PERCENTILE,
            _THRESHOLD,
            _JSON,
            _PLOT,
            tune.TUNE,
            tune.REPOSITORY,
        )
    ),
    run=command_line.reporting(run),
    words=Words.NONE,
)
