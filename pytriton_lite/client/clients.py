"""Clients that ask a server one thing and wait for the answer: for the terminal, and for what goes before a measurement."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import orjson

from pytriton_lite.client import grpc_codec, grpc_wire, http_codec
from pytriton_lite.client import target as targets
from pytriton_lite.client.errors import ClientError, ForeignAnswer, Refused, Unreachable
from pytriton_lite.client.grpc_wire import CallEnd, GrpcWire
from pytriton_lite.client.http_wire import HttpAnswer, HttpWire, request_head
from pytriton_lite.client.messages import InferRequest, InferResponse, ModelMetadata
from pytriton_lite.client.target import Target
from pytriton_lite.proto import grpc_service_pb as pb
from pytriton_lite.proto.message import DecodeError

_RECEIVE_BYTES = 1 << 18
_Self = TypeVar("_Self", bound="_Connected")


@dataclass(frozen=True)
class Statistics:
    """Sums that a server has counted of a model, over its versions: numbers of requests, nanoseconds."""

    successes: int
    success_ns: int
    failures: int
    inferences: int
    executions: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    cache_hits: int

    def since(self, before: Statistics) -> Statistics | None:
        """What was counted between *before* and this; None where counting began anew in between."""
        counted = [getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__]  # all are numbers
        return Statistics(*counted) if min(counted) >= 0 else None


class Client(Protocol):
    """A connection to a server. Methods raise ClientError: Unreachable, Refused, ForeignAnswer. One call at a time."""

    target: Target

    def extensions(self) -> tuple[str, ...]:
        """What the server says that it has beyond the protocol."""

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Inputs and outputs of a model."""

    def is_decoupled(self, model: str, version: str = "") -> bool | None:
        """Whether it may give any number of responses; None where the server does not tell."""

    def config(self, model: str, version: str = "") -> Mapping[str, Any]:
        """The model's configuration as JSON; empty where the server does not tell."""

    def statistics(self, model: str, version: str = "") -> Statistics | None:
        """What the server has counted; None where it does not tell."""

    def infer(self, request: InferRequest) -> InferResponse:
        """Ask for one response."""

    def stream(self, request: InferRequest) -> Iterator[InferResponse]:
        """The responses of a model that gives any number, as they come."""

    def close(self) -> None:
        """End the connection."""


