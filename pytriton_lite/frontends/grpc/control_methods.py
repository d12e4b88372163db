"""Unary methods of inference.GRPCInferenceService and grpc.health.v1.Health, all but ModelInfer: what controls and shows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import parse_version
from pytriton_lite.frontends.grpc import log_settings, trace_settings
from pytriton_lite.frontends.grpc.options import LARGEST_MESSAGE_BYTES
from pytriton_lite.frontends.grpc.parsing import check_width
from pytriton_lite.frontends.grpc.shared_memory import SharedMemoryMethods
from pytriton_lite.frontends.pauses import Pauses
from pytriton_lite.proto import grpc_service_pb as pb
from pytriton_lite.proto import health_pb
from pytriton_lite.proto.message import Message

if TYPE_CHECKING:
    from pytriton_lite.engine.counting.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
    from pytriton_lite.engine.server import Server

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"


SMALL_MESSAGE_BYTES = 64 << 10
"""The largest message of a method that needs no large ones. Protobuf takes up to 2 ms for that, whatever is in it."""
_MAX_LOAD_PARAMETERS = 4096
_PARAMETERS = 0x1A  # of RepositoryModelLoadRequest: field 3, length-delimited
_MAX_LOAD_FIELDS = 16  # of a parameter: key, value, and what an encoder may add


class Answer(Protocol):
    """A message that goes out."""

    def SerializeToString(self) -> bytes: ...  # protobuf's name


class UnaryMethod(Protocol):
    """A unary method as a transport sees it."""

    @property
    def max_message_bytes(self) -> int:
        """Size of the largest request."""

    @property
    def takes_task(self) -> bool:
        """Whether the answer is always to be awaited."""

    def answer(self, data: bytes) -> Answer | Coroutine[Any, Any, Answer]:
        """Serve a serialized request. Raises DecodeError, InferenceError for one that is refused."""


class UnaryMethods(Protocol):
    """The methods of both services by name, except ModelInfer and ModelStreamInfer."""

    def inference_methods(self) -> Mapping[str, UnaryMethod]:
        """Methods of the inference service."""

    def health_methods(self) -> Mapping[str, UnaryMethod]:
        """Methods of the health service."""


class Method(NamedTuple):
    """A unary method: ``serve`` answers at once, or returns what is to be awaited for the answer."""

    request: type[Message]
    serve: Callable[[Any], Message | Coroutine[Any, Any, Message]]
    max_message_bytes: int = SMALL_MESSAGE_BYTES

    @property
    def takes_task(self) -> bool:
        """Whether ``serve`` is a coroutine."""
        return iscoroutinefunction(self.serve)

    def answer(self, data: bytes) -> Message | Coroutine[Any, Any, Message]:
        """Serve a serialized request. Raises DecodeError, InferenceError for one that is too large, what ``serve`` raises."""
        if len(data) > self.max_message_bytes:
            text = f"Received message larger than max ({len(data)} vs. {self.max_message_bytes})"
            raise InferenceError(ErrorCode.RESOURCE_EXHAUSTED, text)
        if len(data) > SMALL_MESSAGE_BYTES:  # files, and a configuration
            check_width(data, entries=_PARAMETERS, fields=_MAX_LOAD_PARAMETERS, nested_fields=_MAX_LOAD_FIELDS)
        return self.serve(self.request.FromString(data))


class MethodSpec(NamedTuple):
    """What is known of a unary method without a server: the name of the Python method that serves it, for instance."""

    request: type[Message]
    attribute: str
    max_message_bytes: int = SMALL_MESSAGE_BYTES
    is_of_shared_memory: bool = False


def _of_shared_memory(request: type[Message], attribute: str) -> MethodSpec:
    return MethodSpec(request, attribute, is_of_shared_memory=True)


INFERENCE_METHODS: Mapping[str, MethodSpec] = {
    "ServerLive": MethodSpec(pb.ServerLiveRequest, "server_live"),
    "ServerReady": MethodSpec(pb.ServerReadyRequest, "server_ready"),
    "ModelReady": MethodSpec(pb.ModelReadyRequest, "model_ready"),
    "ServerMetadata": MethodSpec(pb.ServerMetadataRequest, "server_metadata"),
    "ModelMetadata": MethodSpec(pb.ModelMetadataRequest, "model_metadata"),
    "ModelConfig": MethodSpec(pb.ModelConfigRequest, "model_config"),
    "ModelStatistics": MethodSpec(pb.ModelStatisticsRequest, "model_statistics"),
    "RepositoryIndex": MethodSpec(pb.RepositoryIndexRequest, "repository_index"),
    "RepositoryModelLoad": MethodSpec(pb.RepositoryModelLoadRequest, "repository_model_load", LARGEST_MESSAGE_BYTES),
    "RepositoryModelUnload": MethodSpec(pb.RepositoryModelUnloadRequest, "repository_model_unload"),
    "TraceSetting": MethodSpec(pb.TraceSettingRequest, "trace_setting"),
    "LogSettings": MethodSpec(pb.LogSettingsRequest, "log_settings"),
    "SystemSharedMemoryStatus": _of_shared_memory(pb.SystemSharedMemoryStatusRequest, "system_status"),
    "SystemSharedMemoryRegister": _of_shared_memory(pb.SystemSharedMemoryRegisterRequest, "system_register"),
    "SystemSharedMemoryUnregister": _of_shared_memory(pb.SystemSharedMemoryUnregisterRequest, "system_unregister"),
    "CudaSharedMemoryStatus": _of_shared_memory(pb.CudaSharedMemoryStatusRequest, "cuda_status"),
    "CudaSharedMemoryRegister": _of_shared_memory(pb.CudaSharedMemoryRegisterRequest, "cuda_register"),
    "CudaSharedMemoryUnregister": _of_shared_memory(pb.CudaSharedMemoryUnregisterRequest, "cuda_unregister"),
}
HEALTH_METHODS: Mapping[str, MethodSpec] = {"Check": MethodSpec(health_pb.HealthCheckRequest, "health_check")}


class ControlMethods:
    """The methods over the engine's door. Each takes a parsed message and returns the answer; failure is an InferenceError."""

    def __init__(self, server: Server) -> None:
        self._server = server

        self._shared_memory = SharedMemoryMethods(server.regions)

    def inference_methods(self) -> Mapping[str, Method]:
        """See `UnaryMethods`."""
        return self._methods(INFERENCE_METHODS)

    def health_methods(self) -> Mapping[str, Method]:
        """See `UnaryMethods`."""
        return self._methods(HEALTH_METHODS)

    def _methods(self, specs: Mapping[str, MethodSpec]) -> Mapping[str, Method]:
        return {
            name: Method(
                spec.request,
                getattr(self._shared_memory if spec.is_of_shared_memory else self, spec.attribute),
                spec.max_message_bytes,
            )
            for name, spec in specs.items()
        }

    def server_live(self, message: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
        self._refuse_while_exiting("Server exiting")
        return pb.ServerLiveResponse(live=self._server.is_live())

    def server_ready(self, message: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
        self._refuse_while_exiting("Server exiting")
        return pb.ServerReadyResponse(ready=self._server.is_ready())

    def health_check(self, message: health_pb.HealthCheckRequest) -> health_pb.HealthCheckResponse:
        self._refuse_while_exiting("Server exiting")
        response = health_pb.HealthCheckResponse
        return response(status=response.SERVING if self._server.is_ready() else response.NOT_SERVING)

    async def model_ready(self, message: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        self._refuse_while_exiting()
        return pb.ModelReadyResponse(
            ready=await self._server.is_model_ready(message.name, parse_version(message.version))
        )

    def server_metadata(self, message: pb.ServerMetadataRequest) -> pb.ServerMetadataResponse:
        metadata = self._server.metadata()
        return pb.ServerMetadataResponse(name=metadata.name, version=metadata.version, extensions=metadata.extensions)

    def model_metadata(self, message: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        self._refuse_while_exiting()
        metadata = self._server.model_metadata(message.name, parse_version(message.version))
        response = pb.ModelMetadataResponse(
            name=metadata.name, versions=map(str, metadata.versions), platform=metadata.platform
        )
        for tensors, place in ((metadata.inputs, response.inputs), (metadata.outputs, response.outputs)):
            for tensor in tensors:
                place.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        return response

    def model_config(self, message: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        config = self._server.model_config(message.name, parse_version(message.version))
        return pb.ModelConfigResponse(config=config.message)

    async def model_statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        self._refuse_while_exiting()
        version = parse_version(message.version)
        response = pb.ModelStatisticsResponse()
        pauses = Pauses()
        for statistics in self._server.statistics(message.name, version):
            _fill_statistics(response.model_stats.add(), statistics)
            await pauses.rest()
        return response

    async def repository_index(self, message: pb.RepositoryIndexRequest) -> pb.RepositoryIndexResponse:
        _refuse_repository_name(message.repository_name)
        self._refuse_while_exiting()
        response = pb.RepositoryIndexResponse()
        for entry in await self._server.repository_index(ready=message.ready):
            response.models.add(
                name=entry.name,
                version="" if entry.version is None else str(entry.version),
                state="" if entry.state is None else entry.state.value,
                reason=entry.reason,
            )
        return response

    async def repository_model_load(self, message: pb.RepositoryModelLoadRequest) -> pb.RepositoryModelLoadResponse:
        _refuse_repository_name(message.repository_name)
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, parameter in message.parameters.items():
            _check_load_parameter(key, parameter)
            if key == "config":
                config = parameter.string_param
            else:
                files[key.removeprefix("file:")] = parameter.bytes_param
        await self._server.load_model(message.model_name, config, files)
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(
        self, message: pb.RepositoryModelUnloadRequest
    ) -> pb.RepositoryModelUnloadResponse:
        _refuse_repository_name(message.repository_name)
        dependents = message.parameters.get("unload_dependents")
        if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
            raise InferenceError(
                ErrorCode.INVALID_ARG, "invalid value type for 'unload_dependents' parameter, expected bool_param."
            )
        unloads_dependents = dependents is not None and dependents.bool_param
        await self._server.unload_model(message.model_name, unloads_dependents)
        return pb.RepositoryModelUnloadResponse()

    def trace_setting(self, message: pb.TraceSettingRequest) -> pb.TraceSettingResponse:
        tracer = self._server.tracer
        tracer.show(message.model_name)  # an unknown model is told before what is wrong with the settings
        tracer.update(trace_settings.changes(message), message.model_name)
        return trace_settings.answer(tracer.show(message.model_name))

    def log_settings(self, message: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        self._server.update_log_settings(log_settings.changed(self._server.log_settings(), message))
        return log_settings.answer(self._server.log_settings())

    def _refuse_while_exiting(self, text: str = "Server not ready") -> None:
        """Repository spec, section 7: two texts, for the health of the server and for everything about its models."""
        if self._server.is_exiting():
            raise InferenceError(ErrorCode.UNAVAILABLE, text)


def _refuse_repository_name(name: str) -> None:
    if name:
        raise InferenceError(ErrorCode.UNSUPPORTED, "'repository_name' specification is not supported")


def _check_load_parameter(key: str, parameter: pb.ModelRepositoryParameter) -> None:
    if key == "config":
        expected = "string_param"
    elif key.startswith("file:"):
        expected = "bytes_param"
    else:
        raise InferenceError(ErrorCode.INVALID_ARG, f"unrecognized load parameter '{key}'.")
    if parameter.WhichOneof("parameter_choice") != expected:
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"invalid value type for load parameter '{key}', expected {expected}."
        )


def _fill_statistics(place: pb.ModelStatistics, statistics: ModelStatistics) -> None:
    """Every duration is present in the message, zero ones too (gRPC spec, section 2)."""
    place.name = statistics.name
    place.version = str(statistics.version)
    place.last_inference = statistics.last_inference_ms
    place.inference_count = statistics.inference_count
    place.execution_count = statistics.execution_count
    place.inference_stats.CopyFrom(
        pb.InferStatistics(
            success=_duration(statistics.success),
            fail=_duration(statistics.fail),
            queue=_duration(statistics.queue),
            compute_input=_duration(statistics.compute_input),
            compute_infer=_duration(statistics.compute_infer),
            compute_output=_duration(statistics.compute_output),
            cache_hit=_duration(statistics.cache_hit),
            cache_miss=_duration(statistics.cache_miss),
        )
    )
    for batch_size in sorted(statistics.batches):
        place.batch_stats.append(_batch(statistics.batches[batch_size]))
    for index, row in statistics.responses.items():
        place.response_stats[str(index)].CopyFrom(_response(row))


def _batch(row: BatchStatistics) -> pb.InferBatchStatistics:
    return pb.InferBatchStatistics(
        batch_size=row.batch_size,
        compute_input=_duration(row.compute_input),
        compute_infer=_duration(row.compute_infer),
        compute_output=_duration(row.compute_output),
    )


def _response(row: ResponseStatistics) -> pb.InferResponseStatistics:
    return pb.InferResponseStatistics(
        compute_infer=_duration(row.compute_infer),
        compute_output=_duration(row.compute_output),
        success=_duration(row.success),
        fail=_duration(row.fail),
        empty_response=_duration(row.empty_response),
        cancel=_duration(row.cancel),
    )


def _duration(duration: Duration) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=duration.count, ns=duration.ns)
