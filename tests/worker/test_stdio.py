"""A worker's standard streams (model API, 1.5)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys
from pytriton_lite.ipc.line_mark import LineMark
from pytriton_lite.worker import request_ids, stdio
stdio.redirect(int(sys.argv[1]), int(sys.argv[2]), LineMark(7))

class Asked:
    def __init__(self, request_id):
        self.request_id = request_id

{code}
os._exit(0)
"""


def streams_of(code: str) -> tuple[bytes, bytes]:
    """What a process wrote to the two pipes when it ran *code* and ended without flushing anything."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(code=code), str(out_write), str(err_write)],
            pass_fds=[out_write, err_write],
            stdin=subprocess.DEVNULL,
            timeout=30,
            check=True,
        )
    finally:
        os.close(out_write)
        os.close(err_write)
    with open(out_read, "rb") as out, open(err_read, "rb") as err:
        return out.read(), err.read()


def test_a_printed_line_leaves_at_once() -> None:
    assert streams_of("print('to out'); print('to err', file=sys.stderr)") == (b"to out\n", b"to err\n")


@pytest.mark.parametrize(
    "code",
    [
        "os.write(1, b'word')",
        "subprocess.run(['echo', '-n', 'word'], check=True)",
        "sys.__stdout__.buffer.raw.write(b'word')",
    ],
    ids=["descriptor", "child process", "raw stream"],
)
def test_whatever_writes_to_stdout_reaches_the_pipe(code: str) -> None:
    assert streams_of(code) == (b"word", b"")


def test_text_that_cannot_be_encoded_does_not_fail_the_model() -> None:
    assert streams_of("print('é \\udcff')") == ("é \\udcff\n".encode(), b"")


def test_standard_input_is_empty() -> None:
    assert streams_of("print(repr(sys.stdin.read()), os.read(0, 1))") == (b"'' b''\n", b"")


MARK = b"\x1e0000000000000007 "


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_lines_say_which_request_they_are_about_while_it_is_handled() -> None:
    out, _ = streams_of(
        """
print("before")
entered = request_ids.enter([Asked("abc"), Asked(""), Asked("d")])
print("one", "word", end="")
print(" more\\n\\nlast")
request_ids.leave(entered)
print("after")
"""
    )
    marked = MARK + b"abc, d\x1f"
    assert out == b"before\n" + marked + b"one word more\n" + marked + b"\n" + marked + b"last\nafter\n"


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_write_counts_the_text_and_not_the_mark() -> None:
    counted = "request_ids.enter([Asked('abc')]); n = sys.stdout.write('four'); os.write(2, str(n).encode())"
    assert streams_of(counted)[1] == b"4"
