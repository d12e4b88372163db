"""Inference by gRPC over the engine's door, whatever transport carries it; the other methods are in `control_methods`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, PendingRequest, ResponseReceiver, parse_version
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import decode_request, encode_response
from pytriton_lite.frontends.grpc.control_methods import UnaryMethods
from pytriton_lite.frontends.grpc.forwarding import Forwarded, forward
from pytriton_lite.frontends.grpc.infer_stream import InferStream, Outlet, StreamOrigin
from pytriton_lite.frontends.grpc.parsing import Parsed
from pytriton_lite.frontends.grpc.service_streams import service_streams
from pytriton_lite.frontends.grpc.templates import RequestTemplates, ResponseTemplates
from pytriton_lite.frontends.pending_answer import PendingAnswer

if TYPE_CHECKING:
    from pytriton_lite.core.timeline import Timeline
    from pytriton_lite.frontends.door import Door, Servable


class Servicer:
    """A method takes a parsed message and returns the answer; it knows nothing of the transport.

    Failure is a raised InferenceError, to be mapped with `errors.failure_of`. Inference is what waits: a transport with
    callbacks gives a receiver to `start_infer`, one with tasks awaits `model_infer`, and whoever does cancels it when the
    client cancels or its deadline passes, and with it the request in the engine.
    """

    def __init__(self, server: Door, methods: UnaryMethods) -> None:
        """*methods* are all the others."""
        self.methods = methods
        self.streams = service_streams(methods.health_methods())
        """What opens streams beside inference, by service and method."""
        self._server = server
        self.observation = server.observation
        self.counts = server.request_counts.grpc
        self.receive_budget = server.receive_budget
        self.intake = server.intake
        self.request_templates = RequestTemplates(server.regions)
        self.response_templates = ResponseTemplates()

    def start_infer(
        self,
        parsed: Parsed,
        receiver: ResponseReceiver,
        *,
        timeline: Timeline | None = None,
        forwarded: Forwarded = (),
        data: bytes | None = None,
    ) -> PendingRequest:
        """Begin one request, whose only response *receiver* gets: `encode_response` makes the answer of it.

        *data* is the message itself, where it is small: one like it is known again (`request_templates`).
        """
        message, raw, typed, texts = parsed
        version = parse_version(message.model_version)
        served = self._find(message.model_name, version)
        request = decode_request(message, version, self._server.regions, raw, typed, texts)
        if data is not None:
            self.request_templates.keep(data, message, request)
        return self._begin(served, request, receiver, timeline, forwarded)

    def start_known(
        self, request: InferenceRequest, receiver: ResponseReceiver, timeline: Timeline | None, forwarded: Forwarded
    ) -> PendingRequest:
        """`start_infer` for a request that was known again."""
        served = self._find(request.model_name, request.version)
        return self._begin(served, request, receiver, timeline, forwarded)

    def _find(self, name: str, version: int | None) -> Servable:
        served = self._server.find(name, version)
        if served.config.decoupled:
            raise InferenceError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        return served

    def _begin(
        self,
        served: Servable,
        request: InferenceRequest,
        receiver: ResponseReceiver,
        timeline: Timeline | None,
        forwarded: Forwarded,
    ) -> PendingRequest:
        if forwarded:
            forward(request, forwarded)
        if timeline is not None:
            request.timeline = timeline
        return self._server.infer(served, request, receiver)

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
        return InferStream(
            self._server,
            outlet,
            calls,
            ends_on_error=ends_on_error,
            forwarded=forwarded,
            origin=origin,
            templates=self.response_templates,
        )

    async def model_infer(self, parsed: Parsed, timeline: Timeline | None = None, forwarded: Forwarded = ()) -> bytes:
        """Serve one request; returns the serialized ModelInferResponse."""
        begin = partial(self.start_infer, parsed, timeline=timeline, forwarded=forwarded)
        return encode_response(await PendingAnswer.of(begin))
