"""The siege detects what it is there to detect: short attacks on a server that holds, and on servers that do not."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from itertools import islice, takewhile
from pathlib import Path

import hpack
import pytest

from tests.harness import write_model
from tools.siege.__main__ import chosen, main
from tools.siege.attack import Attack, HangUp, Port
from tools.siege.attacks import ATTACKS, attack_named
from tools.siege.grpc_attacks import gzip_repeated
from tools.siege.http2_wire import PREFACE, block, integer
from tools.siege.models import HONEST, write_repository
from tools.siege.runner import Bounds, Plan, Result, run_siege

LENIENT = Bounds(latency_s=60.0, memory_bytes=4 << 30, address_space_bytes=8 << 30)
SECONDS = 0.3


def besiege(
    folder: Path,
    *attacks: str,
    bounds: Bounds = LENIENT,
    transports: Sequence[str] = ("plain",),
    model: str = "",
    seconds: float = SECONDS,
) -> list[Result]:
    """Results of *attacks*, a fraction of a second each, with *model* in the place of the honest client's."""
    repository = write_repository(folder / "models")
    if model:
        write_model(repository, HONEST.decode(), model)
    plan = Plan(
        attacks=[attack_named(name) for name in attacks],
        connections=(1,),
        transports=transports,
        seconds=seconds,
        seed=1,
        bounds=bounds,
    )
    told: list[Result] = []
    results = run_siege(plan, folder, repository, told.append)
    assert told == results
    return results


# -------------------------------------------------------------------------------------------------- what the siege tells


@pytest.mark.parametrize("transport", ["plain", "tls"])
def test_short_siege_of_this_server_tells_what_became_of_attackers_and_clients(tmp_path: Path, transport: str) -> None:
    pings, loris = besiege(tmp_path, "ping-flood", "slowloris", transports=[transport], seconds=1.0)
    for result in (pings, loris):
        assert (result.faults, result.failures, result.transport) == ([], [], transport)
        assert all(latency.worst_s is not None and latency.worst_s > 0 for latency in result.latencies.values())
        assert result.memory_peak_bytes >= result.memory_before_bytes > 10 << 20
        assert result.cpu_s > 0
    assert any(how.startswith("GOAWAY ENHANCE_YOUR_CALM") for how in pings.attacker.ended), pings.attacker.ended
    # Of 20, if all handshakes of TLS are over by then.
    assert loris.attacker.ended.keys() == {"open to the end"}


def test_slow_model_is_a_fault_where_the_threshold_is_lower(tmp_path: Path) -> None:
    slow = """
        import time
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def execute(self, requests):
                time.sleep(0.2)
                sums = [
                    pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                    + pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                    for request in requests
                ]
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total), pb_utils.Tensor("OUTPUT1", total)])
                    for total in sums
                ]
        """
    (result,) = besiege(tmp_path, "no-attack", bounds=Bounds(0.19, 4 << 30, 8 << 30), model=slow)
    worst = result.latencies["gRPC inference"].worst_s
    assert worst is not None and worst >= 0.2
    assert any(re.fullmatch(r"HTTP inference took \d+ ms", fault) for fault in result.faults), result.faults
    assert any(re.fullmatch(r"gRPC inference took \d+ ms", fault) for fault in result.faults), result.faults


def test_wrong_answers_and_the_death_of_the_server_are_faults(tmp_path: Path) -> None:
    fatal = """
        import os
        import signal
        from pathlib import Path

        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def initialize(self, args):
                self._left = 12

            def execute(self, requests):
                self._left -= len(requests)
                if self._left < 0:
                    fork_server = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
                    os.kill(int(fork_server[1]), signal.SIGKILL)
                inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
                shift = 1 if self._left < 6 else 0
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor(name, 2 * left - left[0] + shift) for name in ("OUTPUT0", "OUTPUT1")]
                    )
                    for left in inputs
                ]
        """
    # Time for 13 requests, on any machine.
    died, served = besiege(tmp_path, "no-attack", "no-attack", model=fatal, seconds=2.0)
    assert any(fault.startswith("the server died with code -9; its last lines: ") for fault in died.faults), died.faults
    assert any(failure.endswith("a wrong sum") for failure in died.failures), died.failures
    assert served.memory_before_bytes > 10 << 20, "it was not started again"


def test_memory_above_its_bound_is_a_fault(tmp_path: Path) -> None:
    (result,) = besiege(tmp_path, "no-attack", bounds=Bounds(60.0, 1 << 20, 8 << 30))
    assert [re.sub(r"\d+", "N", fault) for fault in result.faults] == ["memory rose to N MiB"]


def test_command_prints_a_table_writes_results_and_ends_with_1_where_the_server_did_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "results.json"
    options = ["rapid-*", "--seconds=0.2", "--connections=1", "--transports=plain", "--threshold-ms=0.01", "--seed=7"]
    assert main([*options, f"--json={written}"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 7\n")
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| (yes|no) \|$", printed, re.MULTILINE)
    assert rows == [("no-attack", "no"), ("rapid-reset", "no")]
    assert [result["attack"] for result in json.loads(written.read_text())] == ["no-attack", "rapid-reset"]


def test_unknown_attack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-thing"])
    assert "there is no attack 'no-such-thing'" in capsys.readouterr().err


def test_patterns_choose_attacks_once_and_the_run_without_one_first() -> None:
    assert [attack.name for attack in chosen(["rapid-*", "rapid-reset"])] == ["no-attack", "rapid-reset"]
    assert chosen([]) == list(ATTACKS)


# -------------------------------------------------------------------------------------------------- the attacks themselves


def test_every_attack_says_what_it_is() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    for attack in ATTACKS[1:]:
        assert re.fullmatch(r"[A-Z0-9].*\.", attack.sentence), attack
        assert re.match(r"CVE-\d{4}-\d+|RFC \d{4}, \d|CWE-\d+", attack.reference), attack


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.port is Port.GRPC], ids=lambda a: a.name)
def test_attacks_on_grpc_begin_as_clients_of_http2_do(attack: Attack) -> None:
    steps = takewhile(lambda step: not isinstance(step, HangUp), islice(attack.script(random.Random(1)), 60))
    sent = b"".join(step for step in steps if isinstance(step, bytes))
    if attack.is_below_tls:
        assert sent[0] == 22, "no handshake of TLS"
    else:
        assert sent.startswith(PREFACE) or PREFACE.startswith(sent)


def test_header_blocks_are_what_a_decoder_reads() -> None:
    fields = [(b":method", b"POST"), (b"long", b"v" * 300)]
    assert hpack.Decoder().decode(block(fields), raw=True) == fields
    assert integer(1337, 5) == bytes([31, 154, 10])  # RFC 7541, appendix C.1.2


def test_repeated_compression_is_what_gzip_reads() -> None:
    assert gzip.decompress(gzip_repeated(b"head", b"piece" * 50, 9)) == b"head" + b"piece" * 450
