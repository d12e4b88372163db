"""A `Server` in memory: its models add, subtract, echo or fail at once, and everything it was asked is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor, element_count, format_shape
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.counting.request_counts import RequestCounts
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.views import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.scheduling.ticket import Ticket
from tests.frontends.answered import answered_by

Execute = Callable[[InferenceRequest], list[Tensor]]


@dataclass(frozen=True)
class FakeSpec:
    name: str
    datatype: DataType
    dims: tuple[int, ...]


@dataclass(frozen=True)
class FakeConfig:
    name: str
    inputs: list[FakeSpec]
    outputs: list[FakeSpec]
    max_batch_size: int = 0
    decoupled: bool = False
    sequence_batching: None = None

    @property
    def json(self) -> dict[str, Any]:
        return {"name": self.name, "max_batch_size": self.max_batch_size, "backend": "python"}


@dataclass(frozen=True)
class FakeServed:
    name: str
    version: int
    config: FakeConfig
    execute: Execute = field(compare=False)


def add_sub(request: InferenceRequest) -> list[Tensor]:
    left, right = (np.frombuffer(tensor.data, "<f4") for tensor in request.inputs)
    shape = request.inputs[0].shape
    return [
        Tensor("OUTPUT0", dtypes.FP32, shape, (left + right).tobytes()),
        Tensor("OUTPUT1", dtypes.FP32, shape, (left - right).tobytes()),
    ]


def echo(request: InferenceRequest) -> list[Tensor]:
    return [Tensor(f"OUT{tensor.name}", tensor.datatype, tensor.shape, tensor.data) for tensor in request.inputs]


def specs(*named: tuple[str, DataType, tuple[int, ...]]) -> list[FakeSpec]:
    return [FakeSpec(*one) for one in named]


def default_models() -> list[FakeServed]:
    two = specs(("INPUT0", dtypes.FP32, (4,)), ("INPUT1", dtypes.FP32, (4,)))
    out = specs(("OUTPUT0", dtypes.FP32, (4,)), ("OUTPUT1", dtypes.FP32, (4,)))
    models = [
        FakeServed("add_sub", 1, FakeConfig("add_sub", two, out), add_sub),
        FakeServed("stream", 1, FakeConfig("stream", two, out, decoupled=True), add_sub),
    ]
    for version in (1, 3):
        config = FakeConfig("multi", specs(("X", dtypes.FP32, (-1,))), specs(("OUTX", dtypes.FP32, (-1,))))
        models.append(FakeServed("multi", version, config, echo))
    batching = FakeConfig("ident_b", specs(("X", dtypes.FP32, (-1,))), specs(("OUTX", dtypes.FP32, (-1,))), 4)
    models.append(FakeServed("ident_b", 1, batching, echo))
    text = FakeConfig("ident_text", specs(("X", dtypes.BYTES, (1,))), specs(("OUTX", dtypes.BYTES, (1,))), 8)
    models.append(FakeServed("ident_text", 1, text, echo))
    for datatype in dtypes.ALL:
        name = f"ident_{datatype}"
        config = FakeConfig(name, specs(("X", datatype, (-1,))), specs(("OUTX", datatype, (-1,))))
        models.append(FakeServed(name, 1, config, echo))
    wide = FakeConfig("wide", specs(("X", dtypes.FP32, (-1, 2, -1))), specs(("OUTX", dtypes.FP32, (-1, 2, -1))))
    models.append(FakeServed("wide", 1, wide, echo))
    return models


class FakeServer:
    def __init__(self, models: list[FakeServed] | None = None) -> None:
        self.models = {(model.name, model.version): model for model in (models or default_models())}
        self.requests: list[InferenceRequest] = []
        self.request_counts = RequestCounts()
        self.receive_budget = ReceiveBudget(1 << 30)
        self.intake = Intake(prefix="http_fake_server_")
        self.asked = asyncio.Event()
        self.regions = Regions(is_allowed=True)
        self.observation = Observation()
        self.ready = True
        self.exiting = False
        self.explicit = False
        """Whether models are loaded and unloaded on request."""
        self.changes: list[tuple[object, ...]] = []
        """The loads and unloads that were asked for."""
        self.failure: BaseException | None = None
        self.response_parameters: dict[str, Any] = {}
        self.gate: asyncio.Event | None = None
        """While set and not open, requests wait here."""

    def metadata(self) -> ServerMetadata:
        if self.failure is not None:
            raise self.failure
        return ServerMetadata("triton", "0.1.0", ("binary_tensor_data", "statistics"))

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return self.ready

    def is_exiting(self) -> bool:
        return self.exiting

    async def is_model_ready(self, name: str, version: int | None) -> bool:
        try:
            self.find(name, version)
        except InferenceError:
            return False
        return True

    def served_names(self) -> list[str]:
        return sorted({name for name, _ in self.models})

    def model_metadata(self, name: str, version: int | None) -> ModelMetadata:
        config = self.find(name, version).config
        batch = (-1,) if config.max_batch_size else ()

        def describe(some: list[FakeSpec]) -> tuple[TensorMetadata, ...]:
            return tuple(TensorMetadata(spec.name, spec.datatype, (*batch, *spec.dims)) for spec in some)

        versions = tuple(sorted(number for known, number in self.models if known == name))
        return ModelMetadata(name, versions, "python", describe(config.inputs), describe(config.outputs))

    def model_config(self, name: str, version: int | None) -> FakeConfig:
        return self.find(name, version).config

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        if name and not any(known == name for known, _ in self.models):
            raise InferenceError(ErrorCode.INVALID_ARG, f"requested model '{name}' is not available")
        if name and version is not None and (name, version) not in self.models:
            text = f"requested model version is not available for model '{name}'"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        rows = [
            ModelStatistics(known, number, {}) for known, number in sorted(self.models) if not name or known == name
        ]
        rows[0].add_success(batch_size=1, total_ns=9, queue_ns=1, input_ns=2, infer_ns=3, output_ns=2)
        rows[0].add_execution(batch_size=1, input_ns=2, infer_ns=3, output_ns=2, now_ms=1795224537508)
        return rows

    async def repository_index(self, *, ready: bool = False) -> list[IndexEntry]:
        rows = [
            IndexEntry("a"),
            IndexEntry("b", 1, VersionState.READY),
            IndexEntry("c", 1, VersionState.UNAVAILABLE, "it fell over"),
        ]
        return [row for row in rows if row.state is VersionState.READY] if ready else rows

    async def load_model(self, name: str, config_override: str | None, files: dict[str, bytes]) -> None:
        self._change("load", name, config_override, files)

    async def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._change("unload", name, unload_dependents)

    def _change(self, *what: object) -> None:
        if self.exiting:
            raise InferenceError(ErrorCode.UNAVAILABLE, "Server not ready")
        if not self.explicit:
            text = "explicit model load / unload is not allowed if polling is enabled"
            raise InferenceError(ErrorCode.UNAVAILABLE, text)
        self.changes.append(what)

    def find(self, name: str, version: int | None) -> FakeServed:
        versions = [number for known, number in self.models if known == name]
        if not versions:
            raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        if version is not None and version not in versions:
            text = f"Request for unknown model: '{name}' version {version} is not found"
            raise InferenceError(ErrorCode.NOT_FOUND, text)
        return self.models[name, max(versions) if version is None else version]

    def check(self, served: FakeServed, request: InferenceRequest) -> None:
        """Names, shapes and sizes alone; the texts of the core are the engine's and tested there."""
        known = {spec.name: spec for spec in served.config.inputs}
        names = [tensor.name for tensor in request.inputs]
        if sorted(names) != sorted(known):
            text = f"{request.error_prefix}expected inputs {sorted(known)} but got {names}"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        for tensor in request.inputs:
            dims = known[tensor.name].dims
            shape = tensor.shape[1:] if served.config.max_batch_size else tensor.shape
            if len(shape) != len(dims) or any(dim not in (-1, size) for dim, size in zip(dims, shape)):
                text = (
                    f"{request.error_prefix}unexpected shape for input '{tensor.name}' for model '{served.name}'. "
                    f"Expected {format_shape(dims)}, got {format_shape(tensor.shape)}. "
                )
                raise InferenceError(ErrorCode.INVALID_ARG, text)
            expected = element_count(tensor.shape) * tensor.datatype.itemsize
            if tensor.datatype.itemsize and tensor.nbytes != expected:
                text = (
                    f"{request.error_prefix}input byte size mismatch for input '{tensor.name}' for model "
                    f"'{served.name}'. Expected {expected}, got {tensor.nbytes}"
                )
                raise InferenceError(ErrorCode.INVALID_ARG, text)

    def infer(self, served: FakeServed, request: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
        if self.failure is not None and not isinstance(self.failure, InferenceError):
            raise self.failure  # a bug of the engine's
        return answered_by(self.answer_to(served, request), request, receiver)

    def answer_to(self, served: FakeServed, request: InferenceRequest) -> asyncio.Future[InferenceResponse]:
        self.check(served, request)
        self.requests.append(request)
        self.asked.set()
        future: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()
        if self.gate is None:
            self._finish(future, served, request)
        else:
            waiting = asyncio.ensure_future(self.gate.wait())
            waiting.add_done_callback(lambda _: self._finish(future, served, request))
        return future

    def _finish(self, future: asyncio.Future[InferenceResponse], served: FakeServed, request: InferenceRequest) -> None:
        if future.done():
            return
        if self.failure is not None:
            future.set_exception(self.failure)
            return
        outputs = served.execute(request)
        if request.requested_outputs:
            outputs = [output for output in outputs if output.name in request.requested_outputs]
        future.set_result(
            InferenceResponse(served.name, served.version, request.request_id, outputs, self.response_parameters)
        )
