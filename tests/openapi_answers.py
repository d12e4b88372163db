"""Answers held against an OpenAPI document: schemathesis makes requests from it, good and bad ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.harness import RunningServer

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
CHECKS_WITHOUT_SCHEMA = CHECKS[:2]


def api_of(server: RunningServer, document: dict[str, Any]) -> Any:
    """What schemathesis makes of *document*; its requests go to *server*."""
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=f"http://{server.http_url}")
    return api


def routes_of(lines: str) -> list[str]:
    """``method path`` for each of *lines*."""
    return [" ".join(line.split()) for line in lines.split("\n") if line]


def try_whatever_is_allowed(api: Any, route: str, call: Callable[[Any], None], *, examples: int) -> None:
    """*call* with so many cases of *route* as *examples* says, the same ones each time."""
    method, path = route.split()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy())
    def answers_are_as_it_says(case: Any) -> None:
        call(case)

    answers_are_as_it_says()
