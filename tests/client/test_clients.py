"""Clients against a real server, over both protocols, plain and TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from pytriton_lite.client import grpc_codec
from pytriton_lite.client.clients import Client, HttpClient, open_client
from pytriton_lite.client.errors import ClientError, ForeignAnswer, Refused, Unreachable
from pytriton_lite.client.messages import InferRequest, array_of, make_tensor
from pytriton_lite.client.target import Protocol, Target, parse_target
from pytriton_lite.core import dtypes
from pytriton_lite.proto import grpc_service_pb as pb
from tests.certificates import Certificates
from tests.harness import RunningServer, write_model

ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())])
                for r in requests]
"""
ECHO_CONFIG = """
input [{{ name: "IN" data_type: TYPE_{kind} dims: [-1] }}]
output [{{ name: "OUT" data_type: TYPE_{kind} dims: [-1] }}]
"""
COUNT_DOWN = """
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_DOWN_CONFIG = """
model_transaction_policy { decoupled: true }
input [{ name: "N" data_type: TYPE_INT32 dims: [1] }]
output [{ name: "OUT" data_type: TYPE_INT32 dims: [1] }]
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for kind in ("FP32", "STRING"):
        write_model(folder, f"echo_{kind.lower()}", ECHO, ECHO_CONFIG.format(kind=kind))
    write_model(folder, "numbers", COUNT_DOWN, COUNT_DOWN_CONFIG)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository) as running:
        yield running


@pytest.fixture(params=[Protocol.HTTP, Protocol.GRPC], ids=["http", "grpc"])
def target(request: pytest.FixtureRequest, server: RunningServer) -> Target:
    protocol: Protocol = request.param
    return parse_target(server.http_url if protocol is Protocol.HTTP else server.grpc_url, protocol)


def floats(count: int) -> InferRequest:
    values = np.arange(count, dtype=np.float32)
    return InferRequest(
        "echo_fp32", [make_tensor("IN", dtypes.FP32, values)], id="mine", parameters={"n": 1, "f": 0.5, "b": True}
    )


@pytest.mark.parametrize("count", [0, 4, 1_000_000])
def test_a_tensor_comes_back_as_it_went(target: Target, count: int) -> None:
    with open_client(target) as client:
        response = client.infer(floats(count))
    assert (response.model, response.version, response.id) == ("echo_fp32", "1", "mine")
    assert array_of(response.outputs[0]).tolist() == list(range(count))


def test_strings_come_back_as_they_went(target: Target) -> None:
    texts = np.array([b"", "ä".encode(), b"\0\xff"], dtype=object)
    with open_client(target) as client:
        response = client.infer(InferRequest("echo_string", [make_tensor("IN", dtypes.BYTES, texts)]))
    assert array_of(response.outputs[0]).tolist() == texts.tolist()


def test_metadata_configuration_and_statistics_are_those_of_the_model(target: Target) -> None:
    with open_client(target) as client:
        metadata = client.metadata("echo_fp32")
        assert [str(spec) for spec in metadata.inputs] == ["IN FP32 [-1]"]
        assert client.is_decoupled("numbers") is True
        assert client.is_decoupled("echo_fp32") is False
        assert client.config("numbers")["model_transaction_policy"]["decoupled"] is True
        before = client.statistics("echo_fp32")
        client.infer(floats(4))
        after = client.statistics("echo_fp32")
    assert before is not None and after is not None
    counted = after.since(before)
    assert counted is not None and counted.successes == 1 and counted.queue_ns > 0
    assert before.since(after) is None, "a server that counts anew"


def test_an_error_of_the_server_is_told_in_its_words_and_the_connection_goes_on(target: Target) -> None:
    with open_client(target) as client:
        with pytest.raises(Refused, match="unknown model: 'nope'") as raised:
            client.metadata("nope")
        assert raised.value.code in ("404", "NOT_FOUND")
        assert len(client.infer(floats(4)).outputs) == 1


