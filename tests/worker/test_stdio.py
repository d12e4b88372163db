"""A worker's standard streams (model API, 1.5)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess, sys
from pytriton_lite.worker import stdio
stdio.redirect(int(sys.argv[1]), int(sys.argv[2]))
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
