#!/usr/bin/env python3
"""How many times each byte of a large tensor is copied in memory, by process and by path.

    python benchmarks/copies.py --mib 4 --requests 20

Nobody has to be believed: memcpy and memmove of the C library are counted (copies.c, which needs a C compiler and Linux), in
calls of 64 KiB and more, while a client sends requests of one tensor to a model that sums it, and to one that makes another
tensor as large. What the kernel copies between a socket and memory comes on top: once in, once out. The figures are bytes
that were copied for each byte of the tensors that went in, and came out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as regions
from benchmark_error import BenchmarkError
from front_ends import PARTS, part_of
from machine_facts import machine_facts
from measured_server import SERVE, MeasuredServer, free_ports

MODELS = ("in", "out", "in_views", "out_views")
START_TIMEOUT_S = 60.0
WARM_UP = 3

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", {made})]))
        return answers
"""
CONFIG = """
backend: "python"
input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ kind: KIND_CPU }}
{more}
"""
VIEWS = 'parameters { key: "SHARED_MEMORY_VIEWS" value: { string_value: "yes" } }'


def write_models(models: Path) -> None:
    """``in`` reads a tensor, ``out`` makes one beside, each also with views of what others hold."""
    made = {"in": "array.sum(keepdims=True)", "out": "array + np.float32(1)"}
    for name, expression in made.items():
        for views in (False, True):
            folder = models / (f"{name}_views" if views else name)
            (folder / "1").mkdir(parents=True)
            (folder / "1" / "model.py").write_text(CODE.format(made=expression))
            (folder / "config.pbtxt").write_text(CONFIG.format(more=VIEWS if views else ""))


def copied(server: MeasuredServer, folder: Path) -> dict[str, int]:
    """Bytes that each part has copied up to now."""
    total = dict.fromkeys(PARTS, 0)
    for stat in server.tree.members():
        page = folder / str(stat.pid)
        if page.exists():
            total[part_of(stat.pid, server.tree.root)] += int.from_bytes(page.read_bytes()[:8], sys.byteorder)
    return total


def infer(module: Any, client: Any, model: str, array: np.ndarray[Any, Any]) -> None:
    given = module.InferInput("X", [array.size], "FP32")
    given.set_data_from_numpy(array)
    client.infer(model, [given])


@contextmanager
def in_regions(client: Any, array: np.ndarray[Any, Any]) -> Iterator[None]:
    """Regions ``x``, which holds *array*, and ``y``, of that size."""
    handles = []
    try:
        for name in ("x", "y"):
            key = f"/copies_{os.getpid()}_{name}"
            handles.append(regions.create_shared_memory_region(name, key, array.nbytes))
            client.register_system_shared_memory(name, key, array.nbytes)
        regions.set_shared_memory_region(handles[0], [array])
        yield
    finally:
        client.unregister_system_shared_memory()
        for handle in handles:
            regions.destroy_shared_memory_region(handle)


def infer_in_regions(module: Any, client: Any, model: str, array: np.ndarray[Any, Any]) -> None:
    given = module.InferInput("X", [array.size], "FP32")
    given.set_shared_memory("x", array.nbytes)
    wanted = module.InferRequestedOutput("Y")
    wanted.set_shared_memory("y", array.nbytes)
    client.infer(model, [given], outputs=[wanted])


def measure(
    server: MeasuredServer, folder: Path, ask: Callable[[], object], *, requests: int, nbytes: int
) -> dict[str, float]:
    """Times that each byte was copied, by part."""
    for _ in range(WARM_UP):
        ask()
    before = copied(server, folder)
    for _ in range(requests):
        ask()
    after = copied(server, folder)
    return {part: (after[part] - before[part]) / requests / nbytes for part in before}


def paths(server: MeasuredServer, array: np.ndarray[Any, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is asked: a name, and how. *out* paths bring as much in; the difference is theirs."""
    with (
        tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.ports.http}", network_timeout=60) as http,
        tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as grpc,
    ):
        for label, module, client in (("HTTP binary", tritonclient.http, http), ("gRPC", tritonclient.grpc, grpc)):
            for model in MODELS:
                yield f"{label}, {model.replace('_', ', ')}", partial(infer, module, client, model, array)
        with in_regions(http, array):
            for model in MODELS:
                name = f"system shared memory, {model.replace('_', ', ')}"
                yield name, partial(infer_in_regions, tritonclient.http, http, model, array)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=4, help="size of the tensor (default 4)")
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--front-ends", type=int, default=0, help="as --frontends of the server")
    chosen = parser.parse_args(arguments)
    array = np.arange(int(chosen.mib * (1 << 20)) // 4, dtype=np.float32)
    try:
        if sys.platform != "linux" or shutil.which("cc") is None:
            raise BenchmarkError("it needs Linux and a C compiler (cc)")
        with tempfile.TemporaryDirectory(prefix="copies_") as name:
            folder = Path(name)
            library = folder / "copies.so"
            source = Path(__file__).with_name("copies.c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-fno-builtin", "-o", library, source, "-ldl"], check=True)
            write_models(folder / "models")
            pages = folder / "pages"
            pages.mkdir()
            counted = f"env LD_PRELOAD={library} COPIES_FOLDER={pages}"
            command = f"{counted} {SERVE} --allow-client-shm=true --frontends={chosen.front_ends}"
            with MeasuredServer.started(
                "ours",
                command,
                models=folder / "models",
                ports=free_ports(),
                log=folder / "server.log",
                timeout_s=START_TIMEOUT_S,
            ) as server:
                for fact, value in machine_facts().items():
                    print(f"{fact}: {value}")
                print(f"\n{chosen.mib:g} MiB, --frontends={chosen.front_ends}: times each byte is copied in memory\n")
                print("| path | front end | engine | worker | together |")
                print("|---|---:|---:|---:|---:|")
                for path, ask in paths(server, array):
                    times = measure(server, pages, ask, requests=chosen.requests, nbytes=array.nbytes)
                    cells = [f"{times[part]:.2f}" for part in ("front ends", "engine", "workers")]
                    print(f"| {path} | {' | '.join(cells)} | {sum(times.values()):.2f} |", flush=True)
    except (BenchmarkError, subprocess.CalledProcessError) as error:
        print(f"copies: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