def test_responses_of_a_decoupled_model_come_one_by_one(server: RunningServer) -> None:
    request = InferRequest("numbers", [make_tensor("N", dtypes.INT32, np.array([3], np.int32))])
    with open_client(parse_target(server.grpc_url, Protocol.GRPC)) as client:
        assert [array_of(response.outputs[0]).tolist() for response in client.stream(request)] == [[0], [1], [2]]
        assert (
            list(client.stream(InferRequest("numbers", [make_tensor("N", dtypes.INT32, np.array([0], np.int32))])))
            == []
        )
        with pytest.raises(Refused, match="unknown model"):
            list(client.stream(InferRequest("nope", [])))
        responses = client.stream(request)
        next(responses)
        del responses  # given up in the middle: the next call has nothing of it
        assert client.is_decoupled("numbers")
    with (
        open_client(parse_target(server.http_url, Protocol.HTTP)) as client,
        pytest.raises(ClientError, match="-i grpc"),
    ):
        list(client.stream(request))


def test_the_other_protocol_on_a_port_is_told(server: RunningServer) -> None:
    with (
        open_client(parse_target(server.http_url, Protocol.GRPC)) as client,
        pytest.raises(ForeignAnswer, match="HTTP/1"),
    ):
        client.extensions()
    with (
        open_client(parse_target(server.grpc_url, Protocol.HTTP)) as client,
        pytest.raises(ForeignAnswer, match="-i grpc"),
    ):
        client.extensions()


def test_nobody_there_is_told(target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        open_client(parse_target(f"127.0.0.1:{port}", target.protocol)) as client,
        pytest.raises(Unreachable, match="refused"),
    ):
        client.extensions()


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """A port at which each connection is given one of *answers*, in their order, after it has said something, and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("protocol", [Protocol.HTTP, Protocol.GRPC])
def test_a_server_that_closes_without_an_answer_is_told(protocol: Protocol) -> None:
    with (
        answering(b"") as port,
        open_client(parse_target(f"127.0.0.1:{port}", protocol)) as client,
        pytest.raises(Unreachable, match="clos"),
    ):
        client.extensions()


class Relay:
    """A port that leads to *server*, as a proxy's does. It closes with its context."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition("/")[2].rpartition(":")
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                ends = self._listening.accept()[0], socket.create_connection(self._server)
            except OSError:
                return
            self._ends += ends
            for source, sink in (ends, ends[::-1]):
                self._threads.append(threading.Thread(target=self._pump, args=(source, sink)))
                self._threads[-1].start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def cut(self) -> None:
        """Close every connection."""
        ends, self._ends = self._ends, []
        for end in ends:
            end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()


def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again(target: Target) -> None:
    with (
        Relay(target.authority) as relay,
        open_client(parse_target(f"127.0.0.1:{relay.port}", target.protocol)) as client,
    ):
        assert client.metadata("echo_fp32").name == "echo_fp32"
        relay.cut()
        assert client.statistics("echo_fp32") is not None
        relay.cut()
        assert len(client.infer(floats(1000)).outputs[0].content()) == 4000


def test_a_page_that_is_no_v2_server_is_told() -> None:
    page = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html></html"
    with (
        answering(page) as port,
        open_client(parse_target(f"127.0.0.1:{port}", Protocol.HTTP)) as client,
        pytest.raises(ForeignAnswer, match="no JSON"),
    ):
        client.extensions()


def answered(document: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(document), document)


def test_nulls_and_nested_lists_are_answers_of_the_protocol_too() -> None:
    document = (
        b'{"model_name": "m", "model_version": null, "id": null, "parameters": null, "outputs": ['
        b'{"name": "A", "shape": [2], "datatype": "INT32", "parameters": null, "data": [1, 2]},'
        b'{"name": "B", "shape": [2, 1], "datatype": "BYTES", "parameters": null, "data": [["x"], ["yz"]]}]}'
    )
    with answering(answered(document)) as port:
        target = parse_target(f"127.0.0.1:{port}", Protocol.HTTP)
        with HttpClient(target, is_binary=False) as client:
            response = client.infer(InferRequest("m", []))
    assert (response.version, response.id, response.parameters) == ("", "", {})
    assert [array_of(tensor).tolist() for tensor in response.outputs] == [[1, 2], [[b"x"], [b"yz"]]]


@pytest.mark.parametrize(
    "output",
    [
        b'{"name": "A", "shape": [1], "datatype": "INT8", "data": [300]}',
        b'{"name": "A", "shape": [1], "datatype": "BYTES", "data": [3]}',
    ],
)
def test_elements_that_are_none_of_their_data_type_are_told(output: bytes) -> None:
    with answering(answered(b'{"outputs": [%s]}' % output)) as port:
        target = parse_target(f"127.0.0.1:{port}", Protocol.HTTP)
        with HttpClient(target, is_binary=False) as client, pytest.raises(ForeignAnswer, match="no inference response"):
            client.infer(InferRequest("m", []))


