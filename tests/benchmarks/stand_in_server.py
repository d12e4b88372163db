"""add_sub over HTTP and gRPC as the benchmark asks for it, in a process of its own, with faults on request.

stand_in_server.py HTTP_PORT GRPC_PORT [--wrong] [--fail-after N] [--ignore-sigterm] [--with-child] [--die]
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc

from pytriton_lite.proto import grpc_service_pb

OPTIONS = argparse.Namespace()
LOCK = threading.Lock()
COUNTS = {"success": 0, "fail": 0}


def add_sub(a: bytes, b: bytes) -> list[bytes]:
    left, right = struct.unpack("<4f", a), struct.unpack("<4f", b)
    wrong = 1.0 if OPTIONS.wrong else 0.0
    sums, differences = [x + y + wrong for x, y in zip(left, right)], [x - y for x, y in zip(left, right)]
    return [struct.pack("<4f", *sums), struct.pack("<4f", *differences)]


def count() -> bool:
    """Whether this request may succeed."""
    with LOCK:
        succeeds = OPTIONS.fail_after is None or COUNTS["success"] < OPTIONS.fail_after
        COUNTS["success" if succeeds else "fail"] += 1
        return succeeds


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body in one segment

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v2":
            self.answer(b'{"name": "stand-in", "version": "1.2.3"}')
        elif self.path == "/v2/health/ready":
            self.answer(b"")
        else:
            with LOCK:
                kinds = {kind: {"count": number} for kind, number in COUNTS.items()}
            self.answer(json.dumps({"model_stats": [{"inference_stats": kinds}]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not count():
            self.answer(b'{"error": "told to fail"}', status=500)
            return
        header_length = self.headers["Inference-Header-Content-Length"]
        if header_length is None:
            a, b = (struct.pack("<4f", *entry["data"]) for entry in json.loads(body)["inputs"])
            datas = [{"data": struct.unpack("<4f", output)} for output in add_sub(a, b)]
            self.answer(json.dumps({"outputs": named(datas)}).encode())
            return
        tensors = body[int(header_length) :]
        sizes = [{"parameters": {"binary_data_size": 16}}] * 2
        header = json.dumps({"outputs": named(sizes)}).encode()
        self.answer(header + b"".join(add_sub(tensors[:16], tensors[16:])), header_length=len(header))

    def answer(self, body: bytes, *, status: int = 200, header_length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if header_length is not None:
            self.send_header("Inference-Header-Content-Length", str(header_length))
        self.end_headers()
        self.wfile.write(body)


def named(outputs: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{"name": f"OUTPUT{index}", **output} for index, output in enumerate(outputs)]


def model_infer(message: bytes, context: grpc.ServicerContext) -> bytes:
    if not count():
        context.abort(grpc.StatusCode.INTERNAL, "told to fail")
    request = grpc_service_pb.ModelInferRequest.FromString(message)
    response = grpc_service_pb.ModelInferResponse(model_name=request.model_name)
    for index, raw in enumerate(add_sub(*request.raw_input_contents)):
        response.outputs.add(name=f"OUTPUT{index}", datatype="FP32", shape=[4])
        response.raw_output_contents.append(raw)
    answer: bytes = response.SerializeToString()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("http_port", type=int)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--fail-after", type=int)
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--with-child", action="store_true")
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
    method = grpc.unary_unary_rpc_method_handler(model_infer)
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})
    grpc_server.add_generic_rpc_handlers((service,))
    grpc_server.add_insecure_port(f"127.0.0.1:{OPTIONS.grpc_port}")
    grpc_server.start()
    ThreadingHTTPServer(("127.0.0.1", OPTIONS.http_port), Handler).serve_forever()


if __name__ == "__main__":
    main()
