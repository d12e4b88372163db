"""A node that vanishes without a word: its packets go nowhere. Network namespaces make one, which takes root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from balancers import NAMES, PACKAGES, balancer, find_program
from measured_server import Ports

from tests.deploy.cluster.test_balancers import CONFIG, WHO, ask_http
from tests.harness import RunningServer, write_model

NODE = "10.231.77.2"
"""Of the namespace, behind a virtual cable: nothing leaves the machine."""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: ip {' '.join(arguments)}: {done.stderr.strip()}")


class Node:
    """A namespace with a cable, which can be cut."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cut(self) -> None:
        ip("-n", self.name, "link", "set", "inside", "down")

    def mend(self) -> None:
        ip("-n", self.name, "link", "set", "inside", "up")


@pytest.fixture
def node() -> Iterator[Node]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip of Debian's iproute2")
    name = f"pl-{os.getpid()}"
    outside = f"pl{os.getpid() % 100_000}"
    ip("netns", "add", name)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", "inside", "netns", name)
        ip("addr", "add", "10.231.77.1/30", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", name, "addr", "add", f"{NODE}/30", "dev", "inside")
        ip("-n", name, "link", "set", "inside", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield Node(name)
    finally:
        subprocess.run(["ip", "link", "del", outside], capture_output=True)
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture
def server(node: Node, tmp_path: Path) -> Iterator[RunningServer]:
    """A server on the node, which asks its clients for a sign of life."""
    write_model(tmp_path / "models", "who", WHO, CONFIG)
    flags = tuple(f"--{name}-address={NODE}" for name in ("http", "grpc", "metrics"))
    flags += ("--grpc-keepalive-time=500", "--grpc-keepalive-timeout=500")
    environ = {"POD": "1", "GATE": str(tmp_path / "gate")}
    python = ("ip", "netns", "exec", node.name, sys.executable)
    with RunningServer(tmp_path / "models", flags=flags, environ=environ, python=python) as server:
        yield server


def grpc_port(server: RunningServer) -> int:
    return int(server.grpc_url.rpartition(":")[2])


def test_both_ends_notice_by_keepalive(node: Node, server: RunningServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    ended = threading.Event()
    errors: list[object] = []

    def hear(result: object, error: object) -> None:
        errors.append(error)
        ended.set()

    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", 1000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    tensor = tritonclient.grpc.InferInput("IN", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    with tritonclient.grpc.InferenceServerClient(f"{NODE}:{grpc_port(server)}", channel_args=options) as client:
        client.async_infer("who", [tensor], hear)
        page = server.metrics_url.replace("127.0.0.1", NODE)
        while 'pytriton_lite_unanswered_requests{model="who",version="1"} 1' not in server.get(page).body.decode():
            pass
        node.cut()
        assert ended.wait(60)
        assert "UNAVAILABLE" in str(errors[0])
    gate.unlink()
    # The server heard nothing either, and gave the request up: nobody will read its answer.
    node.mend()
    while 'pytriton_lite_cancelled_requests{model="who",version="1"} 1' not in server.get(page).body.decode():
        pass
    with grpc.insecure_channel(f"{NODE}:{grpc_port(server)}") as channel:
        grpc.channel_ready_future(channel).result(30)


@pytest.mark.parametrize("name", NAMES)
def test_a_balancer_leaves_the_node_out(name: str, node: Node, server: RunningServer, tmp_path: Path) -> None:
    if find_program(name) is None:
        pytest.skip(f"{name} is not installed: {PACKAGES[name]}")
    environ = {"POD": "2", "GATE": str(tmp_path / "gate")}
    with RunningServer(tmp_path / "models", environ=environ) as other:
        ports = [Ports(one.http_port, grpc_port(one), 0) for one in (server, other)]
        with balancer(name, ports, tmp_path, hosts=[NODE, "127.0.0.1"]) as front:
            while {ask_http(front.http) for _ in range(4)} != {(200, 1), (200, 2)}:
                pass
            node.cut()
            in_a_row = 0
            while in_a_row < 20:
                try:
                    in_a_row = in_a_row + 1 if ask_http(front.http) == (200, 2) else 0
                except OSError:  # sent on a connection that was open: nobody can know what became of it
                    in_a_row = 0
