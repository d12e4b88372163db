"""Limits and security of gRPC over both transports: TLS, restrictions, forwarded metadata, sizes, Unix sockets.

``row`` is a row of grpc.md's checklist.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_fakes import FakeServer, LoopThread
from http2_peer import DATA, END_STREAM, GOAWAY, INFER, PREFACE, Http2Peer, frame, headers_of, prefixed, settings
from tritonclient.grpc import InferenceServerClient, InferInput, service_pb2
from tritonclient.utils import InferenceServerException

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, INFERENCE_SERVICE, ControlMethods
from pytriton_lite.frontends.grpc.forwarding import HeaderForwarding, forward
from pytriton_lite.frontends.grpc.http2 import start_http2
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.restricted import CATEGORY_OF
from pytriton_lite.frontends.grpc.service_streams import service_streams
from pytriton_lite.frontends.restriction import CATEGORIES, RestrictedGroup
from pytriton_lite.frontends.tls import TlsOptions
from tests.certificates import Certificates

Status = grpc.StatusCode
Listening = Callable[..., Any]

PREFIX = "triton-grpc-protocol-"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture
def listen(loop: LoopThread, engine: FakeServer, start: Any) -> Iterator[Listening]:
    """Starts a listener of the transport in question, with options; it is stopped behind the test."""
    listeners: list[Any] = []

    def started(**options: Any) -> Any:
        listener = loop.run(start(engine, GrpcOptions(**{"address": "127.0.0.1", "port": 0} | options)))
        listeners.append(listener)
        return listener

    yield started
    for listener in listeners:
        loop.run(listener.stop(0))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def message(size: int = 4, **fields: Any) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=fields.pop("model", "echo"), **fields)
    request.inputs.add(name="X", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes(size))
    data: bytes = request.SerializeToString()
    return data


@contextmanager
def connected(listener: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listener.address) as channel:
        yield channel


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


class TestTls:
    def test_row_54_the_root_certificate_opens_and_plain_text_does_not(
        self, listen: Listening, certificates: Certificates
    ) -> None:
        listener = listen(tls=certificates.options())
        with InferenceServerClient(listener.address, ssl=True, root_certificates=str(certificates.root)) as client:
            assert client.is_server_live()
            tensor = InferInput("X", [1 << 20], "UINT8").set_data_from_numpy(np.ones(1 << 20, np.uint8))
            assert client.infer("echo", [tensor]).as_numpy("X").sum() == 1 << 20
        with InferenceServerClient(listener.address) as client, pytest.raises(InferenceServerException) as caught:
            client.is_server_live()
        assert caught.value.status() == "StatusCode.UNAVAILABLE"

    def test_row_55_mutual_tls_wants_a_certificate_that_the_authority_has_signed(
        self, listen: Listening, certificates: Certificates
    ) -> None:
        listener = listen(tls=certificates.options(mutual=True))
        root = str(certificates.root)
        who = {"certificate_chain": str(certificates.client), "private_key": str(certificates.client_key)}
        with InferenceServerClient(listener.address, ssl=True, root_certificates=root, **who) as client:
            assert client.is_server_live()
        stranger = {"certificate_chain": str(certificates.stranger), "private_key": str(certificates.stranger_key)}
        for nobody in ({}, stranger):
            with InferenceServerClient(listener.address, ssl=True, root_certificates=root, **nobody) as client:
                with pytest.raises(InferenceServerException) as caught:
                    client.is_server_live()
                assert caught.value.status() == "StatusCode.UNAVAILABLE"

    def test_what_is_older_than_tls_1_2_is_not_spoken(self, listen: Listening, certificates: Certificates) -> None:
        listener = listen(tls=certificates.options())
        for version, is_spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(certificates.root)
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
            context.set_alpn_protocols(["h2"])
            with pytest.warns(DeprecationWarning) if not is_spoken else _nothing():
                context.minimum_version = context.maximum_version = version
            with socket.create_connection((listener.host, listener.port), 10) as plain:
                if is_spoken:
                    with context.wrap_socket(plain, server_hostname="localhost") as secure:
                        assert secure.selected_alpn_protocol() == "h2"
                else:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        context.wrap_socket(plain, server_hostname="localhost")

    def test_streams_and_stops_over_tls(self, listen: Listening, certificates: Certificates, loop: LoopThread) -> None:
        listener = listen(tls=certificates.options())
        credentials = grpc.ssl_channel_credentials(certificates.root.read_bytes())
        with grpc.secure_channel(listener.address, credentials) as channel:
            answers = list(channel.stream_stream(STREAM)(iter([message(id="1"), message(id="2")]), timeout=20))
            assert len(answers) == 2
            assert loop.run(listener.stop(10)) is True

    def test_files_that_cannot_be_used_are_named(
        self, listen: Listening, certificates: Certificates, tmp_path: Path
    ) -> None:
        missing = tmp_path / "missing.pem"
        with pytest.raises(ListenError, match=f"^TLS: certificate {missing} cannot be read: No such file"):
            listen(tls=TlsOptions(missing, certificates.server_key))
        with pytest.raises(ListenError, match=f"^TLS: key {certificates.client_key} is not that of certificate "):
            listen(tls=TlsOptions(certificates.server, certificates.client_key))

    def test_a_handshake_that_never_comes_is_cut_off(self, listen: Listening, certificates: Certificates) -> None:
        listener = listen(tls=certificates.options(), handshake_timeout_ms=100)
        with socket.create_connection((listener.host, listener.port), 10) as silent:
            assert receive_all(silent) == b""


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def receive_all(sock: socket.socket) -> bytes:
    """Whatever comes until the server closes."""
    data = b""
    try:
        while piece := sock.recv(1 << 16):
            data += piece
    except ConnectionResetError:
        pass
    return data


class TestRestriction:
    EVERYTHING = (RestrictedGroup(CATEGORIES, "Admin-Key", "sesame"),)
    TEXT = "This protocol is restricted, expecting header 'triton-grpc-protocol-Admin-Key'"
    RIGHT = ((f"{PREFIX}admin-key", "sesame"),)

    def test_every_method_has_its_category(self, engine: FakeServer) -> None:
        methods = ControlMethods(engine)
        names = {*methods.inference_methods(), "ModelInfer", "ModelStreamInfer"}
        served = {f"/{INFERENCE_SERVICE}/{name}" for name in names}
        served |= {f"/{HEALTH_SERVICE}/{name}" for name in methods.health_methods()}
        served |= {
            f"/{service}/{name}"
            for service, names in service_streams(methods.health_methods()).items()
            for name in names
        }
        assert served - set(CATEGORY_OF) == set()
        assert set(CATEGORY_OF.values()) == set(CATEGORIES)

    @pytest.mark.parametrize("path", CATEGORY_OF)
    def test_row_56_no_method_is_answered_without_its_key(self, listen: Listening, path: str) -> None:
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            method = channel.unary_unary(path)
            for metadata in ((), ((f"{PREFIX}admin-key", "Sesame"),), (("admin-key", "sesame"),)):
                assert refusal(lambda m=metadata: method(b"", metadata=m)) == (Status.UNAVAILABLE, self.TEXT)

    def test_row_56_with_its_key_a_method_is_answered(self, listen: Listening) -> None:
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", metadata=self.RIGHT) == b"\x08\x01"
            assert service_pb2.ModelInferResponse.FromString(
                channel.unary_unary(INFER)(message(), metadata=self.RIGHT)
            ).raw_output_contents == [bytes(4)]

    @pytest.mark.parametrize("values", [("sesame", "Sesame"), ("Sesame", "sesame"), ("sesame", "sesame")])
    def test_key_that_is_given_twice_is_refused(self, listen: Listening, values: tuple[str, ...]) -> None:
        """A proxy in front may have looked at the other one."""
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            method = channel.unary_unary("/grpc.health.v1.Health/Check")
            metadata = [(name, value) for name, _ in self.RIGHT for value in values]
            assert refusal(lambda: method(b"", metadata=metadata)) == (Status.UNAVAILABLE, self.TEXT)

    def test_row_57_a_stream_ends_with_the_refusal(self, listen: Listening, engine: FakeServer) -> None:
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            method = channel.stream_stream(STREAM)
            expected = (Status.UNAVAILABLE, self.TEXT)
            assert refusal(lambda: list(method(iter([message()]), timeout=20))) == expected
            assert engine.seen == []
            assert len(list(method(iter([message()]), metadata=self.RIGHT, timeout=20))) == 1

    def test_a_connection_that_was_let_in_once_is_asked_again(self, listen: Listening) -> None:
        """Heads that repeat are not read again, and differ where the key does."""
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            for _ in range(3):
                assert live(b"", metadata=self.RIGHT)
                assert refusal(lambda: live(b""))[0] is Status.UNAVAILABLE
                assert refusal(lambda: live(b"", metadata=((f"{PREFIX}admin-key", "open"),)))[0] is Status.UNAVAILABLE

    def test_each_group_has_its_own_key_and_the_rest_is_open(self, listen: Listening) -> None:
        groups = (RestrictedGroup(("health",), "a", "1"), RestrictedGroup(("metadata", "model-config"), "b", "2"))
        with connected(listen(restricted=groups)) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            metadata = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
            assert live(b"", metadata=((f"{PREFIX}a", "1"),))
            assert refusal(lambda: live(b"", metadata=((f"{PREFIX}b", "2"),)))[1].endswith(f"'{PREFIX}a'")
            assert metadata(b"", metadata=((f"{PREFIX}b", "2"),))
            assert refusal(lambda: metadata(b""))[1].endswith(f"'{PREFIX}b'")
            assert channel.unary_unary(INFER)(message())

    def test_a_method_that_is_not_there_is_unimplemented(self, listen: Listening) -> None:
        with connected(listen(restricted=self.EVERYTHING)) as channel:
            assert refusal(lambda: channel.unary_unary("/no.Service/Nope")(b""))[0] is Status.UNIMPLEMENTED


class TestForwarding:
    METADATA = (("x-user", "ann"), ("y-team", "b"), ("x-raw-bin", b"\xffab"), ("my-x-tag", "t"))

    def infer(self, listener: Any, metadata: Any = METADATA, **fields: Any) -> None:
        with connected(listener) as channel:
            channel.unary_unary(INFER)(message(**fields), metadata=metadata, timeout=20)

    def test_row_58_metadata_become_parameters(self, listen: Listening, engine: FakeServer) -> None:
        self.infer(listen(header_forward_pattern="^X-"))
        assert engine.seen[0].parameters == {"x-user": "ann", "x-raw-bin": "\ufffdab"}

    def test_row_58_in_a_stream_for_every_request(self, listen: Listening, engine: FakeServer) -> None:
        with connected(listen(header_forward_pattern="x-.*")) as channel:
            method = channel.stream_stream(STREAM)
            assert len(list(method(iter([message(), message()]), metadata=self.METADATA, timeout=20))) == 2
        expected = {"x-user": "ann", "x-raw-bin": "\ufffdab", "my-x-tag": "t"}
        assert [request.parameters for request in engine.seen] == [expected] * 2

    def test_case_matters_where_the_pattern_says_so(self, listen: Listening, engine: FakeServer) -> None:
        self.infer(listen(header_forward_pattern="(?-i)^X-"))
        assert engine.seen[0].parameters == {}

    def test_a_parameter_of_the_request_gives_way(self, listen: Listening, engine: FakeServer) -> None:
        fields = {"parameters": {"x-user": service_pb2.InferParameter(string_param="bob")}}
        self.infer(listen(header_forward_pattern="^x-user$"), **fields)
        assert engine.seen[0].parameters == {"x-user": "ann"}

    def test_what_grpc_itself_says_is_not_forwarded(self, listen: Listening, engine: FakeServer) -> None:
        self.infer(listen(header_forward_pattern=".*"), metadata=(("x", "1"),))
        assert {name: value for name, value in engine.seen[0].parameters.items() if name != "user-agent"} == {"x": "1"}

    def test_requests_of_one_connection_have_each_their_own(self, listen: Listening, engine: FakeServer) -> None:
        with connected(listen(header_forward_pattern="^x-")) as channel:
            for value in ("a", "b", "a", None, "b"):
                metadata = () if value is None else (("x-user", value),)
                channel.unary_unary(INFER)(message(), metadata=metadata, timeout=20)
        seen = [request.parameters.get("x-user") for request in engine.seen]
        assert seen == ["a", "b", "a", None, "b"]

    @pytest.mark.parametrize("name", ["sequence_id", "priority", "headers", "triton_anything"])
    def test_reserved_names_are_refused(self, listen: Listening, name: str) -> None:
        """HTTP spec, section 16; in a stream the text comes as any other."""
        text = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        metadata = ((name, "1"),)
        with connected(listen(header_forward_pattern="^(sequence|prio|head|triton)")) as channel:
            unary = channel.unary_unary(INFER)
            assert refusal(lambda: unary(message(), metadata=metadata)) == (Status.INVALID_ARGUMENT, text)
            (answer,) = channel.stream_stream(STREAM)(iter([message()]), metadata=metadata, timeout=20)
            assert service_pb2.ModelStreamInferResponse.FromString(answer).error_message == text

    def test_other_methods_take_no_notice(self, listen: Listening) -> None:
        with connected(listen(header_forward_pattern=".*")) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(
                b"", metadata=(("triton_anything", "1"),)
            )

    def test_binary_values_are_read_as_the_wire_has_them(self) -> None:
        """Padding may be left out; what is no base64 stays."""
        encoded = base64.b64encode(b"abcd").rstrip(b"=")
        fields = [(b"a-bin", encoded), (b"b-bin", b"!"), (b"c", encoded), (b":path", b"/"), (b"te", b"trailers")]
        picked = HeaderForwarding(".").pick_encoded(fields)
        assert picked == (("a-bin", "abcd"), ("b-bin", ""), ("c", encoded.decode()))

    def test_a_reserved_name_leaves_the_request_as_it_was(self) -> None:
        request = InferenceRequest("m", None)
        with pytest.raises(InferenceError):
            forward(request, (("Triton_x", "1"),))
        assert request.parameters == {}


class TestSizes:
    LIMIT = 1 << 17

    def test_a_message_over_the_limit_is_refused_and_the_next_is_served(self, listen: Listening) -> None:
        with connected(listen(max_message_bytes=self.LIMIT)) as channel:
            unary = channel.unary_unary(INFER)
            for compression in (None, grpc.Compression.Gzip, grpc.Compression.Deflate):
                code, text = refusal(lambda c=compression: unary(message(1 << 20), compression=c))
                assert code is Status.RESOURCE_EXHAUSTED
                assert "larger than max" in text
                assert unary(message(self.LIMIT - 1000), compression=compression)

    def test_a_stream_ends_at_a_message_over_the_limit(self, listen: Listening) -> None:
        with connected(listen(max_message_bytes=self.LIMIT)) as channel:
            for compression in (None, grpc.Compression.Gzip):
                requests = iter([message(), message(1 << 20)])
                answers = channel.stream_stream(STREAM)(requests, compression=compression, timeout=20)
                code, _ = refusal(lambda a=answers: list(a))
                assert code is Status.RESOURCE_EXHAUSTED


class TestOwnTransport:
    """What grpcio is not asked about."""

    LIMIT = TestSizes.LIMIT

    @pytest.fixture
    def start(self) -> Any:
        return start_http2

    def test_a_bomb_takes_no_more_memory_than_the_limit(self, listen: Listening) -> None:
        """A hundred mebibytes in a tenth of one."""
        deflater = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
        data = b"".join(deflater.compress(bytes(1 << 20)) for _ in range(100)) + deflater.flush()
        assert len(data) < self.LIMIT
        before = peak_memory_kib()
        with Http2Peer.connect(listen(max_message_bytes=self.LIMIT)) as peer:
            peer.send(peer.headers(1, headers_of(grpc_encoding="gzip")))
            body = prefixed(data, 1)
            for at in range(0, len(body), 1 << 14):
                piece = body[at : at + (1 << 14)]
                peer.send(frame(DATA, END_STREAM if at + len(piece) == len(body) else 0, 1, piece))
            assert peer.answer(1).trailers["grpc-status"] == "8"
        assert peak_memory_kib() - before < 50 << 10


def peak_memory_kib() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


class TestConnections:
    @pytest.mark.parametrize("greeting", [b"", PREFACE[:10]])
    def test_a_client_that_does_not_greet_is_cut_off(self, listen: Listening, greeting: bytes) -> None:
        listener = listen(handshake_timeout_ms=100)
        with socket.create_connection((listener.host, listener.port), 10) as sock:
            sock.sendall(greeting)
            receive_all(sock)

    def test_a_client_that_ends_its_side_has_its_call_cancelled(self, listen: Listening, engine: FakeServer) -> None:
        """Of a connection of HTTP/2 neither side is any use alone; half of a call is ended by END_STREAM."""
        with Http2Peer.connect(listen()) as peer:
            peer.request(1, message(model="waiting"))
            assert engine.entered.wait(10)
            peer.sock.shutdown(socket.SHUT_WR)
            assert engine.cancelled.wait(10)
            assert DATA not in [found.kind for found in peer.until_closed()]

    def test_two_servers_share_a_port(self, listen: Listening) -> None:
        first = listen(reuse_port=True)
        second = listen(port=first.port, reuse_port=True)
        assert second.port == first.port
        with connected(second) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")

    def test_a_unix_socket_is_served_and_its_file_removed(
        self, listen: Listening, short_path: Path, loop: LoopThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = short_path / "g.sock"
        with caplog.at_level("INFO", logger="pytriton_lite"):
            listener = listen(address=f"unix:{path}", port=8001)
        assert f"Started GRPCInferenceService at unix:{path}" in caplog.text
        assert (listener.address, listener.port) == (f"unix:{path}", 0)
        with InferenceServerClient(f"unix:{path}") as client:
            tensor = InferInput("X", [4], "UINT8").set_data_from_numpy(np.ones(4, np.uint8))
            assert client.infer("echo", [tensor]).as_numpy("X").tolist() == [1] * 4
        with pytest.raises(ListenError, match=f"^Socket 'unix:{path}' already in use $"):
            listen(address=f"unix:{path}")
        assert loop.run(listener.stop(10)) is True
        assert not path.exists()

    def test_a_stale_unix_socket_is_replaced_and_another_file_is_not(self, listen: Listening, short_path: Path) -> None:
        stale, notes = short_path / "stale.sock", short_path / "notes"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(stale))
        with connected(listen(address=f"unix:{stale}")) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")
        notes.write_text("mine")
        with pytest.raises(ListenError, match=r"and is no socket$"):
            listen(address=f"unix:{notes}")
        assert notes.read_text() == "mine"

    def test_tls_over_a_unix_socket(self, listen: Listening, certificates: Certificates, short_path: Path) -> None:
        listener = listen(address=f"unix:{short_path / 'g.sock'}", tls=certificates.options())
        credentials = grpc.ssl_channel_credentials(certificates.root.read_bytes())
        arguments = (("grpc.ssl_target_name_override", "localhost"),)
        with grpc.secure_channel(listener.address, credentials, options=arguments) as channel:
            assert channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"")

    def test_a_folder_that_is_not_there_is_told(self, listen: Listening, tmp_path: Path) -> None:
        with pytest.raises(ListenError, match=r"^Socket 'unix:.*/none/g\.sock' cannot be bound: "):
            listen(address=f"unix:{tmp_path / 'none' / 'g.sock'}")


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
class TestHttp2OverTls:
    """Our own transport on TLS, which cannot end one side alone, over either loop."""

    @pytest.fixture
    def loop(self, kind: str) -> Iterator[LoopThread]:
        new_loop = asyncio.new_event_loop if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop
        thread = LoopThread(new_loop())
        yield thread
        thread.close()

    @pytest.fixture
    def start(self) -> Any:
        return start_http2

    def test_a_broken_protocol_is_told_before_it_closes(self, listen: Listening, certificates: Certificates) -> None:
        listener = listen(tls=certificates.options())
        context = certificates.client_context()
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((listener.host, listener.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(PREFACE + settings() + frame(DATA, 0, 0, b"x"))
            assert kinds_of(receive_all(secure))[-1] == GOAWAY

    def test_large_answers_arrive_and_a_stop_waits_for_them(
        self, listen: Listening, certificates: Certificates, engine: FakeServer, loop: LoopThread
    ) -> None:
        listener = listen(tls=certificates.options())
        with InferenceServerClient(listener.address, ssl=True, root_certificates=str(certificates.root)) as client:
            tensor = InferInput("X", [24 << 20], "UINT8").set_data_from_numpy(np.ones(24 << 20, np.uint8))
            assert client.infer("echo", [tensor]).as_numpy("X").sum() == 24 << 20
            assert loop.run(listener.stop(10)) is True
            with pytest.raises(InferenceServerException):
                client.is_server_live()


def kinds_of(data: bytes) -> list[int]:
    """The types of the frames in *data*."""
    kinds = []
    while data:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds
