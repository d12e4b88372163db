"""A request that is measured, in the spellings of each protocol, and the check that its answer is right.

A fast wrong answer is worth nothing: before anything is measured, each spelling goes over the wire once, and every
tensor of every response is compared element by element. The values are to be exact in FP32.
"""

from __future__ import annotations

import dataclasses
import enum
import gzip
import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
import numpy as np
import numpy.typing as npt
from benchmark_error import BenchmarkError
from measured_server import Ports

from pytriton_lite.proto import grpc_service_pb

HEADER_LENGTH = "Inference-Header-Content-Length"
# An answer takes milliseconds; this is for a server that never gives one.
ANSWER_TIMEOUT_S = 30.0

_FEW = 16
"""Elements that an error shows one and all."""

Output = npt.NDArray[np.float32] | npt.NDArray[np.bytes_]
Tensors = Mapping[str, Output]
Input = npt.NDArray[np.float32] | npt.NDArray[np.uint8] | npt.NDArray[np.bytes_]
_DATATYPES = {"f": "FP32", "u": "UINT8", "S": "BYTES"}
"""By the kind of an array: all are of four bytes, of one byte, or of strings."""


class Protocol(str, enum.Enum):
    """How a call is spelled. Requests of the first four differ from each other as people's do, in their ids and numbers."""

    HTTP_JSON = "http-json"
    HTTP_JSON_GZIP = "http-json-gzip"
    """The same from a client that takes compressed answers, as requests, httpx and aiohttp do."""
    HTTP_BINARY = "http-binary"
    GRPC = "grpc"
    HTTP_JSON_REPEATED = "http-json-repeated"
    """The same request over and over, byte for byte."""
    HTTP_BINARY_REPEATED = "http-binary-repeated"
    GRPC_REPEATED = "grpc-repeated"
    GRPC_STREAM = "grpc-stream"
    HTTP_SHM = "http-shm"
    """Inputs and outputs in system shared memory of the client."""
    GRPC_SHM = "grpc-shm"

    @property
    def is_http(self) -> bool:
        return self.value.startswith("http")

    @property
    def is_json(self) -> bool:
        return self in (Protocol.HTTP_JSON, Protocol.HTTP_JSON_GZIP, Protocol.HTTP_JSON_REPEATED)

    @property
    def is_varied(self) -> bool:
        """Whether requests differ from each other."""
        return self in (Protocol.HTTP_JSON, Protocol.HTTP_JSON_GZIP, Protocol.HTTP_BINARY, Protocol.GRPC)

    @property
    def uses_regions(self) -> bool:
        return self in (Protocol.HTTP_SHM, Protocol.GRPC_SHM)


DIFFERENT = 4096
"""How many requests differ before the first one comes again; of strings, which are larger, a part of them."""
_DIFFERENT_STRINGS = 64
SEQUENCES = 50
"""How many there are, and so how many callers can have one."""
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz ", np.uint8)
_LARGEST_DIFFERENT_BYTES = 4096
_LARGEST_NUMBER = 1000.0


