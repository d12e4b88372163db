"""What ``pytriton-lite check`` says of configurations, and what a server does: `tests/differential/configs.py` has more."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.check.repositories import Rules, check
from tests.differential.config_mutations import PYTHON, generated, write_models
from tests.harness import RunningServer

SEED = 5

# What the server once had no answer to, but the one that its log has the details.
ONCE_A_CRASH = [
    PYTHON + f'parameters {{ key: "MAX_QUEUE_SIZE" value {{ string_value: "{value}" }} }}'
    for value in ("many", "9" * 5000)
]


def test_what_check_accepts_loads_and_nothing_else_does(tmp_path: Path) -> None:
    names = write_models(tmp_path, [*generated(44, SEED), *ONCE_A_CRASH])
    wrong = {finding.model for finding in check([tmp_path], Rules())[0] if finding.is_error}
    with RunningServer(tmp_path, flags=("--exit-on-error=false",)) as server:
        rows = server.post("/v2/repository/index").json
        assert "Traceback" not in server.log
    states: dict[str, set[str]] = {}
    for row in rows:
        states.setdefault(row["name"], set()).add(row.get("state", "not polled"))
    loaded = {name for name in names if states[name] == {"READY"}}
    assert loaded == set(names) - wrong
    assert {"not polled", "UNAVAILABLE"} <= set().union(*states.values())  # both ways of being wrong are among them
