"""One server with all the models for the tests of OpenAI's routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import RunningServer
from tests.openai_routes.openai_models import write_openai_models


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with all of `openai_models`."""
    repository: Path = tmp_path_factory.mktemp("openai") / "models"
    write_openai_models(repository)
    with RunningServer(repository) as running:
        yield running
