"""The request that is measured: add_sub on two FP32 tensors of four elements, in three spellings.

Each spelling comes with a check, because a fast wrong answer is worth nothing: one request over the wire, and the sum
and the difference in the answer compared element by element. The values are exact in FP32.
"""

from __future__ import annotations

import enum
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass

import grpc
import numpy as np
import numpy.typing as npt
from benchmark_error import BenchmarkError

from pytriton_lite.proto import grpc_service_pb

MODEL = "add_sub"
INPUTS = {
    "INPUT0": np.array([1.5, -2.25, 3.0, 1000.0], np.float32),
    "INPUT1": np.array([0.5, 4.0, -1.0, 0.125], np.float32),
}
EXPECTED = {
    "OUTPUT0": INPUTS["INPUT0"] + INPUTS["INPUT1"],
    "OUTPUT1": INPUTS["INPUT0"] - INPUTS["INPUT1"],
}
HTTP_PATH = f"/v2/models/{MODEL}/infer"
GRPC_PATH = "/inference.GRPCInferenceService/ModelInfer"
HEADER_LENGTH = "Inference-Header-Content-Length"
# An answer takes a millisecond; this is for a server that never gives one.
ANSWER_TIMEOUT_S = 30.0

Outputs = dict[str, npt.NDArray[np.float32]]


class Protocol(str, enum.Enum):
    HTTP_JSON = "http-json"
    HTTP_BINARY = "http-binary"
    GRPC = "grpc"


@dataclass(frozen=True)
class HttpCall:
    headers: Mapping[str, str]
    body: bytes


def json_call() -> HttpCall:
    inputs = [{**_described(name), "data": tensor.tolist()} for name, tensor in INPUTS.items()]
    return HttpCall({"Content-Type": "application/json"}, json.dumps({"inputs": inputs}).encode())


def binary_call() -> HttpCall:
    """Both inputs behind the JSON header, both outputs asked for in the same form."""
    inputs = [
        {**_described(name), "parameters": {"binary_data_size": tensor.nbytes}} for name, tensor in INPUTS.items()
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = header + b"".join(tensor.tobytes() for tensor in INPUTS.values())
    return HttpCall({"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}, body)


def _described(name: str) -> dict[str, object]:
    return {"name": name, "datatype": "FP32", "shape": list(INPUTS[name].shape)}


def grpc_message() -> bytes:
    """A ModelInferRequest with raw contents, as tritonclient sends it."""
    request = grpc_service_pb.ModelInferRequest(model_name=MODEL)
    for name, tensor in INPUTS.items():
        request.inputs.add(name=name, datatype="FP32", shape=tensor.shape)
        request.raw_input_contents.append(tensor.tobytes())
    message: bytes = request.SerializeToString()
    return message


def grpc_body() -> bytes:
    """The message as it lies in an HTTP/2 data frame: a byte for "not compressed", its length, itself."""
    message = grpc_message()
    return b"\0" + len(message).to_bytes(4, "big") + message


def check_answer(protocol: Protocol, *, http_port: int, grpc_port: int) -> None:
    """Send the call once; raises BenchmarkError unless both outputs are exactly right."""
    try:
        if protocol is Protocol.GRPC:
            outputs = _ask_grpc(grpc_port)
        else:
            outputs = _ask_http(http_port, json_call() if protocol is Protocol.HTTP_JSON else binary_call())
    except (OSError, http.client.HTTPException, grpc.RpcError, ValueError, KeyError) as error:
        raise BenchmarkError(f"{protocol.value}: no answer that could be read: {error!r}") from error
    for name, expected in EXPECTED.items():
        got = outputs.get(name)
        if got is None or not np.array_equal(got, expected):
            raise BenchmarkError(f"{protocol.value}: wrong answer: expected {name} {expected.tolist()}, got {got}")


def _ask_http(port: int, call: HttpCall) -> Outputs:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", HTTP_PATH, call.body, dict(call.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchmarkError(f"POST {HTTP_PATH}: status {response.status}: {body[:500]!r}")
    return read_http_outputs(body, response.getheader(HEADER_LENGTH))


def read_http_outputs(body: bytes, header_length: str | None) -> Outputs:
    """The outputs of an infer response, JSON tensors and binary ones in any mixture."""
    header_end = len(body) if header_length is None else int(header_length)
    outputs, offset = {}, header_end
    for output in json.loads(body[:header_end])["outputs"]:
        nbytes = output.get("parameters", {}).get("binary_data_size")
        if nbytes is None:
            outputs[output["name"]] = np.array(output["data"], np.float32)
        else:
            outputs[output["name"]] = np.frombuffer(body[offset : offset + nbytes], np.float32)
            offset += nbytes
    return outputs


def _ask_grpc(port: int) -> Outputs:
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        model_infer = channel.unary_unary(GRPC_PATH)
        answer = model_infer(grpc_message(), timeout=ANSWER_TIMEOUT_S, wait_for_ready=True)
    response = grpc_service_pb.ModelInferResponse.FromString(answer)
    return {
        output.name: np.frombuffer(raw, np.float32)
        for output, raw in zip(response.outputs, response.raw_output_contents)
    }
