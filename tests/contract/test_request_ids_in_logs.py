"""Every line that a model logs while it handles a request says which request that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scripted_model import (
    BATCHING,
    CONFIG,
    DECOUPLED,
    Stream,
    run,
    run_batch,
    stream_of,
    write_script_model,
)
from tests.harness import Reply, RunningServer

LINES = """
import logging, sys, traceback, warnings
pb_utils.Logger.log_info("{word} by the logger")
print("{word} on", "stdout", end="!\\n")
print("{word} first\\n\\n{word} third")
print("{word} on stderr", file=sys.stderr)
logging.getLogger("of.the.model").warning("{word} by logging")
try:
    raise ValueError("{word} in a traceback")
except ValueError:
    traceback.print_exc()
warnings.warn("{word} in a warning")
return [response(0)]
"""
EVERYWHERE = [
    "by the logger",
    "on stdout!",
    "first",
    "third",
    "on stderr",
    "by logging",
    "in a traceback",
    "in a warning",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("request_ids")
    write_script_model(repository, "script")
    write_script_model(repository, "batching", BATCHING)
    write_script_model(repository, "decoupled", DECOUPLED)
    write_script_model(repository, "overlapping", CONFIG, EXECUTE_CONCURRENCY="4")
    with RunningServer(repository, flags=("--log-format=json",)) as running:
        yield running


def ask(server: RunningServer, code: str, request_id: str = "", model: str = "script") -> Reply:
    fields = {"id": request_id} if request_id else {}
    reply = run(server, code, model=model, **fields)
    assert reply.status == 200, reply.body
    return reply


def lines(server: RunningServer, word: str) -> dict[str, str | None]:
    """The request id of each line that has *word*, by its text."""
    found = [json.loads(line) for line in server.log.splitlines() if line.startswith("{") and word in line]
    return {line["message"]: line.get("request_id") for line in found}


def end(server: RunningServer, word: str, model: str = "script") -> None:
    """Return when all lines of *model* so far are in the log: both its pipes and its channel are read in order."""
    code = f"""
import sys
print("end of {word}")
print("end of {word}", file=sys.stderr)
pb_utils.Logger.log_info("end of {word}")
return [response(0)]
"""
    ask(server, code, model=model)
    server.wait_for_log(rf"(?s)(end of {word}.*){{3}}")


def test_whatever_writes_a_line_says_the_id(server: RunningServer) -> None:
    ask(server, LINES.format(word="alpha"), "abc")
    end(server, "alpha")
    said = lines(server, "alpha ")
    for what in EVERYWHERE:
        (request_id,) = {request_id for message, request_id in said.items() if what in message}
        assert request_id == "abc", what
    assert {line["model"] for line in map(json.loads, server.log.splitlines()) if line.get("request_id")} == {"script"}


def test_a_request_without_an_id_and_the_time_between_requests_have_none(server: RunningServer) -> None:
    ask(server, "print('before'); return [response(0)]", "with-id")
    ask(server, LINES.format(word="beta"))
    end(server, "beta")
    assert set(lines(server, "beta ").values()) == {None}
    assert lines(server, "before") == {"before": "with-id"}


def test_the_servers_line_of_an_execute_that_raised_has_the_ids(server: RunningServer) -> None:
    run(server, "raise ValueError('zeta one')", model="script", id="failing")
    run(server, "raise ValueError('zeta two')", model="script")
    server.wait_for_log("zeta two")
    ids = {message.split("ValueError: ")[1][:8]: request_id for message, request_id in lines(server, "zeta ").items()}
    assert ids == {"zeta one": "failing", "zeta two": None}


def test_the_servers_line_of_a_worker_that_died_has_the_ids_of_what_it_had(server: RunningServer) -> None:
    """Also of a request whose ``execute`` has returned; one of them has killed it."""
    later = "model.sender = request.get_response_sender(); return None"
    with Stream(server) as stream:
        stream.send("decoupled", later, request_id="waits")
        stream.send("decoupled", "import os; os._exit(9)", request_id="kills")
        server.wait_for_log("restarting it")
    assert lines(server, "restarting it").popitem()[1] == "kills, waits"


def test_what_is_written_below_pythons_streams_is_heard_without_an_id(server: RunningServer) -> None:
    code = """