class _Connected:
    """A socket that is opened when it is needed, and again where the server has closed it."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._context = targets.tls_context(target)
        self._socket: socket.socket | None = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._socket = targets.connect(self.target, self._context, min(self._timeout_s, targets.CONNECT_TIMEOUT_S))
            self._socket.settimeout(self._timeout_s)
        return self._socket

    def _broken(self, error: OSError) -> Unreachable:
        self.close()
        if isinstance(error, TimeoutError):
            return Unreachable(f"{self.target.url} has not answered within {self._timeout_s:g} s (--timeout)")
        return Unreachable(f"the connection to {self.target.url} broke: {error.strerror or error}")


class HttpClient(_Connected):
    """See `Client`."""

    def __init__(self, target: Target, *, timeout_s: float = 60.0, is_binary: bool | None = None) -> None:
        """*is_binary* says whether tensors go by the binary extension; None is what the server offers."""
        super().__init__(target, timeout_s)
        self._is_binary = is_binary
        self._wire = HttpWire()

    def extensions(self) -> tuple[str, ...]:
        document = self._json("GET", "/v2")
        found = document.get("extensions", []) if isinstance(document, dict) else None
        if not isinstance(found, list) or "name" not in document:
            raise ForeignAnswer(f"{self.target.url} does not speak the v2 protocol: /v2 says {str(document)[:80]}")
        return tuple(map(str, found))

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return http_codec.decode_metadata(self._json("GET", http_codec.model_path(model, version)))

    def is_decoupled(self, model: str, version: str = "") -> bool | None:
        config = self.config(model, version)
        return bool((config.get("model_transaction_policy") or {}).get("decoupled")) if config else None

    def config(self, model: str, version: str = "") -> Mapping[str, Any]:
        document = self._optional(http_codec.model_path(model, version, "config"))
        return document if isinstance(document, dict) else {}

    def statistics(self, model: str, version: str = "") -> Statistics | None:
        document = self._optional(http_codec.model_path(model, version, "stats"))
        if not isinstance(document, dict) or "model_stats" not in document:
            return None
        try:
            return _sum_of(document["model_stats"])
        except (KeyError, TypeError, ValueError) as error:
            raise ForeignAnswer(f"the statistics of model '{model}' cannot be read: {error!r}") from None

    def infer(self, request: InferRequest) -> InferResponse:
        if self._is_binary is None:
            self._is_binary = "binary_tensor_data" in self.extensions()
        headers, body = http_codec.encode_request(request, binary_in=self._is_binary, binary_out=self._is_binary)
        path = http_codec.model_path(request.model, request.version, "infer")
        answer = self._exchange("POST", path, headers, body)
        return http_codec.decode_response(answer.headers, answer.body)

    def stream(self, request: InferRequest) -> Iterator[InferResponse]:
        raise ClientError("models that give many responses are asked over gRPC: -i grpc")

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, with *config*, JSON, in the place of its own; returns when it serves."""
        document = {"parameters": {"config": config}} if config is not None else {}
        self._post(f"/v2/repository/models/{quote(model, safe='')}/load", document)

    def unload(self, model: str) -> None:
        """Unload a model; returns when new requests do not find it."""
        self._post(f"/v2/repository/models/{quote(model, safe='')}/unload", {})

    def _post(self, path: str, document: Mapping[str, Any]) -> None:
        self._exchange("POST", path, {"Content-Type": "application/json"}, orjson.dumps(document))

    def _optional(self, path: str) -> Any:
        """What an extension says; None where the server refuses it."""
        try:
            return self._json("GET", path)
        except Refused:
            return None

    def _json(self, method: str, path: str) -> Any:
        answer = self._exchange(method, path, {}, b"")
        try:
            return orjson.loads(answer.body)
        except ValueError:
            raise ForeignAnswer(f"{self.target.url}{path} answers no JSON: {answer.body[:60]!r}") from None

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        target = self.target
        everything = {**headers, **dict(target.headers)}
        data = request_head(target.authority, method, target.prefix + path, everything, len(body)) + body
        is_fresh = self._socket is None
        answer = self._try(data)
        if answer is None and not is_fresh:  # the server had closed a connection that was idle
            answer = self._try(data)
        if answer is None:
            raise _without_answer(target, is_new=is_fresh)
        if answer.status != 200:
            raise Refused(http_codec.error_text(answer.body), str(answer.status))
        return answer

    def _try(self, data: bytes) -> HttpAnswer | None:
        """The answer; None where the server closed the connection before the first byte of one."""
        is_fresh = self._socket is None
        connection = self._open()
        if is_fresh:
            self._wire = HttpWire()
        wire = self._wire
        answers: list[HttpAnswer] = []
        is_silent = True
        try:
            connection.sendall(data)
        except TimeoutError as error:
            raise self._broken(error) from None
        except OSError:
            pass  # it may have answered before it closed
        try:
            while not answers:
                received = connection.recv(_RECEIVE_BYTES)
                if received:
                    is_silent = False
                    answers = wire.receive(received)
                    continue
                answers = wire.receive_end()
                if answers:
                    break
                self.close()
                if is_silent:
                    return None
                raise Unreachable(f"{self.target.url} has closed the connection in the middle of an answer")
        except OSError as error:
            if is_silent and isinstance(error, ConnectionError):
                self.close()
                return None
            raise self._broken(error) from None
        if wire.is_closing:
            self.close()
        return answers[0]


