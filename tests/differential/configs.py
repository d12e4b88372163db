"""Have a real Triton and us load the same configurations, and print where the two differ.

    python -m tests.differential.configs --peer-command 'tritonserver --model-repository={models} --http-port={http_port} \\
        --grpc-port={grpc_port} --metrics-port={metrics_port} --model-control-mode=explicit' --configurations 500 --seed 1

Each configuration of `config_mutations.py` is a model of one repository that both serve, in mode explicit. Each is
loaded, looked at, and unloaded. Compared are the answer to the load, what the log says of one that could not be polled, the
versions in the index with their reasons, and, of one that loads, its configuration and its metadata.

A difference that ``CONFIGURATIONS`` of `tests/differential/expected.py` explains, by a row of docs/compatibility.md, is
counted; any other is printed with the configuration, and the exit code is 1. A configuration that ends the peer, or that it
never answers to, is listed and not compared.

In the end the command ``check`` looks at the same repository: it must find an error in what our server refuses, with the
server's words among its own, and in nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.differential.asked_peers import Peer, Sent, Tally, ask, told
from tests.differential.config_mutations import generated, write_models
from tests.differential.expected import CONFIGURATIONS
from tests.harness import RunningServer

SEED = 1

_PARSER_SAYS = re.compile(r"Error parsing text-format inference\.ModelConfig: \d+:\d+: (.*)")
# Ours names the file in front of it, or the directory behind it.
_PLACE = re.compile(r"^\S+/config\.pbtxt:\d+:\d+: | \(in \S+\)$")
_OF_VERSIONS = re.compile(r"version \d+ is at .*?;(?=version \d+ is|\n?$)", re.DOTALL)
_NEWER = '"max_inflight_requests": 0, '  # Triton 2.51 does not know it


@dataclass(frozen=True)
class Outcome:
    """What became of a model, as text. Behind the answer to the load stands why it could not be polled."""

    load: str
    index: str
    config: str = ""
    metadata: str = ""


@dataclass(frozen=True)
class Asked:
    """A server that is asked. ``log`` is what it has logged, once it has told of the model of a name that it was not polled."""

    http: str
    log: Callable[[str], str]


def outcome_of(server: Asked, model: str) -> Outcome:
    """Load *model*, look at it, and unload it."""
    load = ask(server.http, Sent("load", "POST", f"/v2/repository/models/{model}/load"))
    if load.status != 200:
        polled = ": " + _why_not_polled(server.log(model), model) if "failed to poll" in load.content else ""
        return Outcome(_in_order(told(load)) + polled, _index(server, model))
    config, metadata = (ask(server.http, Sent("", "GET", f"/v2/models/{model}{tail}")) for tail in ("/config", ""))
    index = _index(server, model)
    ask(server.http, Sent("unload", "POST", f"/v2/repository/models/{model}/unload"))
    return Outcome(told(load), index, told(config).replace(_NEWER, ""), told(metadata))


def _in_order(text: str) -> str:
    """Versions are loaded side by side, and what is said of them comes in any order."""
    found = _OF_VERSIONS.findall(text)
    return text.replace("".join(found), "".join(sorted(found)))


def _why_not_polled(log: str, model: str) -> str:
    """Of a text that cannot be read, what the parser says first, without its place: the peer's does in lines in front."""
    before, _, behind = log.partition(f"Poll failed for model directory '{model}': ")
    lines = before.splitlines()[:-1]
    of_parser = takewhile(lambda line: line.startswith("[libprotobuf"), reversed(lines))
    said = [found[1] for line in of_parser if (found := _PARSER_SAYS.search(line))]
    return said[-1] if said else _PLACE.sub("", _unquoted(behind.partition("\n")[0]))


def _unquoted(line: str) -> str:
    """A log line's text stands in quotes, and escapes its own."""
    try:
        return str(json.loads('"' + line))
    except ValueError:
        return line.removesuffix('"')


def _index(server: Asked, model: str) -> str:
    reply = ask(server.http, Sent("index", "POST", "/v2/repository/index"))
    rows = [row for row in json.loads(reply.content) if row["name"] == model] if reply.kind == "json" else []
    return f"index {json.dumps(sorted(rows, key=lambda row: str(row.get('version'))), sort_keys=True)}"


def _as_asked(running: RunningServer) -> Asked:
    # Its log comes through a pipe, later perhaps than the answer.
    return Asked(running.http_url, lambda model: running.wait_for_log(f"directory '{model}'").string)


def compare(peer: Peer, ours: Asked, models: Path, names: list[str], tally: Tally) -> dict[str, Outcome]:
    """Ask both for each model at the same time. What became of them here."""
    theirs = Asked(peer.server.http, lambda model: peer.log.read_text(errors="replace"))
    outcomes = {}
    with ThreadPoolExecutor(2) as pool:
        for name in names:
            of_them, of_us = pool.map(outcome_of, (theirs, ours), (name, name))
            outcomes[name] = of_us
            text = " ".join((models / name / "config.pbtxt").read_text().split())
            if of_them.load.startswith("0 no answer"):
                tally.ended_by.append(f"{of_them.load}: {text}")
                peer.restart()
                continue
            for what in ("load", "index", "config", "metadata"):
                tally.note(f"{what} of {name}: {text}", getattr(of_them, what), getattr(of_us, what))
                if getattr(of_them, what) != getattr(of_us, what):
                    break  # what follows differs for the same reason
    return outcomes


# The command check ---------------------------------------------------------------------------------------------------


def errors_of_check(models: Path) -> dict[str, list[str]]:
    """The texts of the errors that ``pytriton-lite check`` finds, by model."""
    command = [sys.executable, "-m", "pytriton_lite", "check", "--format=json", str(models)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    errors: dict[str, list[str]] = {}
    for found in map(json.loads, lines):
        if found["severity"] == "error":
            errors.setdefault(found["model"], []).append(found["text"])
    return errors


def disagreements(outcomes: dict[str, Outcome], errors: dict[str, list[str]]) -> Iterator[str]:
    """What the command says and the server does otherwise. An ensemble's own faults may show as what they do to its steps."""
    for name, outcome in outcomes.items():
        texts = errors.get(name, [])
        is_told = any(text in outcome.load for text in texts) or f"in ensemble {name}" in outcome.load
        if outcome.load.startswith("200 ") != (not texts) or (texts and not is_told):
            yield f"{name}: check finds {texts}, the server says {outcome.load}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare what two servers make of configurations.")
    parser.add_argument(
        "--peer-command",
        required=True,
        help="starts a Triton; {models}, {http_port}, {grpc_port} and {metrics_port} are filled in",
    )
    parser.add_argument("--peer-port", type=int, default=18500, help="its first; two more follow (default 18500)")
    parser.add_argument("--configurations", type=int, default=300, help="how many (default 300)")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers end with us
    with TemporaryDirectory(prefix="differential-") as folder:
        models = Path(folder) / "models"
        names = write_models(models, generated(given.configurations, given.seed))
        flags = ("--model-control-mode=explicit",)
        tally = Tally(deviations=CONFIGURATIONS)
        with Peer(given.peer_command, models, given.peer_port) as peer, RunningServer(models, flags=flags) as running:
            outcomes = compare(peer, _as_asked(running), models, names, tally)
        found = list(disagreements(outcomes, errors_of_check(models)))
    tally.show(print)
    for line in found:
        print(line)
    return 1 if tally.unexpected or found else 0


if __name__ == "__main__":
    sys.exit(main())
