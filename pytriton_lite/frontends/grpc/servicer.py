"""The methods of inference.GRPCInferenceService and grpc.health.v1.Health over the engine's door."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import ResponseReceiver, parse_version
from pytriton_lite.frontends.grpc import log_settings, trace_settings
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import decode_request, encode_response
from pytriton_lite.frontends.grpc.forwarding import Forwarded, forward
from pytriton_lite.frontends.grpc.infer_stream import InferStream, Outlet, StreamOrigin
from pytriton_lite.frontends.grpc.options import LARGEST_MESSAGE_BYTES
from pytriton_lite.frontends.grpc.parsing import Parsed, check_width
from pytriton_lite.frontends.grpc.shared_memory import SharedMemoryMethods
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.proto import grpc_service_pb as pb
from pytriton_lite.proto import health_pb
from pytriton_lite.proto.message import Message

if TYPE_CHECKING:
    from pytriton_lite.core.timeline import Timeline
    from pytriton_lite.engine.counting.statistics import BatchStatistics, Duration, ModelStatistics, ResponseStatistics
    from pytriton_lite.engine.server import Server
    from pytriton_lite.scheduling.ticket import Ticket

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"


SMALL_MESSAGE_BYTES = 64 << 10
"""The largest message of a method that needs no large ones. Protobuf takes up to 2 ms for that, whatever is in it."""
_MAX_LOAD_PARAMETERS = 4096
_PARAMETERS = 0x1A  # of RepositoryModelLoadRequest: field 3, length-delimited
_MAX_LOAD_FIELDS = 16  # of a parameter: key, value, and what an encoder may add


class Method(NamedTuple):
    """A unary method: ``serve`` answers at once, or returns what is to be awaited for the answer."""

    request: type[Message]
    serve: Callable[[Any], Message | Coroutine[Any, Any, Message]]
    max_message_bytes: int = SMALL_MESSAGE_BYTES

    def answer(self, data: bytes) -> Message | Coroutine[Any, Any, Message]:
        """Serve a serialized request. Raises DecodeError, InferenceError for one that is too large, what ``serve`` raises."""
        if len(data) > self.max_message_bytes:
            text = f"Received message larger than max ({len(data)} vs. {self.max_message_bytes})"
            raise InferenceError(ErrorCode.RESOURCE_EXHAUSTED, text)
        if len(data) > SMALL_MESSAGE_BYTES:  # files, and a configuration
            check_width(data, entries=_PARAMETERS, fields=_MAX_LOAD_PARAMETERS, nested_fields=_MAX_LOAD_FIELDS)
        return self.serve(self.request.FromString(data))


class Servicer:
    """A method takes a parsed message and returns the answer; it knows nothing of the transport.

    Failure is a raised InferenceError, to be mapped with `errors.failure_of`. Inference is what waits: a transport with
    callbacks gives a receiver to `start_infer`, one with tasks awaits `model_infer`, and whoever does cancels it when the
    client cancels or its deadline passes, and with it the request in the engine.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.observation = server.observation
        self.counts = server.request_counts.grpc
        self.receive_budget = server.receive_budget

    def inference_methods(self) -> Mapping[str, Method]:
        """The methods of the inference service by name, except ModelInfer and ModelStreamInfer."""
        shared_memory = SharedMemoryMethods(self._server.regions)
        return {
            "ServerLive": Method(pb.ServerLiveRequest, self.server_live),
            "ServerReady": Method(pb.ServerReadyRequest, self.server_ready),
            "ModelReady": Method(pb.ModelReadyRequest, self.model_ready),
            "ServerMetadata": Method(pb.ServerMetadataRequest, self.server_metadata),
            "ModelMetadata": Method(pb.ModelMetadataRequest, self.model_metadata),
            "ModelConfig": Method(pb.ModelConfigRequest, self.model_config),
            "ModelStatistics": Method(pb.ModelStatisticsRequest, self.model_statistics),
            "RepositoryIndex": Method(pb.RepositoryIndexRequest, self.repository_index),
            "RepositoryModelLoad": Method(
                pb.RepositoryModelLoadRequest, self.repository_model_load, LARGEST_MESSAGE_BYTES
            ),
            "RepositoryModelUnload": Method(pb.RepositoryModelUnloadRequest, self.repository_model_unload),
            "SystemSharedMemoryStatus": Method(pb.SystemSharedMemoryStatusRequest, shared_memory.system_status),
            "SystemSharedMemoryRegister": Method(pb.SystemSharedMemoryRegisterRequest, shared_memory.system_register),
            "SystemSharedMemoryUnregister": Method(
                pb.SystemSharedMemoryUnregisterRequest, shared_memory.system_unregister
            ),
            "CudaSharedMemoryStatus": Method(pb.CudaSharedMemoryStatusRequest, shared_memory.cuda_status),
            "CudaSharedMemoryRegister": Method(pb.CudaSharedMemoryRegisterRequest, shared_memory.cuda_register),
            "CudaSharedMemoryUnregister": Method(pb.CudaSharedMemoryUnregisterRequest, shared_memory.cuda_unregister),
            "TraceSetting": Method(pb.TraceSettingRequest, self.trace_setting),
            "LogSettings": Method(pb.LogSettingsRequest, self.log_settings),
        }

    def health_methods(self) -> Mapping[str, Method]:
        return {"Check": Method(health_pb.HealthCheckRequest, self.health_check)}

    def start_infer(
        self,
        parsed: Parsed,
        receiver: ResponseReceiver,
        *,
        timeline: Timeline | None = None,
        forwarded: Forwarded = (),
    ) -> Ticket:
        """Begin one request, whose only response *receiver* gets: `encode_response` makes the answer of it."""
        server = self._server
        message, raw, typed = parsed
        version = parse_version(message.model_version)
        served = server.find(message.model_name, version)
        if served.config.decoupled:
            raise InferenceError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request = decode_request(message, version, server.regions, raw, typed)
        if forwarded:
            forward(request, forwarded)
        if timeline is not None:
            request.timeline = timeline
        return server.infer(served, request, receiver)

    def open_stream(
        self,
        outlet: Outlet,
        calls: CallsInFlight,
        *,
        ends_on_error: bool,
        forwarded: Forwarded = (),
        origin: StreamOrigin | None = None,
    ) -> InferStream:
        """Begin a ModelStreamInfer that answers through *outlet*. *origin* is told to those who watch requests."""
        return InferStream(self._server, outlet, calls, ends_on_error=ends_on_error, forwarded=forwarded, origin=origin)

    async def model_infer(self, parsed: Parsed, timeline: Timeline | None = None, forwarded: Forwarded = ()) -> bytes:
        """Serve one request; returns the serialized ModelInferResponse."""
        begin = partial(self.start_infer, parsed, timeline=timeline, forwarded=forwarded)
        return encode_response(await PendingAnswer.of(begin))

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

    def model_statistics(self, message: pb.ModelStatisticsRequest) -> pb.ModelStatisticsResponse:
        self._refuse_while_exiting()
        version = parse_version(message.version)
        response = pb.ModelStatisticsResponse()
        for statistics in self._server.statistics(message.name, version):
            _fill_statistics(response.model_stats.add(), statistics)
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
