"""HTTP/2 on both gRPC transports: every case of h2spec's list, and those of RFC 9113 that it has not.

A transport that does something else than the RFC has is held to what http2_deviations.py says that it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conformance.http2_deviations import DEVIATIONS
from tests.conformance.http2_more_rows import ROWS as MORE_ROWS
from tests.conformance.http2_rows import ROWS
from tests.conformance.http2_runner import Row, play
from tests.harness import MODEL_REPOSITORY, RunningServer

CASES = (*ROWS, *MORE_ROWS)

LISTED = {
    "generic": "1:1 2:5 3.1:3 3.2:3 3.3:5 3.4:1 3.5:1 3.7:1 3.8:1 3.9:2 3.10:2 4:4 5:15",
    "http2": (
        "3.5:2 4.1:3 4.2:3 4.3:3 5.1:13 5.1.1:2 5.1.2:1 5.3.1:2 5.4.1:2 5.5:2 6.1:3 6.2:4 6.3:2 6.4:3 6.5:3 6.5.2:5 6.5.3:2 "
        "6.7:4 6.8:1 6.9:3 6.9.1:3 6.9.2:3 6.10:6 7:2 8.1:1 8.1.2:1 8.1.2.1:4 8.1.2.2:2 8.1.2.3:7 8.1.2.6:2 8.2:1"
    ),
    "hpack": "2.3.3:2 4.2:1 5.2:3 6.1:1 6.3:1",
}
"""How many cases h2spec 2.6 has in each section of its three lists for servers."""


class Transport:
    """A running server, and what is known of its gRPC transport."""

    def __init__(self, name: str, server: RunningServer) -> None:
        self.deviations = DEVIATIONS[name]
        host, port = server.grpc_url.split(":")
        self.address = host, int(port)


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    flags = ("--model-control-mode=explicit", f"--grpc-transport={request.param}")
    with RunningServer(MODEL_REPOSITORY, flags=flags) as server:
        yield Transport(request.param, server)
        assert server.get("/v2/health/live").status == 200
        if request.param == "http2":  # grpcio logs tracebacks of its own where a client has gone
            assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.id)
def test_a_case_of_http2_ends_as_the_rfc_has_it(transport: Transport, row: Row) -> None:
    deviation = transport.deviations.get(row.id)
    wants = row.wants if deviation is None else deviation.does
    seen = play(row, wants, *transport.address)
    assert wants.matches(seen), f"{row.what}: wants {wants}, and there came {seen}"


def test_every_case_of_h2spec_has_a_row() -> None:
    listed = {
        f"{name}/{entry.partition(':')[0]}/{number + 1}"
        for name, entries in LISTED.items()
        for entry in entries.split()
        for number in range(int(entry.partition(":")[2]))
    }
    assert {row.id for row in ROWS} == listed
    assert len(listed) == 147


def test_no_id_stands_for_two_cases_and_every_deviation_for_one() -> None:
    assert [id_ for id_, count in Counter(row.id for row in CASES).items() if count > 1] == []
    known = {row.id for row in CASES}
    assert {id_ for deviations in DEVIATIONS.values() for id_ in deviations} <= known


@pytest.mark.parametrize("transport_name", DEVIATIONS)
def test_a_deviation_is_none_of_what_the_rfc_has(transport_name: str) -> None:
    wanted = {row.id: str(row.wants).split(" or ") for row in CASES}
    deviations = DEVIATIONS[transport_name]
    assert [id_ for id_, deviation in deviations.items() if str(deviation.does) in wanted[id_]] == []
