"""benchmarks/pytriton.py: what it reads and prints; the run itself needs PyTriton and PyTorch."""

from __future__ import annotations

import pytest
from pytriton import PROGRAM, infer_request, read_rate, table


def test_a_rate_is_read_and_wrong_answers_are_none() -> None:
    level = {"requests_per_s": 12.5, "failed": 0, "errors": {}}
    assert read_rate({"levels": [level]}) == 12.5
    with pytest.raises(RuntimeError, match="3 answers were wrong"):
        read_rate({"levels": [{**level, "failed": 3}]})


def test_the_table_says_how_many_times() -> None:
    found = {"PyTriton": {"http, 1": 100.0}, "ours": {"http, 1": 1250.0}}
    assert table(found).splitlines()[2] == "| http, 1 at a time | 100 | 1,250 (12.5 times) |"


def test_both_programs_are_the_same_but_for_the_import() -> None:
    programs = [PROGRAM.format(package=package, more="") for package in ("pytriton", "pytriton_lite.pytriton")]
    assert programs[0] == programs[1].replace("pytriton_lite.pytriton", "pytriton")
    for program in programs:
        compile(program, "linear", "exec")


def test_the_request_is_whole() -> None:
    head, _, body = infer_request().partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    length = int(head.partition(b"Inference-Header-Content-Length: ")[2].split(b"\r\n")[0])
    assert body[:length].endswith(b"}") and len(body) - length == 80
