"""HTTP/1.1 on the HTTP port and on that of metrics: the cases of RFC 9112 and RFC 9110, over every way that a request is read.

Where the server does something else than the RFC has it is held to what http1_deviations.py says that it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.conformance.http1_deviations import DEVIATIONS
from tests.conformance.http1_rows import ROWS
from tests.conformance.http1_runner import Row, Way, play
from tests.harness import MODEL_REPOSITORY, RunningServer

FLAGS = ("--model-control-mode=explicit", "--load-model=add_sub")
SERVERS = {
    "patient": FLAGS,
    "impatient": (*FLAGS, "--http-header-timeout-secs=1"),
    "forwarding": (*FLAGS, "--http-header-forward-pattern=^x-"),
}
PLAYED = [(row, way) for row in ROWS for way in row.ways]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RunningServer]]:
    """Those of `SERVERS`. All have come through every case without a traceback in the end."""
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(RunningServer(MODEL_REPOSITORY, flags=flags)) for name, flags in SERVERS.items()
        }
        yield started
        for server in started.values():
            assert server.get("/v2/health/live").status == 200
            assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize(("row", "way"), PLAYED, ids=[f"{row.id}-{way.name}" for row, way in PLAYED])
def test_a_case_of_http1_ends_as_the_rfc_has_it(servers: dict[str, RunningServer], row: Row, way: Way) -> None:
    deviation = DEVIATIONS.get(row.id)
    wants = row.wants if deviation is None else deviation.does
    server = servers["impatient" if row.is_impatient else "forwarding" if way.forwards else "patient"]
    port = urlsplit(server.metrics_url).port if way.is_metrics else server.http_port
    assert port is not None
    seen = play(row, wants, way, "127.0.0.1", port)
    assert wants.matches(seen), f"{row.what}: wants {wants}, and there came {seen}"


def test_no_id_stands_for_two_cases_and_every_deviation_for_one() -> None:
    assert [id_ for id_, count in Counter(row.id for row in ROWS).items() if count > 1] == []
    assert set(DEVIATIONS) <= {row.id for row in ROWS}


def test_numbers_of_a_section_begin_with_1_and_have_no_gap() -> None:
    sections: dict[str, list[int]] = {}
    for row in ROWS:
        section, _, number = row.id.rpartition("/")
        sections.setdefault(section, []).append(int(number))
    assert {
        section for section, numbers in sections.items() if sorted(numbers) != list(range(1, len(numbers) + 1))
    } == set()
