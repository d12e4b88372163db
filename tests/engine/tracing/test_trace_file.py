"""Traces as Triton writes them (CLI spec, section 7). Names, members and texts of tensors were asked of Triton 2.51."""

from __future__ import annotations

import contextlib
import json
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing import file as trace_file
from pytriton_lite.engine.tracing.file import FileTrace, FileTraces, TraceFile
from pytriton_lite.engine.tracing.options import Levels, TraceLevel
from pytriton_lite.engine.tracing.tensors import TensorCopy, show_data

TIMESTAMPS = (TraceLevel.TIMESTAMPS,)
TENSORS = (TraceLevel.TENSORS,)


class Traced:
    """Requests whose every station is the last one and 10 ns."""

    def __init__(self, path: Path, *, levels: Levels = TIMESTAMPS, log_frequency: int = 0) -> None:
        self.file = TraceFile(path)
        self._numbers = FileTraces()
        self._levels = levels
        self._log_frequency = log_frequency

    def begin(self, protocol: str = "http", caller: Timeline | None = None, request_id: str = "") -> Timeline:
        timeline = Timeline(protocol, "m", lambda: 120)
        if caller is None:
            timeline.trace = self._numbers.begin(self._levels, self._log_frequency)
        else:
            timeline.trace = self._numbers.begin_call(caller.trace_context)
        timeline.version = 2
        timeline.request_id = request_id
        return timeline

    def end(self, timeline: Timeline) -> None:
        stations = (
            "receiving",
            "received",
            "accepted",
            "enqueued",
            "compute_start",
            "inputs",
            "executed",
            "compute_end",
        )
        for number, station in enumerate((*stations, "first_response", "answered", "sending", "sent"), 1):
            setattr(timeline, f"{station}_ns", number * 10)
        assert isinstance(timeline.trace, FileTrace)
        self._numbers.end(timeline.trace)
        self.file.record(timeline)

    def serve(self, **fields: Any) -> None:
        self.end(self.begin(**fields))


def read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())
    return found


