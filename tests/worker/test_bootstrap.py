"""The fork server where the system has less than Linux, and where Python begins otherwise than by default."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness import PROJECT, RunningServer, until, write_model

CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
EXITS_AND_LEAVES_A_PROGRAM = """
    import os, subprocess

    class TritonPythonModel:
        def execute(self, requests):
            shell = "exec 3> FOLDER/pipe; echo begun; read word < FOLDER/never"
            child = subprocess.Popen(["/bin/sh", "-c", shell], stdout=subprocess.PIPE)
            child.stdout.readline()
            os._exit(3)
"""
IMPORTS = """
    import beside_nothing

    class TritonPythonModel:
        pass
"""
WITHOUT_WAITID = """
import os

for name in ("waitid", "P_ALL", "P_PID", "P_PGID"):
    delattr(os, name)
"""


def test_ends_of_workers_are_seen_where_python_has_no_waitid(tmp_path: Path) -> None:
    """As on macOS before Python 3.13."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(WITHOUT_WAITID)
    path = os.pathsep.join(filter(None, (str(tmp_path / "path"), os.environ.get("PYTHONPATH"))))
    for name in ("pipe", "never"):
        os.mkfifo(tmp_path / name)
    write_model(tmp_path / "models", "m", EXITS_AND_LEAVES_A_PROGRAM.replace("FOLDER", str(tmp_path)), CONFIG)
    # The worker that is asked for the configuration is the first one to end.
    with RunningServer(tmp_path / "models", environ={"PYTHONPATH": path}, started=True) as server:
        with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
            data = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
            reply = server.post("/v2/models/m/infer", data)
            assert "exited with code 3" in reply.error
            os.set_blocking(pipe.fileno(), True)
            assert pipe.read() == b"", "its end, which is that of what the worker has started"
        until(lambda: server.get("/v2/models/m/ready").status == 200)


def test_every_folder_of_the_python_path_is_seen_with_a_safe_path(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "beside_nothing.py").touch()
    path = os.pathsep.join(filter(None, (str(tmp_path / "path"), str(PROJECT), os.environ.get("PYTHONPATH"))))
    write_model(tmp_path / "models", "m", IMPORTS, CONFIG)
    environ = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    with RunningServer(tmp_path / "models", environ=environ, started=True) as server:
        assert server.get("/v2/models/m/ready").status == 200
