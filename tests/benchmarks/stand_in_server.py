"""The models of the benchmark's scenarios as it asks for them, in a process of its own, with faults on request.

stand_in_server.py HTTP_PORT GRPC_PORT [--wrong] [--fail-after N] [--short-after N] [--forget-calls] [--ignore-sigterm]
                   [--with-child] [--own-id ID] [--die]
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

from pytriton_lite.proto import grpc_service_pb

OPTIONS = argparse.Namespace()
LOCK = threading.Lock()
CALLS = {"bls": "add_sub", "bls_decoupled": "decoupled"}
COUNTS = {name: {"success": 0, "fail": 0} for name in ("add_sub", "bls", "decoupled", "bls_decoupled")}
RESPONSES = 100

Outputs = dict[str, bytes]


def outputs_of(model: str, *inputs: bytes) -> Outputs:
    """What a model in default mode answers."""
    values = [struct.unpack("<4f", data) for data in inputs]
    wrong = 1.0 if OPTIONS.wrong else 0.0
    if model == "bls_decoupled":
        total = sum(range(RESPONSES))
        return {"OUT": struct.pack("<4f", *(RESPONSES * value + total + wrong for value in values[0]))}
    sums, differences = [x + y + wrong for x, y in zip(*values)], [x - y for x, y in zip(*values)]
    return {"OUTPUT0": struct.pack("<4f", *sums), "OUTPUT1": struct.pack("<4f", *differences)}


def streamed(data: bytes, *, responses: int) -> Iterator[Outputs]:
    """What the model "decoupled" answers. If told to be wrong, it is so in the middle."""
    for number in range(responses):
        shift = number + (1 if OPTIONS.wrong and number == RESPONSES // 2 else 0)
        yield {"OUT": struct.pack("<4f", *(value + shift for value in struct.unpack("<4f", data)))}


def count(model: str) -> bool:
    """Whether this request may succeed."""
    with LOCK:
        succeeds = OPTIONS.fail_after is None or COUNTS[model]["success"] < OPTIONS.fail_after
        for name in (model, CALLS.get(model)):
            if name == model or (name is not None and not OPTIONS.forget_calls):
                COUNTS[name]["success" if succeeds else "fail"] += 1
        return succeeds


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body in one segment

    def log_message(self, format: str, *args: object) -> None:
        pass

    @property
    def model(self) -> str:
        """Of /v2/models/MODEL/..."""
        return self.path.split("/")[3]

    def do_GET(self) -> None:
        if self.path == "/v2":
            self.answer(b'{"name": "stand-in", "version": "1.2.3"}')
        elif self.path in ("/v2/health/ready", "/v2/models/add_sub/ready", "/healthy"):
            self.answer(b"")
        else:
            with LOCK:
                kinds = {kind: {"count": number} for kind, number in COUNTS[self.model].items()}
            self.answer(json.dumps({"model_stats": [{"inference_stats": kinds}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/infer":
            self.answer_own(json.loads(body))
            return
        if not count(self.model):
            self.answer(b'{"error": "told to fail"}', status=500)
            return
        header_length = self.headers["Inference-Header-Content-Length"]
        if header_length is None:
            inputs = [struct.pack("<4f", *entry["data"]) for entry in json.loads(body)["inputs"]]
            outputs = outputs_of(self.model, *inputs)
            described = [{"name": name, "data": struct.unpack("<4f", data)} for name, data in outputs.items()]
            self.answer(json.dumps({"outputs": described}).encode())
            return
        tensors = body[int(header_length) :]
        outputs = outputs_of(self.model, *(tensors[offset : offset + 16] for offset in range(0, len(tensors), 16)))
        sizes = [{"name": name, "parameters": {"binary_data_size": len(data)}} for name, data in outputs.items()]
        header = json.dumps({"outputs": sizes}).encode()
        self.answer(header + b"".join(outputs.values()), header_length=len(header))

    def answer_own(self, request: dict[str, list[float]]) -> None:
        """add_sub for those who do not speak V2."""
        inputs = [struct.pack("<4f", *request[name]) for name in ("INPUT0", "INPUT1")]
        outputs = {name: struct.unpack("<4f", data) for name, data in outputs_of("add_sub", *inputs).items()}
        self.answer(json.dumps({"id": OPTIONS.own_id or request["id"], **outputs}).encode())

    def answer(self, body: bytes, *, status: int = 200, header_length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if header_length is not None:
            self.send_header("Inference-Header-Content-Length", str(header_length))
        self.end_headers()
        self.wfile.write(body)


def infer_response(model: str, outputs: Outputs) -> grpc_service_pb.ModelInferResponse:
    response = grpc_service_pb.ModelInferResponse(model_name=model)
    for name, data in outputs.items():
        response.outputs.add(name=name, datatype="FP32", shape=[4])
        response.raw_output_contents.append(data)
    return response


def model_infer(message: bytes, context: grpc.ServicerContext) -> bytes:
    request = grpc_service_pb.ModelInferRequest.FromString(message)
    if not count(request.model_name):
        context.abort(grpc.StatusCode.INTERNAL, "told to fail")
    response = infer_response(request.model_name, outputs_of(request.model_name, *request.raw_input_contents))
    answer: bytes = response.SerializeToString()
    return answer


def model_stream_infer(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    for message in messages:
        request = grpc_service_pb.ModelInferRequest.FromString(message)
        if not count(request.model_name):
            yield grpc_service_pb.ModelStreamInferResponse(error_message="told to fail").SerializeToString()
            continue
        if request.model_name == "decoupled":
            answers = streamed(request.raw_input_contents[0], responses=RESPONSES // 2 if is_short() else RESPONSES)
        else:
            answers = iter([outputs_of(request.model_name, *request.raw_input_contents)])
        for outputs in answers:
            response = infer_response(request.model_name, outputs)
            yield grpc_service_pb.ModelStreamInferResponse(infer_response=response).SerializeToString()


def is_short() -> bool:
    """Whether the stream that was counted last is to have half of its responses.

    Fewer would do for one answer, but a part of the next one of each caller may have come, too.
    """
    with LOCK:
        return OPTIONS.short_after is not None and COUNTS["decoupled"]["success"] > OPTIONS.short_after


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("http_port", type=int)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--fail-after", type=int)
    parser.add_argument("--short-after", type=int)
    parser.add_argument("--forget-calls", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--with-child", action="store_true")
    parser.add_argument("--own-id")
    parser.add_argument("--die", action="store_true")
    parser.parse_args(namespace=OPTIONS)
    if OPTIONS.die:
        sys.exit("no licence to serve")
    if OPTIONS.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if OPTIONS.with_child:  # in a session of its own, which no signal to the group reaches
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        print(f"child {child.pid}", flush=True)
    grpc_server = grpc.server(ThreadPoolExecutor(4))
    methods = {
        "ModelInfer": grpc.unary_unary_rpc_method_handler(model_infer),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(model_stream_infer),
    }
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods)
    grpc_server.add_generic_rpc_handlers((service,))
    grpc_server.add_insecure_port(f"127.0.0.1:{OPTIONS.grpc_port}")
    grpc_server.start()
    ThreadingHTTPServer(("127.0.0.1", OPTIONS.http_port), Handler).serve_forever()


if __name__ == "__main__":
    main()