@dataclass(frozen=True)
class Call:
    """Tensors of FP32, UINT8 or BYTES for a model, and the responses in FP32 or BYTES that it must give, in their order."""

    model: str
    inputs: Mapping[str, Input]
    responses: Sequence[Tensors]
    request_id: str = ""
    steps: int = 0
    """Requests of the sequence that the call is the first of; 0: of none."""
    parameters: Mapping[str, int | bool] = field(default_factory=dict)
    """What the request says beside its tensors; over gRPC alone."""

    def over(self, protocol: Protocol) -> list[Call]:
        """The calls that are made over *protocol*: many, each with an id and numbers of its own, or this one alone.

        Large tensors stay as they are, and so do images, which not any bytes are. Of the others the first has these tensors.
        All ids are of one length, and so are the answers to all calls.
        """
        if self.steps:
            return self._sequences()
        if not protocol.is_varied:
            return [self]
        has_strings = any(tensor.dtype.kind == "S" for tensor in self.inputs.values())
        nbytes = sum(tensor.nbytes for tensor in self.inputs.values())
        if nbytes > _LARGEST_DIFFERENT_BYTES * len(self.inputs) and not (has_strings and protocol.is_http):
            return [dataclasses.replace(self, request_id="request-0000")]  # `grpc_load` sends each message in one frame
        random = np.random.default_rng(0)
        calls = [dataclasses.replace(self, request_id="request-0000")]
        for number in range(1, _DIFFERENT_STRINGS if has_strings else DIFFERENT):
            inputs = {name: _others(random, tensor) for name, tensor in self.inputs.items()}
            calls.append(dataclasses.replace(self, inputs=inputs, request_id=f"request-{number:04}"))
        return calls

    def _sequences(self) -> list[Call]:
        """Sequences of `steps` requests that go on where the one before has ended, one behind the other.

        Each request has the tensors of this call plus its number in the sequence, counted from 0.
        """
        return [
            dataclasses.replace(
                self,
                inputs={name: tensor + tensor.dtype.type(step) for name, tensor in self.inputs.items()},
                request_id=f"request-{number:04}",
                parameters={
                    "sequence_id": number + 1,
                    "sequence_start": step == 0,
                    "sequence_end": step == self.steps - 1,
                },
            )
            for number in range(SEQUENCES)
            for step in range(self.steps)
        ]


def _others(random: np.random.Generator, tensor: Input) -> Input:
    """Other elements; strings of the same length."""
    if tensor.dtype.kind == "S":
        return random.choice(_LETTERS, tensor.nbytes).view(tensor.dtype).reshape(tensor.shape)
    return random.uniform(0, _LARGEST_NUMBER, tensor.shape).astype(tensor.dtype)


def _content(tensor: Input) -> bytes:
    """The elements as the protocols have them, each string behind its length."""
    if tensor.dtype.kind != "S":
        return tensor.tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in tensor.ravel().tolist())


def _elements(datatype: str, content: bytes) -> Output:
    if datatype != "BYTES":
        return np.frombuffer(content, np.float32)
    texts, at = [], 0
    while at < len(content):
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        texts.append(content[begin:at])
    return np.array(texts, np.bytes_)


def _listed(tensor: Input) -> list[object]:
    """The elements for JSON."""
    return (tensor.astype(np.str_) if tensor.dtype.kind == "S" else tensor).tolist()


@dataclass(frozen=True)
class HttpRequest:
    headers: Mapping[str, str]
    body: bytes


def http_path(call: Call) -> str:
    return f"/v2/models/{call.model}/infer"


def region_name(call: Call, tensor: str) -> str:
    """The region, and the segment, of a tensor of *call*."""
    return f"benchmark_{call.model}_{tensor}"


def http_request(call: Call, protocol: Protocol) -> HttpRequest:
    if protocol.uses_regions:
        return _region_request(call)
    if not protocol.is_json:
        return _binary_request(call)
    request = _json_request(call)
    if protocol is Protocol.HTTP_JSON_GZIP:
        return HttpRequest({**request.headers, "Accept-Encoding": "gzip, deflate"}, request.body)
    return request


def _json_request(call: Call) -> HttpRequest:
    inputs = [{**_described(name, tensor), "data": _listed(tensor)} for name, tensor in call.inputs.items()]
    return HttpRequest({"Content-Type": "application/json"}, json.dumps({**_id(call), "inputs": inputs}).encode())


def _id(call: Call) -> dict[str, str]:
    return {"id": call.request_id} if call.request_id else {}


