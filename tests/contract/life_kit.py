"""Models that come and go in tests: what they answer, what holds them, and what a running server says of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.contract.wire_models import Gate, tensors, wait_until
from tests.harness import Reply, RunningServer, tensor, until

EXPLICIT = "--model-control-mode=explicit"
OUT = tensors("output", ("OUT", "INT32", "1"))
CONFIG = f'backend: "python"\n{OUT}'
ADDER_CONFIG = CONFIG + tensors("input", ("IN", "INT32", "1"))
ALL_VERSIONS = f"version_policy {{ all {{ }} }}\n{CONFIG}"
BROKEN = "raise RuntimeError('broken on purpose')"


def code(value: int, *, finalize: str = "pass", initialize: str = "pass") -> str:
    """A model that answers *value*."""
    return f"""
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        out = np.array([{value}], np.int32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]

    def finalize(self):
        {finalize}
"""


def adder(value: int, *, execute: str = "pass", **statements: str) -> str:
    """A model with `ADDER_CONFIG` that answers its input and *value*."""
    text = code(value, **statements).replace("np.array([", "requests[0].inputs()[0].as_numpy() + np.array([")
    return text.replace("        out = ", f"        {execute}\n        out = ")


def ensemble(*models: str, version: int = -1) -> str:
    """A configuration: the input goes through all *models*, one after the other."""
    last = len(models) - 1
    steps = "\n".join(
        f'''step {{ model_name: "{model}" model_version: {version}
            input_map {{ key: "IN" value: "{f"T{at}" if at else "IN"}" }}
            output_map {{ key: "OUT" value: "{f"T{at + 1}" if at < last else "OUT"}" }} }}'''
        for at, model in enumerate(models)
    )
    return f'platform: "ensemble"\n{tensors("input", ("IN", "INT32", "1"))}\n{OUT}\nensemble_scheduling {{ {steps} }}'


@contextmanager
def closed_gate(folder: Path) -> Iterator[Gate]:
    """A gate that is open in the end, whatever happens."""
    gate = Gate(folder / "gate")
    try:
        yield gate
    finally:
        gate.open()


def waits(gate: Gate) -> str:
    """A statement that waits for *gate*, after it has told `Gate.wait_held`."""
    return f"print('holding {gate.path}', flush=True); open({gate.path!r}).read()"


def load(server: RunningServer, name: str, **parameters: Any) -> Reply:
    return server.post(f"/v2/repository/models/{name}/load", {"parameters": parameters} if parameters else b"")


def unload(server: RunningServer, name: str, *, dependents: bool = False) -> Reply:
    body = {"parameters": {"unload_dependents": True}} if dependents else b""
    return server.post(f"/v2/repository/models/{name}/unload", body)


def must_load(server: RunningServer, name: str, **parameters: Any) -> None:
    reply = load(server, name, **parameters)
    assert (reply.status, reply.body) == (200, b"")


def rows_of(server: RunningServer, name: str) -> dict[str, tuple[str, str]]:
    """(state, first line of the reason) by version, of a model that is in the index."""
    rows = [row for row in server.post("/v2/repository/index").json if row["name"] == name]
    return {
        row["version"]: (row["state"], row.get("reason", "").partition("\n")[0]) for row in rows if "version" in row
    }


def is_ready(server: RunningServer, name: str = "") -> bool:
    return server.get(f"/v2/models/{name}/ready" if name else "/v2/health/ready").status == 200


def value_of(server: RunningServer, name: str, version: str = "", **inputs: int) -> int:
    """What a model answers, by its *inputs*."""
    path = f"/v2/models/{name}{f'/versions/{version}' if version else ''}/infer"
    reply = server.post(path, {"inputs": [tensor(key, "INT32", [1], [value]) for key, value in inputs.items()]})
    assert reply.status == 200, reply.body
    value: int = reply.json["outputs"][0]["data"][0]
    return value


def wait_unloaded(server: RunningServer, name: str) -> None:
    wait_until(lambda: all(row == ("UNAVAILABLE", "unloaded") for row in rows_of(server, name).values()))


def insist_on_the_end(server: RunningServer) -> None:
    """Signal until the server has ended, as whoever does not wait: within a second of the first, signals are one wish to it."""

    def has_ended() -> bool:
        server.process.send_signal(signal.SIGTERM)
        return server.process.poll() is not None

    until(has_ended)


def shape_a(name: str) -> str:
    return f"failed to load '{name}', failed to poll from model repository"