def ids(path: Path) -> list[int]:
    """The numbers of the traces in a file, each once, in order."""
    return list(dict.fromkeys(entry["id"] for entry in read(path)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


@pytest.fixture
def tracing(path: Path) -> Iterator[Callable[..., Traced]]:
    """Makes a `Traced` with that path; what is open in the end is closed."""
    with contextlib.ExitStack() as stack:

        def make(**fields: Any) -> Traced:
            traced = Traced(path, **fields)
            stack.callback(traced.file.finish)
            return traced

        yield make


def stamp(name: str, ns: int, number: int = 1) -> dict[str, Any]:
    return {"id": number, "timestamps": [{"name": name, "ns": ns}]}


def test_a_trace_has_an_object_for_each_station_in_the_order_of_time(
    path: Path, tracing: Callable[..., Traced]
) -> None:
    traced = tracing()
    traced.serve(request_id="r")
    assert read(path) == [
        stamp("HTTP_RECV_START", 10),
        stamp("HTTP_RECV_END", 20),
        {"id": 1, "model_name": "m", "model_version": 2, "request_id": "r"},
        stamp("REQUEST_START", 30),
        stamp("QUEUE_START", 40),
        stamp("COMPUTE_START", 50),
        stamp("COMPUTE_INPUT_END", 60),
        stamp("COMPUTE_OUTPUT_START", 70),
        stamp("COMPUTE_END", 80),
        stamp("INFER_RESPONSE_COMPLETE", 90),
        stamp("REQUEST_END", 100),
        stamp("HTTP_SEND_START", 110),
        stamp("HTTP_SEND_END", 120),
    ]
    assert path.read_bytes().startswith(b'[{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":10}]},{"id":1,')


def test_grpc_has_other_names(path: Path, tracing: Callable[..., Traced]) -> None:
    tracing().serve(protocol="grpc")
    names = [entry["timestamps"][0]["name"] for entry in read(path) if "timestamps" in entry]
    assert [name for name in names if "_" in name and name.startswith("GRPC")] == [
        "GRPC_WAITREAD_START",
        "GRPC_WAITREAD_END",
        "GRPC_SEND_START",
        "GRPC_SEND_END",
    ]


def test_stations_that_were_not_reached_are_left_out(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing()
    refused = traced.begin()
    refused.receiving_ns = 5
    refused.received_ns = 6
    traced.file.record(refused)
    assert read(path) == [stamp("HTTP_RECV_START", 5), stamp("HTTP_RECV_END", 6)]


def test_the_file_is_complete_after_every_trace(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing()
    for number in (1, 2, 3):
        traced.serve()
        assert ids(path) == list(range(1, number + 1))
    traced.file.finish()
    assert ids(path) == [1, 2, 3]


def test_a_log_frequency_cuts_into_files_which_are_complete_after_every_trace(
    path: Path, tracing: Callable[..., Traced]
) -> None:
    traced = tracing(log_frequency=2)
    for _ in range(5):
        traced.serve()
    assert [ids(path.with_name(f"trace.json.{number}")) for number in (0, 1, 2)] == [[1, 2], [3, 4], [5]]
    traced.file.finish()
    assert sorted(entry.name for entry in path.parent.iterdir()) == [f"trace.json.{number}" for number in (0, 1, 2)]


def test_a_file_that_is_moved_away_begins_anew(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing()
    traced.serve()
    path.rename(path.with_name("kept"))
    traced.serve()
    traced.serve()
    assert (ids(path.with_name("kept")), ids(path)) == ([1], [2, 3])


@pytest.mark.parametrize("log_frequency", [0, 7])
def test_a_disk_that_is_full_in_the_middle_of_a_trace_costs_that_trace_alone(
    path: Path, tracing: Callable[..., Traced], log_frequency: int
) -> None:
    traced = tracing(log_frequency=log_frequency)
    if log_frequency:
        path = path.with_name("trace.json.0")
    with full_disk(after=100), pytest.raises(OSError, match="File too large"):
        traced.serve(request_id="x" * 100_000)
    traced.serve()
    with full_disk(after=path.stat().st_size + 20_000), pytest.raises(OSError, match="File too large"):
        traced.serve(request_id="x" * 100_000)
    assert ids(path) == [2]
    traced.serve()
    assert ids(path) == [2, 4]


@contextlib.contextmanager
def full_disk(*, after: int) -> Iterator[None]:
    """No file can have more than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_calls_stand_before_the_request_that_they_were_made_for_and_count_for_nothing(
    path: Path, tracing: Callable[..., Traced]
) -> None:
    traced = tracing(log_frequency=1)
    caller = traced.begin()
    callee = traced.begin("bls", caller, "child")
    grandchild = traced.begin("bls", callee)
    for timeline in (grandchild, callee, caller):
        traced.end(timeline)
    found = read(path.with_name("trace.json.0"))
    assert list(dict.fromkeys(entry["id"] for entry in found)) == [3, 2, 1]
    assert [entry for entry in found if "model_name" in entry] == [
        {"id": 3, "model_name": "m", "model_version": 2, "parent_id": 2},
        {"id": 2, "model_name": "m", "model_version": 2, "request_id": "child", "parent_id": 1},
        {"id": 1, "model_name": "m", "model_version": 2},
    ]
    assert [entry["timestamps"][0]["name"] for entry in found if entry["id"] == 3 and "timestamps" in entry] == [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ]


def test_a_request_that_its_client_gives_up_in_the_queue_ends_with_it(path: Path) -> None:
    numbers, file = FileTraces(), TraceFile(path)
    times = iter((10, 20))
    timeline = Timeline("grpc", "m", lambda: next(times))
    trace = timeline.trace = numbers.begin(TIMESTAMPS, 0)
    timeline.received(0)
    timeline.accepted([], batch_size=1, now_ns=15)
    timeline.finish("gone")
    timeline.answered(enqueued_ns=16)  # when its turn would have come, perhaps while it is being written
    numbers.end(trace)
    file.record(timeline)
    file.finish()
    assert [
        (entry["timestamps"][0]["name"], entry["timestamps"][0]["ns"]) for entry in read(path)[:1] + read(path)[2:]
    ] == [
        ("GRPC_WAITREAD_END", 10),
        ("REQUEST_START", 15),
        ("REQUEST_END", 20),
    ]


def test_a_request_does_not_end_before_it_starts(path: Path) -> None:
    """A front end in a process of its own saw the client go, and the engine had not heard of it when it took the request."""
    numbers, file = FileTraces(), TraceFile(path)
    timeline = Timeline("http", "m", lambda: 20)
    trace = timeline.trace = numbers.begin(TIMESTAMPS, 0)
    timeline.accepted([], batch_size=1, now_ns=15)
    timeline.finish("gone")
    timeline.sent_ns = 10
    numbers.end(trace)
    file.record(timeline)
    names = [entry["timestamps"][0]["name"] for entry in read(path) if "timestamps" in entry]
    assert names == ["REQUEST_START", "REQUEST_END"]


def test_a_call_that_outlives_its_request_is_recorded_all_the_same(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing()
    caller = traced.begin()
    callee = traced.begin("bls", caller)
    traced.end(caller)
    traced.end(callee)
    assert ids(path) == [1, 2]


def test_calls_whose_callers_never_come_do_not_pile_up(
    path: Path, tracing: Callable[..., Traced], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller is dropped when traces come too fast."""
    monkeypatch.setattr(trace_file, "_MOST_CALLERS", 2)
    traced = tracing()
    callers = [traced.begin() for _ in range(4)]
    for caller in callers:
        traced.end(traced.begin("bls", caller))
    assert ids(path) == [5, 6]
    traced.end(callers[3])
    assert ids(path) == [5, 6, 8, 4]


def test_tensors_of_calls_whose_callers_never_come_do_not_pile_up(
    path: Path, tracing: Callable[..., Traced], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load callers with large tensors are dropped, and the calls that they have made are not."""
    monkeypatch.setattr(trace_file, "_MOST_CALL_BYTES", 16)
    traced = tracing(levels=TENSORS)

    def call(caller: Timeline) -> Timeline:
        made = traced.begin("bls", caller)
        assert isinstance(made.trace, FileTrace)
        made.trace.on_accepted([Tensor("X", dtypes.FP32, (2,), bytes(8))])
        return made

    callers = [traced.begin() for _ in range(3)]
    inner = call(callers[0])
    for timeline in (call(inner), inner, call(callers[1])):  # 8 bytes, 16 that wait for the first caller, and 8
        traced.end(timeline)
    assert ids(path) == [5, 4]
    traced.end(call(callers[2]))
    traced.end(callers[2])
    traced.end(callers[1])
    assert ids(path) == [5, 4, 7, 6]
    traced.end(call(traced.begin()))
    traced.end(call(traced.begin()))
    assert ids(path) == [5, 4, 7, 6]


def test_a_call_for_a_request_that_has_ended_is_not_traced() -> None:
    numbers = FileTraces()
    ended = numbers.begin(TIMESTAMPS, 0)
    numbers.end(ended)
    assert numbers.begin_call(ended.context) is None
    for nonsense in ("", "nonsense", "9" * 5000):
        assert numbers.begin_call(nonsense) is None


def test_tensors_alone_have_no_timestamps(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing(levels=TENSORS)
    timeline = traced.begin()
    trace = timeline.trace
    assert isinstance(trace, FileTrace)
    values = np.array([[1, 2.5]], np.float32)
    tensor = Tensor("X", dtypes.FP32, (1, 2), values.tobytes())
    trace.on_accepted([tensor, Tensor("E", dtypes.FP32, (0,), b"")])
    trace.on_response([tensor])
    assert trace.nbytes == 16
    traced.end(timeline)
    shown = {"name": "X", "data": "1,2.5", "shape": "1,2", "dtype": "FP32"}
    assert read(path) == [
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": shown},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": shown},
    ]


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        (dtypes.FP32, np.full(100_000, 0.25, np.float32).tobytes(), ",".join(["0.25"] * 100_000)),
        (dtypes.BF16, b"\xc0\x3f" * 100_000, ",".join(["1.5"] * 100_000)),
        (dtypes.BYTES, bytes_tensor.encode([b"a\xff\n"] * 30_000), ",".join(['"a\ufffd\n"'] * 30_000)),
        (dtypes.BYTES, bytes_tensor.encode(["\xe9".encode() * 100_000, b"b"]), '"' + "\xe9" * 100_000 + '","b"'),
    ],
    ids=["FP32", "BF16", "many texts", "a long text"],
)
def test_a_large_tensor_is_written_piece_by_piece(
    path: Path, tracing: Callable[..., Traced], datatype: DataType, data: bytes, text: str
) -> None:
    traced = tracing(levels=TENSORS)
    timeline = traced.begin()
    assert timeline.trace is not None
    timeline.trace.on_accepted([Tensor("X", datatype, (1,), data)])
    tracemalloc.start()
    traced.end(timeline)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read(path)[0]["tensor"]["data"] == text
    assert most < 6 * len(data)


def test_tensors_stand_between_the_stations(path: Path, tracing: Callable[..., Traced]) -> None:
    traced = tracing(levels=(*TIMESTAMPS, *TENSORS))
    timeline = traced.begin()
    trace = timeline.trace
    assert trace is not None
    tensor = Tensor("X", dtypes.INT32, (1,), b"\1\0\0\0")
    trace.on_accepted([tensor])
    trace.on_response([tensor])
    traced.end(timeline)
    what = [entry.get("activity") or entry.get("timestamps", [{"name": "model"}])[0]["name"] for entry in read(path)]
    assert what[what.index("TENSOR_QUEUE_INPUT") - 1] == "QUEUE_START"
    assert what[what.index("TENSOR_BACKEND_OUTPUT") - 1] == "INFER_RESPONSE_COMPLETE"


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        (dtypes.FP32, np.array([1.5, 1e20, 1 / 3, np.nan], np.float32).tobytes(), "1.5,1e+20,0.333333,nan"),
        (dtypes.FP64, np.array([123456789.123, 1e300]).tobytes(), "1.23457e+08,1e+300"),
        (dtypes.FP16, np.array([0.5], np.float16).tobytes(), "0.5"),
        (dtypes.BF16, b"\xc0\x3f", "1.5"),
        (dtypes.BOOL, b"\1\0", "1,0"),
        (dtypes.INT8, b"\1\xfe\x41", "1,-2,65"),
        (dtypes.UINT64, b"\xff" * 8, "18446744073709551615"),
        (dtypes.BYTES, bytes_tensor.encode([b"ab", b'c"d', b"\xff"]), '"ab","c"d","\N{REPLACEMENT CHARACTER}"'),
    ],
    ids=str,
)
def test_elements_are_shown_as_cpp_prints_them(datatype: DataType, data: bytes, text: str) -> None:
    assert "".join(show_data(TensorCopy("", "X", datatype, (1,), data))) == text