def _binary_request(call: Call) -> HttpRequest:
    """All inputs behind the JSON header, all outputs asked for in the same form."""
    inputs = [
        {**_described(name, tensor), "parameters": {"binary_data_size": len(_content(tensor))}}
        for name, tensor in call.inputs.items()
    ]
    header = json.dumps({**_id(call), "inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(map(_content, call.inputs.values()))
    return HttpRequest({"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}, body)


def _region_request(call: Call) -> HttpRequest:
    inputs = [{**_described(name, tensor), **_in_region(call, name, tensor)} for name, tensor in call.inputs.items()]
    outputs = [{"name": name, **_in_region(call, name, tensor)} for name, tensor in call.responses[0].items()]
    body = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    return HttpRequest({"Content-Type": "application/json"}, body)


def _in_region(call: Call, name: str, tensor: Input) -> dict[str, object]:
    parameters = {"shared_memory_region": region_name(call, name), "shared_memory_byte_size": tensor.nbytes}
    return {"parameters": parameters}


def _described(name: str, tensor: Input) -> dict[str, object]:
    return {"name": name, "datatype": _DATATYPES[tensor.dtype.kind], "shape": list(tensor.shape)}


def grpc_path(protocol: Protocol) -> str:
    method = "ModelStreamInfer" if protocol is Protocol.GRPC_STREAM else "ModelInfer"
    return f"/inference.GRPCInferenceService/{method}"


def grpc_message(call: Call, protocol: Protocol = Protocol.GRPC) -> bytes:
    """A ModelInferRequest with raw contents, or tensors in regions, as tritonclient sends it."""
    request = grpc_service_pb.ModelInferRequest(model_name=call.model, id=call.request_id)
    for name, value in call.parameters.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    for name, tensor in call.inputs.items():
        given = request.inputs.add(name=name, datatype=_DATATYPES[tensor.dtype.kind], shape=tensor.shape)
        if protocol.uses_regions:
            given.parameters["shared_memory_region"].string_param = region_name(call, name)
            given.parameters["shared_memory_byte_size"].int64_param = tensor.nbytes
        else:
            request.raw_input_contents.append(_content(tensor))
    for name, tensor in call.responses[0].items() if protocol.uses_regions else ():
        wanted = request.outputs.add(name=name)
        wanted.parameters["shared_memory_region"].string_param = region_name(call, name)
        wanted.parameters["shared_memory_byte_size"].int64_param = tensor.nbytes
    message: bytes = request.SerializeToString()
    return message


def raw_http_request(call: Call, protocol: Protocol, port: int) -> bytes:
    """The request from its first byte to its last."""
    return raw_post(http_path(call), http_request(call, protocol), port)


def raw_post(path: str, request: HttpRequest, port: int) -> bytes:
    """A POST to *path* from its first byte to its last."""
    fields = {"Host": f"127.0.0.1:{port}", **request.headers, "Content-Length": str(len(request.body))}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {text}" for name, text in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + request.body


def grpc_body(call: Call, protocol: Protocol) -> bytes:
    """The message as it lies in an HTTP/2 data frame: a byte for "not compressed", its length, itself."""
    message = grpc_message(call, protocol)
    return b"\0" + len(message).to_bytes(4, "big") + message


# A gRPC message has this much in front of it.
_GRPC_PREFIX = 5


@dataclass(frozen=True)
class Answer:
    """What came for one call; *body_bytes* is its size as the transport carries it, without headers and trailers."""

    responses: Sequence[Tensors]
    body_bytes: int


def check_answer(
    call: Call, protocol: Protocol, ports: Ports, read_regions: Callable[[Call], Tensors] | None = None
) -> int:
    """Send the call once; returns the bytes of the answer's body, which every right answer of this server has.

    *read_regions* gives the outputs of a call over a protocol that leaves them in regions.
    Raises BenchmarkError unless it has exactly the responses that the call expects.
    """
    where = f"{call.model} over {protocol.value}"
    try:
        answer = _ask_http(call, protocol, ports.http) if protocol.is_http else _ask_grpc(call, protocol, ports.grpc)
    except (
        OSError,
        http.client.HTTPException,
        grpc.RpcError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise BenchmarkError(f"{where}: no answer that could be read: {error!r}") from error
    responses = [read_regions(call)] if read_regions is not None else answer.responses
    if len(responses) != len(call.responses):
        raise BenchmarkError(f"{where}: expected {len(call.responses)} responses, got {len(responses)}")
    for number, (expected, got) in enumerate(zip(call.responses, responses), start=1):
        check_tensors(expected, got, where=where, number=number)
    return answer.body_bytes


def check_tensors(expected: Tensors, got: Tensors, *, where: str, number: int = 1) -> None:
    """Raises BenchmarkError unless response *number* has each of the expected tensors, element by element."""
    for name, tensor in expected.items():
        found = got.get(name)
        if found is None or not np.array_equal(found, tensor):
            raise BenchmarkError(
                f"{where}: wrong answer: expected {name} {_shown(tensor)}, got {_shown(found)} in response {number}"
            )


def _shown(tensor: Output | None) -> str:
    if tensor is None:
        return "none"
    return str(tensor.tolist()) if tensor.size <= _FEW else np.array2string(tensor, threshold=_FEW, separator=", ")


def _ask_http(call: Call, protocol: Protocol, port: int) -> Answer:
    headers, body = post(http_path(call), http_request(call, protocol), port)
    if protocol.uses_regions:
        return Answer([], len(body))
    contents = gzip.decompress(body) if headers["Content-Encoding"] == "gzip" else body
    return Answer([read_http_outputs(contents, headers[HEADER_LENGTH])], len(body))


def post(path: str, request: HttpRequest, port: int) -> tuple[http.client.HTTPMessage, bytes]:
    """Headers and body of the answer. Raises BenchmarkError if its status is not 200, and what http.client raises."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", path, request.body, dict(request.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchmarkError(f"POST {path}: status {response.status}: {body[:500]!r}")
    return response.headers, body


def read_http_outputs(body: bytes, header_length: str | None) -> Tensors:
    """The outputs of an infer response, JSON tensors and binary ones in any mixture."""
    header_end = len(body) if header_length is None else int(header_length)
    outputs, offset = {}, header_end
    for output in json.loads(body[:header_end])["outputs"]:
        nbytes = (output.get("parameters") or {}).get("binary_data_size")  # KServe writes null
        if nbytes is None:
            dtype = np.bytes_ if output.get("datatype") == "BYTES" else np.float32
            outputs[output["name"]] = np.array(output["data"], dtype)
        else:
            outputs[output["name"]] = _elements(output.get("datatype", ""), body[offset : offset + nbytes])
            offset += nbytes
    return outputs


def _ask_grpc(call: Call, protocol: Protocol, port: int) -> Answer:
    path, message = grpc_path(protocol), grpc_message(call, protocol)
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        if protocol is Protocol.GRPC_STREAM:
            stream = channel.stream_stream(path)(iter([message]), timeout=ANSWER_TIMEOUT_S, wait_for_ready=True)
            messages = list(stream)
            responses = [_streamed(message) for message in messages]
        else:
            messages = [channel.unary_unary(path)(message, timeout=ANSWER_TIMEOUT_S, wait_for_ready=True)]
            responses = [grpc_service_pb.ModelInferResponse.FromString(messages[0])]
    body_bytes = sum(_GRPC_PREFIX + len(message) for message in messages)
    return Answer([_grpc_outputs(response) for response in responses], body_bytes)


def _streamed(message: bytes) -> grpc_service_pb.ModelInferResponse:
    answer = grpc_service_pb.ModelStreamInferResponse.FromString(message)
    if answer.error_message:
        raise BenchmarkError(f"{grpc_path(Protocol.GRPC_STREAM)}: {answer.error_message}")
    return answer.infer_response


def _grpc_outputs(response: grpc_service_pb.ModelInferResponse) -> Tensors:
    return {
        output.name: _elements(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents)
    }
