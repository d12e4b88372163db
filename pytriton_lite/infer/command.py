"""``pytriton-lite infer``: ask a model of a running server, once or with a file of requests."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from pytriton_lite.client import command_line, values
from pytriton_lite.client.clients import Client, find_model, open_client
from pytriton_lite.client.command_line import Progress
from pytriton_lite.client.errors import ClientError, Unreachable
from pytriton_lite.client.messages import InferRequest, InferResponse, ModelMetadata, Parameter, TensorSpec
from pytriton_lite.client.target import DEFAULT_PORTS, Protocol, Target
from pytriton_lite.commands import Arguments, Command, Words, own_option
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.infer import requests, results
from pytriton_lite.settings import Kind

_SHAPE = own_option(
    "shape", Kind("<name>:<n>,<n>", str), "Shape of an input, where it does not follow.", repeatable=True
)
_OUTPUTS = own_option(
    "outputs", Kind("<name>,<name>", command_line.utf8), "The outputs that are wanted.", default="", shown_default="all"
)
_PARAMETER = own_option(
    "parameter",
    Kind("<name>=<value>", command_line.utf8),
    "A parameter of the request: true, 12, 0.5 or a text.",
    repeatable=True,
)
_REQUEST_ID = own_option("request-id", Kind("<id>", command_line.utf8), "Id of the request.", default="")
_FILE = own_option(
    "file", command_line.FILE, "A file of many requests, JSON Lines or .parquet, one in each row; - is stdin."
)
_CONCURRENCY = own_option(
    "concurrency", command_line.COUNT, "Requests of a file that are under way at a time.", default=8
)
_OUTPUT = own_option("output", command_line.FILE, "Write the answer there; the end of the name says the format.")
_FORMAT = own_option(
    "format",
    command_line.choice(*results.FORMATS),
    "How the answer is written.",
    shown_default="table for one request, jsonl for many",
)

# As JSON writes them; 00123 and nan are texts. More digits than 64 bits have are none either.
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FRACTION = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)")


def _model_and_values(arguments: Arguments) -> tuple[str, list[str]]:
    words = list(arguments.words)
    if (name := arguments.value(command_line.MODEL_NAME)) is not None:
        return name, words
    if not words:
        raise ClientError("which model? As in: pytriton-lite infer add_sub")
    if "=" in words[0]:
        raise ClientError(f"the model's name comes first, as in: pytriton-lite infer MODEL {words[0]}")
    try:
        return command_line.utf8(words[0]), words[1:]
    except ValueError as error:
        raise ClientError(f"the model's name: {error}") from None


# One request --------------------------------------------------------------------------------------------------------


def _infer_once(arguments: Arguments, client: Client, metadata: ModelMetadata, words: Sequence[str]) -> int:
    request = InferRequest(
        metadata.name,
        _inputs(arguments, metadata, words),
        arguments.value(command_line.MODEL_VERSION),
        arguments.value(_REQUEST_ID),
        _names(arguments.value(_OUTPUTS)),
        dict(map(_parameter, arguments.value(_PARAMETER))),
    )
    writer = results.open_writer(_format(arguments, "table"), arguments.value(_OUTPUT), is_single=True)
    began = time.perf_counter()
    count = 0
    try:
        for response in _responses(client, request, arguments.value(command_line.MODEL_VERSION)):
            count += 1
            writer.add(0, [response])
            sys.stdout.flush()
    finally:
        writer.close()
    if sys.stderr.isatty():
        took_ms = (time.perf_counter() - began) * 1e3
        print(f"{count} response{'s' if count != 1 else ''} in {took_ms:.1f} ms", file=sys.stderr)
    return 0


def _responses(client: Client, request: InferRequest, version: str) -> Iterator[InferResponse]:
    if client.is_decoupled(request.model, version):
        yield from client.stream(request)
    else:
        yield client.infer(request)


def _inputs(arguments: Arguments, metadata: ModelMetadata, words: Sequence[str]) -> list[Tensor]:
    specs = {spec.name: spec for spec in metadata.inputs}
    shapes = command_line.shapes_of(arguments.value(_SHAPE))
    given: dict[str, Tensor] = {}
    for name in shapes:
        if name not in specs:
            raise ClientError(f"--shape: {requests.unknown_input(metadata, name)}")
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise ClientError(f"'{word}': expected NAME=VALUE, as in {_example(metadata)}")
        if name not in specs:
            raise ClientError(requests.unknown_input(metadata, name))
        if name in given:
            raise ClientError(f"input '{name}' is given twice")
        given[name] = values.read_text(specs[name], text, shapes.get(name))
    return list(given.values())  # whether one is missing is the server's to say: it may be optional


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _parameter(text: str) -> tuple[str, Parameter]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ClientError(f"--parameter {text}: expected NAME=VALUE")
    if value in ("true", "false"):
        return name, value == "true"
    if _FRACTION.fullmatch(value) and math.isfinite(float(value)):
        return name, float(value)
    # A larger whole number has no field in the protocol.
    if _WHOLE_NUMBER.fullmatch(value) and -1 << 63 <= int(value) < 1 << 63:
        return name, int(value)
    return name, value


def _format(arguments: Arguments, default: str) -> str:
    if (form := arguments.value(_FORMAT)) is not None:
        return str(form)
    suffix = (arguments.value(_OUTPUT) or "").rpartition(".")[2].lower()
    return suffix if suffix in results.FORMATS else default


# Many requests ------------------------------------------------------------------------------------------------------


_Answer = SimpleQueue["list[InferResponse] | Exception"]
"""Where the answer to one request comes, or why there is none."""


class _Asking:
    """Asks the server from threads, each of which has a connection of its own.

    They are daemons, and what goes to and fro does so by queues that are C: Ctrl-C interrupts the thread that waits
    anywhere, and where that has just locked a Future, who is to fulfil it waits for ever.
    """

    def __init__(self, arguments: Arguments, target: Target, metadata: ModelMetadata) -> None:
        self._arguments = arguments
        self._target = target
        self._metadata = metadata
        self._asked: SimpleQueue[tuple[requests.Row, _Answer] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        with closing(self._connected()) as client:
            self._is_decoupled = bool(client.is_decoupled(metadata.name, arguments.value(command_line.MODEL_VERSION)))
        if self._is_decoupled and target.protocol is Protocol.HTTP:
            raise ClientError(f"model '{metadata.name}' gives any number of responses: ask it over gRPC, -i grpc")

    def _connected(self) -> Client:
        return open_client(self._target, timeout_s=self._arguments.value(command_line.TIMEOUT))

    def ask(self, row: requests.Row | ClientError) -> _Answer:
        """Have the request of *row* asked."""
        answer: _Answer = SimpleQueue()
        if isinstance(row, ClientError):
            answer.put(row)
            return answer
        if len(self._threads) < self._arguments.value(_CONCURRENCY):
            thread = Thread(target=self._serve, name=f"infer_{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self._asked.put((row, answer))
        return answer

    def _serve(self) -> None:
        client: Client | None = None
        while (asked := self._asked.get()) is not None:
            row, answer = asked
            try:
                client = client or self._connected()
                answer.put(self._responses(client, row))
            except Exception as error:
                answer.put(error)
        self._asked.put(None)  # for the next thread
        if client is not None:
            client.close()

    def _responses(self, client: Client, row: requests.Row) -> list[InferResponse]:
        request = requests.make_request(self._metadata, row, self._arguments.value(command_line.MODEL_VERSION))
        if self._arguments.value(_OUTPUTS):
            request.outputs = _names(self._arguments.value(_OUTPUTS))
        request.parameters = {**dict(map(_parameter, self._arguments.value(_PARAMETER))), **request.parameters}
        return list(client.stream(request)) if self._is_decoupled else [client.infer(request)]

    def close(self) -> None:
        """Ask nothing more, and wait for what is being asked."""
        with suppress(Empty):
            while True:
                self._asked.get_nowait()
        self._asked.put(None)
        for thread in list(self._threads):
            thread.join()


_Coming = SimpleQueue["tuple[requests.Row | ClientError, _Answer] | Exception | None"]
"""Where requests come, each with the place of its answer, behind the last one None, or why there are no more."""


def _read(
    rows: Iterator[requests.Row | ClientError], asking: _Asking, at_a_time: int
) -> tuple[_Coming, SimpleQueue[None]]:
    """Have *rows* read and asked by a thread, so that answers are written while the next row is waited for.

    At most *at_a_time* of them are ahead of who takes them, and puts something into the second queue for each.
    """
    coming: _Coming = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()
    for _ in range(at_a_time):
        room.put(None)

    def read() -> None:
        try:
            for row in rows:
                room.get()
                coming.put((row, asking.ask(row)))
            coming.put(None)
        except Exception as error:
            coming.put(error)

    Thread(target=read, name="infer_rows", daemon=True).start()
    return coming, room


def _refuse_own_output(source: str, output: str) -> None:
    """Refuse to write the answers into the file that the requests come from. Raises ClientError."""
    with suppress(OSError):  # one of them is not there, which whoever opens it tells
        if Path(output).is_file() and os.path.samestat(os.stat(0 if source == "-" else source), os.stat(output)):
            raise ClientError(f"-o {output}: the requests come from that file; write the answers to another one")


def _infer_many(arguments: Arguments, target: Target, metadata: ModelMetadata) -> int:
    if arguments.value(_OUTPUT) is not None:
        _refuse_own_output(arguments.value(_FILE), arguments.value(_OUTPUT))
    asking = _Asking(arguments, target, metadata)
    rows, total = requests.read_rows(arguments.value(_FILE))
    writer = results.open_writer(_format(arguments, "jsonl"), arguments.value(_OUTPUT), is_single=False)
    progress = Progress()
    done = failed = 0
    first_error = ""
    began = time.perf_counter()
    # Twice as many as are under way: results leave in order, and one slow answer is not to stop the others.
    coming, room = _read(rows, asking, 2 * arguments.value(_CONCURRENCY))
    try:
        while (item := coming.get()) is not None:
            if isinstance(item, Exception):
                raise item
            row, place = item
            try:
                answer = place.get()
                if isinstance(answer, Exception):
                    raise answer
                writer.add(done, answer)
            except ClientError as error:
                request_id = "" if isinstance(row, ClientError) else str(row.get("id") or "")
                writer.add_error(done, request_id, str(error))
                failed += 1
                first_error = first_error or f"request {done}: {error}"
                if isinstance(error, Unreachable):
                    raise
            room.put(None)
            done += 1
            rate = done / (time.perf_counter() - began)
            of_all = f" of {total:,}" if total is not None else ""
            errors = f", {failed:,} failed" if failed else ""
            progress.show(f"{done:,}{of_all} answered{errors}, {rate:,.0f}/s", done / total if total else None)
        asking.close()
    except Exception:
        asking.close()
        raise
    finally:
        progress.clear()
        writer.close()
    if arguments.value(_OUTPUT) is not None or sys.stderr.isatty():
        took_s = time.perf_counter() - began
        print(f"{done - failed:,} of {done:,} requests answered in {took_s:.1f} s", file=sys.stderr)
    if failed:
        raise ClientError(f"{failed:,} of {done:,} requests failed, the first: {first_error}")
    return 0


# What a model takes -------------------------------------------------------------------------------------------------


def _describe(metadata: ModelMetadata, target: Target, *, is_decoupled: bool) -> str:
    lines = [
        f"{metadata.name}, version {', '.join(metadata.versions) or '?'} ({metadata.platform or 'no platform told'})"
    ]
    for head, specs in (("takes", metadata.inputs), ("gives", metadata.outputs)):
        lines += [f"  {head if not index else ' ' * len(head)}  {spec}" for index, spec in enumerate(specs)]
    lines += ["", f"  pytriton-lite infer {metadata.name}{_where(target, is_decoupled)} {_example(metadata)}"]
    return "\n".join(lines)


def _where(target: Target, is_decoupled: bool) -> str:
    """The options that lead to *target*; to gRPC at its usual port where the model cannot be asked over HTTP."""
    if is_decoupled and target.protocol is Protocol.HTTP:
        host = target.host if target.port else "localhost"
        target = replace(target, protocol=Protocol.GRPC, host=host, port=DEFAULT_PORTS[Protocol.GRPC], prefix="")
    if target.url == f"{target.protocol.value}://localhost:{DEFAULT_PORTS[target.protocol]}":
        return "" if target.protocol is Protocol.HTTP else " -i grpc"
    return f" -u {target.url} -i {target.protocol.value}"


def _example(metadata: ModelMetadata) -> str:
    return " ".join(f"{spec.name}={_example_value(spec)}" for spec in metadata.inputs)


def _example_value(spec: TensorSpec) -> str:
    count = 1
    for dim in spec.shape:
        count *= max(dim, 1)
    if spec.datatype is dtypes.BYTES:
        return "text" if count == 1 else f"@{spec.name.lower()}.json"
    return ",".join(["1"] * count) if count <= 8 else f"@{spec.name.lower()}.npy"


def run(arguments: Arguments) -> int:
    """Ask the server, print the answer; the exit status. Raises ClientError."""
    model, words = _model_and_values(arguments)
    is_single = arguments.value(_FILE) is None
    for option in (_CONCURRENCY,) if is_single else (_SHAPE, _REQUEST_ID):
        if option.field in arguments.values:
            raise ClientError(f"--{option.flag} is for {'--file' if is_single else 'one request, and --file has many'}")
    version = arguments.value(command_line.MODEL_VERSION)
    target = command_line.target_of(arguments)
    with open_client(target, timeout_s=arguments.value(command_line.TIMEOUT)) as client:
        metadata = find_model(client, model, version)
        if is_single:
            if not words and metadata.inputs:
                print(_describe(metadata, target, is_decoupled=bool(client.is_decoupled(metadata.name, version))))
                return 0
            return _infer_once(arguments, client, metadata, words)
    if words:
        raise ClientError(f"--file brings the inputs, so '{words[0]}' has no place")
    return _infer_many(arguments, target, metadata)


COMMAND = Command(
    usage=("infer MODEL [NAME=VALUE ...] [options]",),
    introduction="""\
Asks a model of a running server: of this one, a Triton, or any that speaks the v2 protocol.

  pytriton-lite infer add_sub                               what it takes and gives
  pytriton-lite infer add_sub INPUT0=1,2,3,4 INPUT1=@b.npy  one request
  pytriton-lite infer classify TEXT="what a film"           a string
  pytriton-lite infer resnet IMAGE=@cat.jpg -o out.npz      an image, the answer as arrays
  pytriton-lite infer add_sub --file requests.jsonl         many requests, an answer on each line

A value is numbers with commas, JSON, a string, or @FILE: .npy, .npz, .json, an image; for BYTES any file. Data types
and shapes are the model's; a dimension for the batch may be left out.""",
    options={
        option.flag: option
        for option in (
            *command_line.TARGET_OPTIONS,
            _SHAPE,
            _OUTPUTS,
            _PARAMETER,
            _REQUEST_ID,
            _FILE,
            _CONCURRENCY,
            _OUTPUT,
            _FORMAT,
        )
    },
    letters={**command_line.TARGET_LETTERS, "o": _OUTPUT.flag},
    run=command_line.reporting(run),
    words=Words.FILES,
)
