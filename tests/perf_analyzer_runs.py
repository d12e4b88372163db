"""Runs NVIDIA's perf_analyzer in every way that it knows to ask, each for a moment, and looks for complaints.

    python tests/perf_analyzer_runs.py PATH_OF_PERF_ANALYZER [NAME ...]

Not for speed, but for what it says: perf_analyzer reads metadata, configuration, statistics and metrics its own way, and uses
the C++ clients. A run is clean when it ends with status 0, measures something, prints no line of a warning or an error but
those of `EXPECTED`, and the server logs neither. JSON tensors are left out: what perf_analyzer 2.51 sends of them has the
wrong length, for Triton too. NAMEs select runs. The exit code is 1 where a run is not clean.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PROJECT))

from tests.contract.wire_models import identity_config, write_wire_models  # noqa: E402  # by path, too
from tests.harness import RunningServer, write_model  # noqa: E402

BRIEFLY = ("--measurement-interval", "300", "--stability-percentage", "999", "--max-trials", "3")
TIMEOUT_S = 120

COUNTING = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # As many responses as INPUT0 says, and the last flag alone.
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(request.inputs()[0].as_numpy()[0])):
                    out = pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

TWO_EACH = '{"data": [{"INPUT0": [2]}]}'

EXPECTED = {r"Unable to parse 'nv_gpu_\w+' metric": "there is no GPU, nor would Triton have these without one"}
"""Lines of perf_analyzer that are not about the server: a pattern, and why."""

_COMPLAINT = re.compile(
    r"(?i)\b(warn(ing)?|error|fail(ed|ure)?|unable|cannot|unsupported|invalid|exception|not stable)\b"
)
_LOGGED = re.compile(r"^[WE]\d{4} |Traceback", re.MULTILINE)
_THROUGHPUT = re.compile(r"Throughput: ([\d.]+)")


@dataclass(frozen=True)
class Run:
    name: str
    protocol: str
    """http or grpc, as ``-i`` has it."""
    arguments: tuple[str, ...]
    counts_responses: bool = False
    """It has to measure more responses than requests."""


def runs(folder: Path) -> Iterator[Run]:
    two_each = folder / "two_each.json"
    two_each.write_text(TWO_EACH)
    for protocol in ("http", "grpc"):
        yield Run(f"{protocol} sync", protocol, ("-m", "add_sub", "--sync"))
        yield Run(f"{protocol} async", protocol, ("-m", "add_sub", "--async", "--concurrency-range", "4"))
        yield Run(f"{protocol} request count", protocol, ("-m", "add_sub", "--request-count", "50"))
        yield Run(f"{protocol} request rate", protocol, ("-m", "add_sub", "--request-rate-range", "20"))
        yield Run(f"{protocol} batch", protocol, ("-m", "ident_b", "-b", "4", "--shape", "INPUT0:16"))
        yield Run(f"{protocol} bytes", protocol, ("-m", "ident_bytes", "--shape", "INPUT0:3", "--string-length", "9"))
        yield Run(f"{protocol} every datatype", protocol, ("-m", "every_datatype", *every_shape()))
        yield Run(f"{protocol} zero data", protocol, ("-m", "add_sub", "--input-data", "zero", "--percentile", "99"))
        yield Run(f"{protocol} traced", protocol, ("-m", "add_sub", *traced()))
        yield Run(f"{protocol} version", protocol, ("-m", "multi", "-x", "1"))
        yield Run(
            f"{protocol} sequences",
            protocol,
            ("-m", "sequence", "--concurrency-range", "2", "--sequence-length", "5", "--async"),
        )
        yield Run(
            f"{protocol} system shared memory", protocol, ("-m", "ident_b", "--shape", "INPUT0:4096", *in_regions())
        )
        yield Run(
            f"{protocol} system shared memory, async",
            protocol,
            ("-m", "add_sub", "--async", "--concurrency-range", "4", *in_regions()),
        )
        yield Run(f"{protocol} verbose report", protocol, ("-m", "add_sub", "-v", "-f", str(folder / "report.csv")))
    yield Run("grpc parameters", "grpc", ("-m", "params", "--request-parameter", "key:5:int"))
    yield Run(
        "grpc compression", "grpc", ("-m", "ident_b", "--shape", "INPUT0:4096", "--grpc-compression-algorithm", "gzip")
    )
    streaming = ("--streaming", "--async")
    yield Run("stream", "grpc", ("-m", "add_sub", *streaming, "--concurrency-range", "4"))
    yield Run("stream request rate", "grpc", ("-m", "add_sub", *streaming, "--request-rate-range", "20"))
    yield Run("stream bytes", "grpc", ("-m", "ident_bytes", *streaming, "--shape", "INPUT0:3"))
    yield Run("stream system shared memory", "grpc", ("-m", "add_sub", *streaming, *in_regions()))
    yield Run(
        "stream sequences",
        "grpc",
        ("-m", "sequence", *streaming, "--concurrency-range", "3", "--sequence-length", "5"),
    )
    decoupled = ("-m", "counting", *streaming, "--input-data", str(two_each))
    yield Run("decoupled", "grpc", decoupled, counts_responses=True)
    yield Run("decoupled, concurrent", "grpc", (*decoupled, "--concurrency-range", "4"), counts_responses=True)


def in_regions() -> tuple[str, ...]:
    return ("--shared-memory", "system", "--output-shared-memory-size", "65536")


def traced() -> tuple[str, ...]:
    return ("--trace-level", "TIMESTAMPS", "--trace-rate", "10", "--trace-count", "20", "--log-frequency", "10")


def every_shape() -> list[str]:
    names = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 STRING"
    return [word for name in names.split() for word in ("--shape", f"INPUT_{name}:4")]


def write_models(repository: Path) -> None:
    write_wire_models(repository)
    for name in ("loadfail", "nofile"):  # which would be a reason for warnings
        (repository / name / "config.pbtxt").unlink()
        (repository / name).rename(repository / f".{name}")
    config = identity_config("INT32", "1", more="model_transaction_policy { decoupled: true }")
    write_model(repository, "counting", COUNTING, config)


def complaints(output: str) -> list[str]:
    lines = (line.strip() for line in output.splitlines())
    suspects = [line for line in lines if _COMPLAINT.search(line)]
    return [line for line in suspects if not any(re.search(pattern, line) for pattern in EXPECTED)]


def faults_of(run: Run, program: str, server: RunningServer) -> list[str]:
    """What was not clean. Prints what was measured."""
    url = server.http_url if run.protocol == "http" else server.grpc_url
    metrics = ("--collect-metrics", "--metrics-url", server.metrics_url, "--metrics-interval", "200")
    counted = () if "--request-count" in run.arguments else BRIEFLY
    command = [program, "-i", run.protocol, "-u", url, *run.arguments, *counted, *metrics]
    seen = len(server.log)
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return [f"did not end within {TIMEOUT_S} s"]
    output = ended.stdout + ended.stderr
    throughput = _THROUGHPUT.findall(output)
    print(f"{run.name:40} {' '.join(throughput) or '-':>10} infer/s")
    faults = complaints(output)
    if ended.returncode:
        faults.append(f"status {ended.returncode}: {output[-2000:]}")
    if not any(float(value) > 0 for value in throughput):
        faults.append(f"measured nothing: {output[-2000:]}")
    if run.counts_responses and "Response Throughput" not in output:
        faults.append(f"saw no more responses than requests: {output[-2000:]}")
    faults += [f"the server logged: {line}" for line in server.log[seen:].splitlines() if _LOGGED.search(line)]
    return faults


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="path of perf_analyzer")
    parser.add_argument("names", nargs="*", help="only runs whose name has one of these in it")
    parser.add_argument("--transport", default="http2", choices=("http2", "grpcio"), help="what carries gRPC")
    given = parser.parse_args(argv)
    unclean = 0
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder) / "models")
        flags = (
            "--allow-client-shm=true",
            f"--trace-config=triton,file={folder}/trace.json",
            f"--grpc-transport={given.transport}",
        )
        with RunningServer(Path(folder) / "models", flags=flags) as server:
            for run in runs(Path(folder)):
                if given.names and not any(name in run.name for name in given.names):
                    continue
                faults = faults_of(run, given.program, server)
                unclean += bool(faults)
                for fault in faults:
                    print(f"    {fault}")
    print(f"{unclean} runs are not clean" if unclean else "every run is clean")
    return int(unclean > 0)


if __name__ == "__main__":
    sys.exit(main())
