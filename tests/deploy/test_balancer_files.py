"""The configurations of deploy/balancers: taken by the programs, where those are installed, for any number of servers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from balancers import NAMES, PACKAGES, command, configuration, find_program
from measured_server import Ports

from tests.harness import PROJECT

SERVERS = [Ports(http, http + 1, http + 2) for http in (20_000, 20_010, 20_020)]
PORTS = Ports(21_000, 21_001, 21_002)
CHECKS = {"haproxy": ["-c"], "nginx": ["-t"], "envoy": ["--mode", "validate"]}


@pytest.mark.parametrize("name", NAMES)
def test_every_server_is_named_in_every_backend(name: str, tmp_path: Path) -> None:
    text = configuration(name, SERVERS, PORTS, tmp_path)
    assert "10.0.0." not in text
    assert "0.0.0.0" not in text
    counts = {port: text.count(str(port)) for server in SERVERS for port in (server.http, server.grpc)}
    assert set(counts.values()) == {2}  # the pool of all requests, and that of sequences
    assert (text.count(str(PORTS.http)), text.count(str(PORTS.grpc))) == (1, 1)


def test_the_short_form_for_nginx_takes_bodies_as_the_file_does() -> None:
    """docs/operations.md."""
    texts = [(PROJECT / name).read_text() for name in ("docs/operations.md", "deploy/balancers/nginx.conf")]
    page, file = (re.findall(r"^ *(client_.*?;)", text, re.MULTILINE) for text in texts)
    assert page == file != []


@pytest.mark.parametrize("name", NAMES)
def test_the_program_takes_it(name: str, tmp_path: Path) -> None:
    if find_program(name) is None:
        pytest.skip(f"{name} is not installed: {PACKAGES[name]}")
    file = tmp_path / NAMES[name]
    file.write_text(configuration(name, SERVERS, PORTS, tmp_path))
    done = subprocess.run([*command(name, file), *CHECKS[name]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[warn" not in (done.stdout + done.stderr).lower()
