"""The models that the load testers are compared on."""

from __future__ import annotations

from pathlib import Path

from load_testers import make_repository

from tests.harness import RunningServer, tensor


def test_paced_answers_as_add_sub_does(tmp_path: Path) -> None:
    with RunningServer(make_repository(tmp_path)) as server:
        for model in ("add_sub", "paced"):
            inputs = [tensor(name, "FP32", [4], [1, 2, 3, 4]) for name in ("INPUT0", "INPUT1")]
            assert server.infer(model, inputs).json["outputs"][0]["data"] == [2, 4, 6, 8]
        assert "time.sleep(0.002)" in (tmp_path / "paced" / "1" / "model.py").read_text()
        assert server.get("/v2/models/paced/config").json["instance_group"][0]["count"] == 4
