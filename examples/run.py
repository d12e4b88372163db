"""Run an example from beginning to end: start a server with its models, run its client, stop the server.

python examples/run.py decoupled
python examples/run.py            # names them all

The exit code is that of the client, or 1 where the server did not start or did not end well. What the server wrote
is shown when something went wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
SHIPPED = EXAMPLES.parent / "model_repository"
CLIENT_TIMEOUT_S = 120
STOP_TIMEOUT_S = 40
# The server prints where it listens; when the metrics are there, the models are ready, too.
ADDRESS = re.compile(r"Started (GRPCInferenceService|HTTPService|Metrics Service) at [^\s\"]+:(\d+)")
LAST_SERVICE = "Metrics Service"

HTTP, GRPC, METRICS = "{HTTPService}", "{GRPCInferenceService}", "{Metrics Service}"
"""Where the arguments of a client have the host and port of a service."""


@dataclass(frozen=True)
class Example:
    """*client* is the command line behind ``python``; *needs* are modules that its models import."""

    about: str
    client: tuple[str, ...]
    repositories: tuple[Path, ...]
    needs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Further ones of the server."""


def folder(name: str, *arguments: str, about: str, needs: tuple[str, ...] = (), shipped: bool = False) -> Example:
    """An example with a folder of its own; *shipped* when its models use those of model_repository/."""
    repositories = (EXAMPLES / name / "models",) + ((SHIPPED,) if shipped else ())
    return Example(about, (f"{name}/client.py", *arguments), repositories, needs)


def script(name: str, *arguments: str, about: str, needs: tuple[str, ...] = ()) -> Example:
    """A client of a model of model_repository/."""
    return Example(about, (f"{name}.py", "--url", HTTP, *arguments), (SHIPPED,), needs)


ALL = {
    "add_sub": script("add_sub", "1", "2", "3", "4", "10", "20", "30", "40", about="the smallest model"),
    "auto_complete": folder("auto_complete", "--url", HTTP, about="models without config.pbtxt"),
    "bls": folder("bls", "--url", HTTP, about="models that call models, one or two at once", shipped=True),
    "bls_decoupled": folder("bls_decoupled", "--url", HTTP, about="models that call a decoupled model"),
    "chat": folder(
        "chat",
        "--url",
        HTTP,
        about="a transformer that is chatted with through OpenAI's API, word by word",
        needs=("torch", "openai", "jinja2"),
    ),
    "custom_metrics": folder(
        "custom_metrics", "--url", HTTP, "--metrics-url", METRICS, about="a counter, a gauge and a histogram of a model"
    ),
    "decoupled": folder("decoupled", "--url", GRPC, about="any number of responses to a request"),
    "embeddings": folder("embeddings", "--url", HTTP, about="vectors of texts through OpenAI's API"),
    "ensemble": folder("ensemble", "--url", HTTP, about="three models as one, put together by configuration alone"),
    "generate": folder("generate", "--url", HTTP, about="texts over plain HTTP and JSON, word by word"),
    "gpu_chain": Example(
        "CuPy on a GPU: three models, and a client's GPU memory",
        ("gpu_chain/client.py", "--url", HTTP),
        (EXAMPLES / "gpu_chain" / "models",),
        needs=("cupy", "cuda"),
        flags=("--allow-client-shm=true",),
    ),
    "image_preprocessing": script(
        "image_preprocessing", str(EXAMPLES / "data/scene.jpg"), about="image files to arrays", needs=("PIL",)
    ),
    "instance_kind": folder("instance_kind", "--url", HTTP, about="several instances, on devices of their own"),
    "jax_add_sub": folder("jax_add_sub", "--url", GRPC, about="JAX", needs=("jax",)),
    "preprocessing": folder(
        "preprocessing", "--url", HTTP, about="image files to labels in three steps", needs=("PIL",), shipped=True
    ),
    "pytorch_add_sub": folder("pytorch_add_sub", "--url", GRPC, about="PyTorch", needs=("torch",)),
    "rescheduling": folder("rescheduling", "--url", GRPC, about="a request that is executed in many steps"),
    "string_tensors": folder("string_tensors", "--url", HTTP, "--grpc-url", GRPC, about="texts in and out"),
    "text_classification": script(
        "text_classification", "An instant classic, brilliantly acted.", about="a trained model of texts"
    ),
    "text_pipeline": folder("text_pipeline", "--url", HTTP, about="a pipeline as one model, and as a model per step"),
}


class Server:
    """``pytriton-lite serve`` on free ports of this machine. READY inside ``with``; leaving stops it."""

    def __init__(self, repositories: Sequence[Path], flags: Sequence[str] = ()) -> None:
        ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
        addresses = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
        serve = [sys.executable, "-m", "pytriton_lite", "serve", *map(str, repositories)]
        self._command = [*serve, *ports, *addresses, *flags]
        self._lines: list[str] = []
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace",
        )  # fmt: skip
        try:
            self._read_until_ready()
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        # From now on only so that the pipe does not fill up.
        self._reader = threading.Thread(target=self._read_on, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        finally:
            self.process.kill()  # nothing to kill, as a rule
            self.process.wait()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def _read_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if found := ADDRESS.search(line):
                self.addresses[found[1]] = f"127.0.0.1:{found[2]}"
                if found[1] == LAST_SERVICE:
                    return
        sys.exit(f"{self.log}the server did not start: exit code {self.process.wait()}")

    def _read_on(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)


def run(example: Example) -> int:
    missing = [module for module in example.needs if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f"this example needs {' and '.join(missing)}, which this Python does not have: {sys.executable}")
    with Server(example.repositories, example.flags) as server:
        client = [sys.executable, str(EXAMPLES / example.client[0])]
        client += [argument.format_map(server.addresses) for argument in example.client[1:]]
        try:
            code = subprocess.run(client, timeout=CLIENT_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            print(f"the client did not end within {CLIENT_TIMEOUT_S} s", file=sys.stderr)
            code = 1
    if code == 0 and server.process.returncode == 0:
        return 0
    print(server.log, end="", file=sys.stderr)
    print(f"client: exit code {code}, server: {server.process.returncode}", file=sys.stderr)
    return code or 1


def names() -> str:
    return "\n".join(f"  {name:<20} {example.about}" for name, example in ALL.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Start a server with the models of an example, run its client, stop the server.",
        epilog=f"examples:\n{names()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=ALL, metavar="NAME", help="none: print the names")
    chosen = parser.parse_args().name
    if chosen is None:
        print(names())
    else:
        # As an exception, so that the server is stopped on the way out.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        sys.exit(run(ALL[chosen]))
