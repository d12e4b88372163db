"""Remote repositories on the loopback: an S3 by moto, and a web server with TLS."""

from __future__ import annotations

import contextlib
import functools
import logging
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

ACCESS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTS",
    "AWS_SECRET_ACCESS_KEY": "the-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""Variables with which a server reads from `S3`; moto takes any."""


class S3:
    """A bucket called ``models``. ``requests`` are (method, path with query), in the order in which they came.

    ``answers`` cleared lets it say nothing until it is set again.
    """

    def __init__(self, port: int, requests: list[tuple[str, str]], answers: threading.Event) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        self.requests = requests
        self.answers = answers
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://{self.endpoint}",
            aws_access_key_id=ACCESS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ACCESS["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket="models")

    def url(self, path: str) -> str:
        return f"s3://{self.endpoint}/models/{path}"

    def put(self, key: str, content: str | bytes) -> None:
        self.client.put_object(Bucket="models", Key=key, Body=content)

    def put_folder(self, prefix: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def delete(self, *keys: str) -> None:
        self.client.delete_objects(Bucket="models", Delete={"Objects": [{"Key": key} for key in keys]})

    def delete_below(self, prefix: str) -> None:
        found = self.client.list_objects_v2(Bucket="models", Prefix=prefix)
        self.delete(*(entry["Key"] for entry in found["Contents"]))


@contextlib.contextmanager
def running_s3() -> Iterator[S3]:
    requests: list[tuple[str, str]] = []
    answers = threading.Event()
    answers.set()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it writes a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _record(server, requests, answers)
    port = server.get_host_and_port()[1]
    # What another server of this process was given is still there.
    urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/reset", data=b"", timeout=60).close()
    try:
        yield S3(port, requests, answers)
    finally:
        answers.set()
        server.stop()


def _record(server: Any, requests: list[tuple[str, str]], answers: threading.Event) -> None:
    application = server._server.app
    lock = threading.Lock()

    def recording(environ: dict[str, Any], start_response: Any) -> Any:
        requests.append((environ["REQUEST_METHOD"], f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"))
        answers.wait()
        with lock:  # as in S3, nobody sees the half of a deletion
            return application(environ, start_response)

    server._server.app = recording


class WebServer(ThreadingHTTPServer):
    """Serves the files of a folder and lists them. ``requests`` are (method, path, Authorization).

    ``redirects`` are places by path, and ``refused`` the paths that nobody may read. ``breaking`` says how many more answers
    of a path break off in the middle.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.requests: list[tuple[str, str, str]] = []
        self.redirects: dict[str, str] = {}
        self.refused: set[str] = set()
        self.breaking: dict[str, int] = {}
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.is_tls = False

    @property
    def url(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://127.0.0.1:{self.server_address[1]}"


class _Handler(SimpleHTTPRequestHandler):
    server: WebServer

    def send_head(self) -> Any:
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
        if self.path in self.server.refused:
            self.send_error(403)
            return None
        place = self.server.redirects.get(self.path)
        if place is None:
            return super().send_head()
        self.send_response(302)
        self.send_header("Location", place)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if self.server.breaking.get(self.path, 0) == 0:
            super().copyfile(source, outputfile)
        else:
            self.server.breaking[self.path] -= 1
            outputfile.write(source.read(1))  # and the connection ends

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextlib.contextmanager
def running_web_server(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    server = WebServer(folder)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.is_tls = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()
