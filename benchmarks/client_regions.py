"""Shared memory of a client for the tensors of a call, registered with the servers that are measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmark_error import BenchmarkError
from calls import ANSWER_TIMEOUT_S, Call, Tensors, region_name
from measured_server import Ports

_FOLDER = Path("/dev/shm")


@dataclass(frozen=True)
class Region:
    """A segment of which all is registered under its own name."""

    name: str
    nbytes: int

    @property
    def path(self) -> Path:
        return _FOLDER / self.name


@contextlib.contextmanager
def registered(call: Call, servers: Iterable[Ports]) -> Iterator[None]:
    """Segments for the inputs and outputs of *call*, known to all *servers*. Raises BenchmarkError when one refuses."""
    if not _FOLDER.is_dir():
        raise BenchmarkError(f"client shared memory is measured on Linux alone, which has {_FOLDER}")
    with contextlib.ExitStack() as stack:
        for tensors in (call.inputs, call.responses[0]):
            for name, tensor in tensors.items():
                region = Region(region_name(call, name), tensor.nbytes)
                stack.callback(region.path.unlink, missing_ok=True)
                region.path.write_bytes(tensor.tobytes() if tensors is call.inputs else bytes(tensor.nbytes))
                region.path.chmod(0o666)  # the server may be somebody else's
                for ports in servers:
                    _post(ports.http, region, "register", {"key": f"/{region.name}", "byte_size": region.nbytes})
                    stack.callback(_unregister, ports.http, region)
        yield


def outputs_of(call: Call) -> Tensors:
    """What lies in the output regions now, which is made unlike any answer."""
    found = {}
    for name, tensor in call.responses[0].items():
        path = Region(region_name(call, name), tensor.nbytes).path
        found[name] = np.frombuffer(path.read_bytes(), np.float32)
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), b"\xff" * tensor.nbytes, 0)
    return found


def _unregister(port: int, region: Region) -> None:
    # A generator that has ended leaves its last requests to the server, and Triton refuses as long as they use the region.
    end_s = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            return _post(port, region, "unregister", {})
        except BenchmarkError as error:
            if "currently in use" not in str(error) or time.monotonic() > end_s:
                raise
            time.sleep(0.05)


def _post(port: int, region: Region, verb: str, body: dict[str, object]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request("POST", f"/v2/systemsharedmemory/region/{region.name}/{verb}", json.dumps(body))
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise BenchmarkError(f"{verb} of region {region.name}: status {response.status}: {text[:500]!r}")
