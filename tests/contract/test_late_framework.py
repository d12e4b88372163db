"""The web framework is there when somebody asks for a route of its, and not before: half of a server's start is its import."""

from __future__ import annotations

from pathlib import Path

import tritonclient.http

from tests.harness import MODEL_REPOSITORY, RunningServer, tensor


def has_framework(server: RunningServer) -> bool:
    """Whether the server's process has loaded pydantic's library, which FastAPI does."""
    return "pydantic_core" in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_what_probes_clients_and_scrapers_ask_for_needs_no_framework() -> None:
    numbers = [tensor(name, "FP32", [4], [1, 2, 3, 4]) for name in ("INPUT0", "INPUT1")]
    with (
        RunningServer(MODEL_REPOSITORY, started=True) as server,
        tritonclient.http.InferenceServerClient(server.http_url) as client,
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("add_sub")
        assert client.is_model_ready("add_sub", "1")
        assert server.infer("add_sub", numbers).status == 200
        assert server.get(server.metrics_url).status == 200
        assert not has_framework(server)
        assert client.get_model_metadata("add_sub")["name"] == "add_sub"
        assert has_framework(server)
