"""benchmarks/pytriton.py: what it starts, reads and prints; the run itself needs PyTriton and PyTorch."""

from __future__ import annotations

from measured_server import Ports
from pytriton import CALL, Candidate, Protocol, Window, profile, program, table

PORTS = Ports(1, 2, 3)
THEIRS = [Window(100.0, 1.0, {"python": 900.0, "load": 50.0}), Window(200.0, 3.0, {"python": 700.0, "load": 70.0})]
OURS = [
    Window(1250.0, 2.0, {"python": 60.0, "load": 5.0}),
    Window(3000.0, 2.0, {"python": 40.0, "Linear": 0.4, "load": 5.0}),
]


def test_the_table_says_how_many_times_in_the_same_round() -> None:
    lines = table({"HTTP, 1": {"PyTriton": THEIRS, "ours": OURS}}).splitlines()
    assert lines[2] == "| HTTP, 1 at a time | 150 | 2,125 (13.8 times, 12.5–15.0) |"
    assert lines[3:] == [
        "| … rows in a call | 2.0 | 2.0 |",
        "| … CPU µs a request, server | 800 | 50 |",
        "| … and load generator | 60 | 5 |",
    ]


def test_the_profile_leaves_out_what_is_nothing() -> None:
    lines = profile({"HTTP, 1": {"ours": OURS}}).splitlines()
    assert lines[2:] == ["| HTTP, 1 | ours | python 50, load 5 |"]


def test_both_programs_are_the_same_but_for_the_import() -> None:
    candidates = [Candidate("", "", package) for package in ("pytriton", "pytriton_lite.pytriton")]
    programs = [program(candidate, PORTS) for candidate in candidates]
    assert programs[0] == programs[1].replace("pytriton_lite.pytriton", "pytriton")
    for written in programs:
        compile(written, "linear", "exec")


def test_requests_differ() -> None:
    for protocol in (Protocol.HTTP_BINARY, Protocol.GRPC):
        calls = CALL.over(protocol)
        assert len({call.request_id for call in calls}) == len(calls) > 1000
        assert len({call.inputs["INPUT_1"].tobytes() for call in calls}) == len(calls)
