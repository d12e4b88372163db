"""What a server that is ready has in memory does not cost its clients pauses."""

from __future__ import annotations

from pathlib import Path

from tests.harness import RunningServer, write_model

SPY = """
import gc
import sys

freeze = gc.freeze

def told_freeze():
    freeze()
    if "pytriton_lite.app" in sys.modules:  # the fork server is frozen, too, and the server before it imports itself
        print("frozen objects:", gc.get_freeze_count(), flush=True)

gc.freeze = told_freeze
"""


def test_collections_leave_out_what_a_ready_server_consists_of(tmp_path: Path) -> None:
    """Modules and routes are a hundred thousand objects, and going through them a tenth of a second."""
    tmp_path.joinpath("sitecustomize.py").write_text(SPY)
    repository = tmp_path / "models"
    repository.mkdir()
    write_model(repository, "identity", config='backend: "python"')
    with RunningServer(repository, flags=("--exit-on-error=false",), environ={"PYTHONPATH": str(tmp_path)}) as server:
        found = server.wait_for_log(r"frozen objects: (\d+)")
    assert int(found[1]) > 50_000
