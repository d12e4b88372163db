"""One server for the clients: its models and a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import RunningServer, write_model
from tests.openai_routes.openai_models import COMPLETION_CONFIG, SCRIBE, write_openai_models

KEY = "a-key"

TRITON_WRITER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                said = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
                text = np.array([b"told: " + said], np.object_)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            return answers
"""
TRITON_WRITER_CONFIG = """
    backend: "python"
    input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
TRITON_EMBEDDER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                texts = pb_utils.get_input_tensor_by_name(request, "input_text").as_numpy().ravel()
                vectors = np.array([[len(text), 1.0] for text in texts], np.float32)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("vectors", vectors)]))
            return answers
"""
TRITON_EMBEDDER_CONFIG = """
    backend: "python"
    input [ { name: "input_text" data_type: TYPE_STRING dims: [ -1 ] } ]
    output [ { name: "vectors" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for `KEY`."""
    repository: Path = tmp_path_factory.mktemp("clients") / "models"
    write_openai_models(repository)
    limit = 'parameters { key: "MAX_UNANSWERED_REQUESTS" value { string_value: "1" } }'
    write_model(repository, "narrow", SCRIBE, COMPLETION_CONFIG + limit)
    write_model(repository, "triton_writer", TRITON_WRITER, TRITON_WRITER_CONFIG)
    write_model(repository, "triton_embedder", TRITON_EMBEDDER, TRITON_EMBEDDER_CONFIG)
    with RunningServer(repository, flags=(f"--openai-api-key={KEY}", "--overload-status=429")) as running:
        yield running


@pytest.fixture
def url(server: RunningServer) -> str:
    """What clients call the base URL."""
    return f"http://{server.http_url}/v1"