def test_numbers_in_a_message_that_are_none_of_their_data_type_are_told() -> None:
    message = pb.ModelInferResponse(model_name="m")
    output = message.outputs.add(name="A", datatype="INT8", shape=[1])
    output.contents.int_contents.append(300)
    with pytest.raises(ForeignAnswer, match="no inference response"):
        grpc_codec.decode_response(message.SerializeToString())


def test_a_silent_server_is_not_waited_for_longer_than_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"127.0.0.1:{listening.getsockname()[1]}"
        with (
            open_client(parse_target(url, Protocol.HTTP), timeout_s=0.1) as client,
            pytest.raises(Unreachable, match="--timeout"),
        ):
            client.extensions()


@pytest.mark.parametrize("protocol", [Protocol.HTTP, Protocol.GRPC])
def test_certificates_are_verified(repository: Path, tmp_path: Path, protocol: Protocol) -> None:
    certificates = Certificates(tmp_path)
    name = protocol.value
    use = ("--grpc-use-ssl=true",) if protocol is Protocol.GRPC else ("--http-use-ssl=true",)
    flags = [flag for flag in certificates.flags(name) if "root-cert" not in flag]
    with RunningServer(repository, flags=(*use, *flags)) as running:
        port = (running.http_url if protocol is Protocol.HTTP else running.grpc_url).rpartition(":")[2]
        url = f"{name}s://localhost:{port}"
        with open_client(parse_target(url, protocol, ca_file=str(certificates.root))) as client:
            assert client.metadata("echo_fp32").name == "echo_fp32"
            assert len(client.infer(floats(100_000)).outputs[0].content()) == 400_000
        with open_client(parse_target(url, protocol, verifies=False)) as client:
            assert client.metadata("echo_fp32").name == "echo_fp32"
        unknown = parse_target(url, protocol)
        with open_client(unknown) as client, pytest.raises(Unreachable, match=r"no TLS.*; --cacert says"):
            client.extensions()
        plain = parse_target(f"{name}://localhost:{port}", protocol)
        with open_client(plain) as client, pytest.raises(Unreachable, match=f"TLS, {name}s://"):
            client.extensions()
        metrics = parse_target(f"{name}s://{running.metrics_url.split('/')[2]}", protocol)
        with open_client(metrics) as client, pytest.raises(Unreachable, match=r"no TLS.*; does it speak plain http://"):
            client.extensions()


@pytest.mark.parametrize("protocol", [Protocol.HTTP, Protocol.GRPC])
def test_a_server_that_asks_who_its_client_is_gets_the_certificate(
    repository: Path, tmp_path: Path, protocol: Protocol
) -> None:
    made = Certificates(tmp_path)
    name = protocol.value
    both = tmp_path / "both.pem"
    both.write_bytes(made.client.read_bytes() + made.client_key.read_bytes())
    use = ("--grpc-use-ssl=true",) if protocol is Protocol.GRPC else ("--http-use-ssl=true",)
    with RunningServer(repository, flags=(*use, f"--{name}-use-ssl-mutual=true", *made.flags(name))) as running:
        port = (running.http_url if protocol is Protocol.HTTP else running.grpc_url).rpartition(":")[2]

        def client(**files: str) -> Client:
            url = f"{name}s://localhost:{port}"
            return open_client(parse_target(url, protocol, ca_file=str(made.root), **files))  # type: ignore[arg-type]

        for files in (
            {"certificate_file": str(made.client), "key_file": str(made.client_key)},
            {"certificate_file": str(both)},
        ):
            with client(**files) as known:
                assert known.metadata("echo_fp32").name == "echo_fp32"
        with client() as unknown, pytest.raises(Unreachable, match="does it want the client's certificate, --cert"):
            unknown.metadata("echo_fp32")
        stranger = client(certificate_file=str(made.stranger), key_file=str(made.stranger_key))
        with stranger, pytest.raises(Unreachable):
            stranger.metadata("echo_fp32")


def test_a_certificate_without_its_key_is_told(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    target = parse_target(
        "https://localhost", Protocol.HTTP, certificate_file=str(made.client), key_file=str(made.server_key)
    )
    with pytest.raises(
        ClientError, match=r"--cert \S+client\.pem with --key \S+server\.key: no certificate and its key"
    ):
        open_client(target).extensions()