import os, subprocess
os.write(1, b"gamma by descriptor\\n")
subprocess.run(["echo", "gamma by a child"], check=True)
sys_stdout = __import__("sys").stdout
sys_stdout.buffer.write(b"gamma by bytes\\n")
sys_stdout.flush()
os.write(1, b"gamma cut ")
print("in half")
return [response(0)]
"""
    ask(server, code, "abc")
    end(server, "gamma")
    assert lines(server, "gamma ") == {
        "gamma by descriptor": None,
        "gamma by a child": None,
        "gamma by bytes": None,
        "gamma cut in half": "abc",
    }


def test_a_batch_of_several_says_all_ids_up_to_a_bound(server: RunningServer) -> None:
    run_batch(server, "batching", "print('delta'); return [response(0) for _ in requests]")
    server.wait_for_log('"delta"')
    (ids,) = set(lines(server, "delta").values())
    assert ids is not None
    assert sorted(ids.split(", ")) == ["a", "b", "c"]


def test_an_id_that_is_long_or_strange_makes_no_line_of_its_own(server: RunningServer) -> None:
    for number, (request_id, said) in enumerate(
        (
            ("x" * 200, "x" * 128 + "…"),
            ('q"uote', 'q"uote'),
            ("new\nline", "new\\nline"),
            ("\x1e\x1f", "\\u001e\\u001f"),
            ("ünï", "ünï"),
        )
    ):
        ask(server, "print('epsilon'); pb_utils.Logger.log_info('zeta'); return [response(0)]", request_id)
        end(server, f"epsilon {number}")
        assert (lines(server, "epsilon")["epsilon"], lines(server, "zeta")["zeta"]) == (said, said)


def test_a_model_that_prints_what_a_mark_looks_like_is_shown_as_it_prints(server: RunningServer) -> None:
    ask(server, "print('\\x1e0123456789abcdef someone else\\x1fforged'); return [response(0)]", "real")
    end(server, "forged")
    assert lines(server, "forged") == {"\x1e0123456789abcdef someone else\x1fforged": "real", "end of forged": None}


def test_coroutines_that_overlap_say_their_own_ids(server: RunningServer) -> None:
    code = """
import asyncio
async def work():
    if not hasattr(model, "met"):
        model.met = asyncio.Event()
        print("first waits")
        await model.met.wait()
        print("first goes on")
        await asyncio.to_thread(print, "first in a thread of asyncio's")
    else:
        print("second is here")
        model.met.set()
    return [response(0)]
return work()
"""
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask, server, code, "one", "overlapping")
        server.wait_for_log("first waits")
        ask(server, code, "two", "overlapping")
        first.result()
    server.wait_for_log("first in a thread")
    assert lines(server, "first ") | lines(server, "second is") == {
        "first waits": "one",
        "second is here": "two",
        "first goes on": "one",
        "first in a thread of asyncio's": "one",
    }


def test_a_thread_has_the_id_when_it_is_given_the_context(server: RunningServer) -> None:
    code = """
import contextvars
def work(sender, word):
    print(word)
    sender.send(flags=FINAL)
sender = request.get_response_sender()
if request.request_id() == "given":
    thread(contextvars.copy_context().run, work, sender, "iota given")
else:
    thread(work, sender, "iota bare")
return None
"""
    for request_id in ("given", "bare"):
        stream_of(server, "decoupled", code, request_id=request_id)
        server.wait_for_log(f"iota {request_id}")
    assert lines(server, "iota ") == {"iota given": "given", "iota bare": None}


def test_a_request_that_is_forgotten_is_named_whatever_is_handled_then(server: RunningServer) -> None:
    keep = "model.kept = request.get_response_sender()\nreturn None"
    drop = """
print("theta"); model.kept = None
request.get_response_sender().send(flags=FINAL)
return None
"""
    with Stream(server) as stream:
        stream.send("decoupled", keep, request_id="kept")
        stream.send("decoupled", drop, request_id="dropper", wants_empty_final=True)
        list(stream.rest())
    for said in ("no response was sent through its sender", "theta"):  # the channel and the pipe, in no order
        server.wait_for_log(said)
    forgotten = [request_id for text, request_id in lines(server, "no response was sent").items()]
    assert forgotten == ["kept"]
    assert lines(server, "theta") == {"theta": "dropper"}


def test_the_default_format_has_the_id_behind_the_instance(tmp_path: Path) -> None:
    write_script_model(tmp_path, "script")
    with RunningServer(tmp_path) as server:
        ask(server, "print('hello'); return [response(0)]", "abc")
        server.wait_for_log(r'stdout\] "hello" \[script:1 script_0_0 request abc\]')
        fields: dict[str, Any] = {"id": "two\nI0101 lines"}
        assert run(server, "print('again'); return [response(0)]", model="script", **fields).status == 200
        server.wait_for_log(r'"again" \[script:1 script_0_0 request two\\nI0101 lines\]')