class GrpcClient(_Connected):
    """See `Client`."""

    def __init__(self, target: Target, *, timeout_s: float = 60.0) -> None:
        super().__init__(target, timeout_s)
        self._wire = GrpcWire("")

    def extensions(self) -> tuple[str, ...]:
        answer = self._unary("ServerMetadata", pb.ServerMetadataRequest())
        return tuple(_parsed(pb.ServerMetadataResponse, answer).extensions)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return grpc_codec.decode_metadata(
            self._unary("ModelMetadata", pb.ModelMetadataRequest(name=model, version=version))
        )

    def is_decoupled(self, model: str, version: str = "") -> bool | None:
        message = self._config(model, version)
        return None if message is None else bool(message.config.model_transaction_policy.decoupled)

    def config(self, model: str, version: str = "") -> Mapping[str, Any]:
        message = self._config(model, version)
        return {} if message is None else _as_json(message.config)

    def _config(self, model: str, version: str) -> pb.ModelConfigResponse | None:
        try:
            answer = self._unary("ModelConfig", pb.ModelConfigRequest(name=model, version=version))
        except Refused:
            return None
        parsed: pb.ModelConfigResponse = _parsed(pb.ModelConfigResponse, answer)
        return parsed

    def statistics(self, model: str, version: str = "") -> Statistics | None:
        try:
            answer = self._unary("ModelStatistics", pb.ModelStatisticsRequest(name=model, version=version))
        except Refused:
            return None
        rows = _as_json(_parsed(pb.ModelStatisticsResponse, answer)).get("model_stats", ())
        return _sum_of([{"inference_stats": {}, **row} for row in rows])

    def infer(self, request: InferRequest) -> InferResponse:
        return grpc_codec.decode_response(self._call("ModelInfer", grpc_codec.encode_request(request)))

    def stream(self, request: InferRequest) -> Iterator[InferResponse]:
        request = replace(request, parameters={**request.parameters, grpc_codec.EMPTY_FINAL: True})
        for data in self._messages("ModelStreamInfer", grpc_codec.encode_request(request)):
            response = grpc_codec.decode_stream_response(data)
            if isinstance(response, str):
                raise Refused(response, "UNKNOWN")
            if response.outputs or not response.is_final:
                yield response

    def _unary(self, method: str, message: Any) -> bytes:
        return self._call(method, message.SerializeToString())

    def _is_usable(self, connection: socket.socket) -> bool:
        """Whether the server takes another call: since the last one it may have closed, or said that it will."""
        connection.settimeout(0)
        try:
            while received := connection.recv(_RECEIVE_BYTES):
                self._wire.receive(received)
            return False
        except (BlockingIOError, ssl.SSLWantReadError):
            connection.settimeout(self._timeout_s)
            return not self._wire.is_closing
        except (OSError, ForeignAnswer):
            return False

    def _call(self, method: str, message: bytes) -> bytes:
        answers = list(self._messages(method, message))
        if len(answers) != 1:
            raise ForeignAnswer(f"{self.target.url} has answered {method} with {len(answers)} messages, expected one")
        return answers[0]

    def _messages(self, method: str, message: bytes) -> Iterator[bytes]:
        """The messages of one call. Raises Refused behind them where it ends with another status than OK."""
        if self._socket is not None and not self._is_usable(self._socket):
            self.close()
        is_fresh = self._socket is None
        connection = self._open()
        if is_fresh:
            target = self.target
            self._wire = GrpcWire(target.authority, is_tls=target.uses_tls, metadata=target.headers)
        wire = self._wire
        stream = wire.call(grpc_codec.SERVICE + method, message)
        is_over = False
        try:
            while True:
                if output := wire.take_output():
                    connection.sendall(output)
                received = connection.recv(_RECEIVE_BYTES)
                if not received:
                    self.close()
                    if not wire.is_talking and not _may_lack_certificate(self.target):
                        raise Unreachable(
                            f"{self.target.url} closes connections of gRPC: is it another port's protocol, or TLS, grpcs://…?"
                        )
                    raise _without_answer(self.target)
                for event in wire.receive(received):
                    if event.stream != stream:
                        continue
                    if isinstance(event, CallEnd):
                        is_over = True
                        if event.status:
                            raise _refused(method, event)
                        return
                    yield event.data
        except OSError as error:
            is_over = True
            raise self._broken(error) from None
        except ForeignAnswer:
            self.close()
            raise
        finally:
            if not is_over:
                self.close()


def _may_lack_certificate(target: Target) -> bool:
    return target.uses_tls and target.certificate_file is None


def _without_answer(target: Target, *, is_new: bool = False) -> Unreachable:
    """The end of a connection; *is_new* where nothing has come from the server on it yet."""
    hint = "; does it speak TLS, https://…?" if is_new and not target.uses_tls else ""
    hint = "; does it want the client's certificate, --cert?" if _may_lack_certificate(target) else hint
    return Unreachable(f"{target.url} has closed the connection without an answer{hint}")


def _refused(method: str, end: CallEnd) -> Refused:
    name = grpc_wire.status_name(end.status)
    if end.status == grpc_wire.UNIMPLEMENTED and not end.text:
        return Refused(f"the server has no method {method}", name)
    return Refused(end.text or name, name)


def _parsed(kind: type[Any], data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ForeignAnswer(f"the answer is no {kind.__name__}: {error}") from None


def _as_json(message: Any) -> dict[str, Any]:
    """What *message* has in the names of the protocol's JSON; whole numbers of 64 bits are texts."""
    from google.protobuf.json_format import MessageToDict  # which a request does not need

    document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return document


def _sum_of(rows: Any) -> Statistics:
    def total(name: str, part: str) -> int:
        return sum(int((row["inference_stats"].get(name) or {}).get(part, 0)) for row in rows)

    return Statistics(
        successes=total("success", "count"),
        success_ns=total("success", "ns"),
        failures=total("fail", "count"),
        inferences=sum(int(row.get("inference_count", 0)) for row in rows),
        executions=sum(int(row.get("execution_count", 0)) for row in rows),
        queue_ns=total("queue", "ns"),
        compute_input_ns=total("compute_input", "ns"),
        compute_infer_ns=total("compute_infer", "ns"),
        compute_output_ns=total("compute_output", "ns"),
        cache_hits=total("cache_hit", "count"),
    )


def find_model(client: Client, model: str, version: str = "") -> ModelMetadata:
    """Metadata of *model*. Raises ClientError, which says where no server of the protocol is at all."""
    try:
        return client.metadata(model, version)
    except Refused as refused:
        try:
            client.extensions()
        except Refused as error:
            raise ForeignAnswer(
                f"{client.target.url} does not speak the v2 protocol: it answers {error.code} {error}"
            ) from None
        raise ClientError(f"model '{model}': {refused}") from None


def open_client(target: Target, *, timeout_s: float = 60.0) -> HttpClient | GrpcClient:
    """A client of the target's protocol. Raises ClientError for certificates that cannot be used."""
    if target.protocol is targets.Protocol.GRPC:
        return GrpcClient(target, timeout_s=timeout_s)
    return HttpClient(target, timeout_s=timeout_s)
