"""The log settings over HTTP and gRPC: what they say, change and refuse (http.md section 14, grpc.md section 7).

Texts, statuses and how numbers are kept were asked of Triton 2.51.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.file_logged_server import FileLoggedServer
from tests.contract.scripted_model import answer, run, write_scripted_model
from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer

DEFAULTS = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
FIXED = "log file location can not be updated through network protocol"
NO_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NO_NUMBER = "attempt to access JSON non-unsigned-integer as unsigned-integer"

SPEAK = """
for name in ("verbose", "info", "warn", "error"):
    getattr(pb_utils.Logger, "log_" + name)("{word} " + name)
answer(0)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("log_settings")
    write_scripted_model(repository)
    flags = ("--model-control-mode=explicit", "--load-model=scripted", "--grpc-transport=http2")
    with RunningServer(repository, flags=flags) as server:
        yield server


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    yield running
    change(running, **{name: value for name, value in DEFAULTS.items() if name != "log_file"})


def change(server: RunningServer, **settings: Any) -> Reply:
    return server.post("/v2/logging", settings)


def levels_heard(server: RunningServer, word: str) -> list[str]:
    """Which of the model's four lines with *word* in them are in the log."""
    answer(server, SPEAK.format(word=word))
    # Lines of an instance are written in order: when a later one is there, no other is to come. Some level is on.
    answer(server, SPEAK.format(word=f"end of {word}"))
    server.wait_for_log(f"end of {word}")
    return [name for name in ("verbose", "info", "warn", "error") if f'"{word} {name}"' in server.log]


def kill_worker(server: RunningServer) -> int:
    """Kill the worker, and return its pid when another one serves."""
    wait_until(lambda: len(server.worker_pids("scripted")) == 1)  # the one before a load may still be there
    (pid,) = server.worker_pids("scripted")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.worker_pids("scripted") not in ([], [pid]))
    wait_until(lambda: server.get("/v2/models/scripted/ready").status == 200)
    return pid


def ask(server: RunningServer, **settings: Any) -> dict[str, Any]:
    """LogSettings over gRPC; a value's type says which field of SettingValue has it. Raises grpc.RpcError."""
    fields = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    request = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        setattr(request.settings[name], fields[type(value)], value)
    with grpc.insecure_channel(server.grpc_url) as channel:
        reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).LogSettings(request, timeout=20)
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in reply.settings.items()}


def refusal(server: RunningServer, **settings: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        ask(server, **settings)
    return caught.value.code(), caught.value.details()


# ---------------------------------------------------------------------------------------------- what is said and refused


def test_both_protocols_show_the_settings_and_name_the_extension(server: RunningServer) -> None:
    assert server.get("/v2/logging").body == json.dumps(DEFAULTS, separators=(",", ":")).encode()
    assert ask(server) == DEFAULTS
    assert "logging" in server.get("/v2").json["extensions"]


def test_a_verbosity_is_kept_over_http(server: RunningServer) -> None:
    """http.md row 105."""
    reply = change(server, log_verbose_level=1)
    assert (reply.status, reply.json) == (200, {**DEFAULTS, "log_verbose_level": 1})
    assert server.get("/v2/logging").json == reply.json


def test_a_verbosity_is_kept_over_grpc_and_must_be_a_number(server: RunningServer) -> None:
    """grpc.md row 89."""
    assert ask(server, log_verbose_level=1) == {**DEFAULTS, "log_verbose_level": 1}
    assert refusal(server, log_verbose_level=True) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "expect int32 for 'log_verbose_level'",
    )
    assert ask(server)["log_verbose_level"] == 1


def test_the_file_cannot_be_changed_over_grpc(server: RunningServer) -> None:
    """grpc.md row 90: whatever the value."""
    for value in ("x", "", True):
        assert refusal(server, log_file=value) == (grpc.StatusCode.UNIMPLEMENTED, FIXED)


@pytest.mark.parametrize(
    ("settings", "status", "text"),
    [
        pytest.param({"log_format": "x"}, 503, "invalid argument for --log_format, got: x", id="row 106"),
        ({"log_format": "iso8601"}, 503, "invalid argument for --log_format, got: iso8601"),
        ({"log_format": 1}, 500, "attempt to access JSON non-string as string"),
        ({"log_file": "x"}, 501, FIXED),
        ({"log_file": 3}, 501, FIXED),
        ({"log_info": 1}, 500, NO_BOOLEAN),
        ({"log_warning": "true"}, 500, NO_BOOLEAN),
        ({"log_error": []}, 500, NO_BOOLEAN),
        ({"log_verbose_level": "1"}, 500, NO_NUMBER),
        ({"log_verbose_level": True}, 500, NO_NUMBER),
        ({"log_verbose_level": -1}, 500, NO_NUMBER),
        ({"log_verbose_level": 1.5}, 500, NO_NUMBER),
        ({"log_verbose_level": 1 << 64}, 500, NO_NUMBER),
    ],
)
def test_what_is_no_setting_is_refused_over_http_and_changes_nothing(
    server: RunningServer, settings: dict[str, Any], status: int, text: str
) -> None:
    """http.md row 106, and its neighbours."""
    reply = change(server, **{"log_info": False, **settings})
    assert (reply.status, reply.error) == (status, text)
    assert server.get("/v2/logging").json == DEFAULTS


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"log_info": 1}, "expect boolean for 'log_info'"),
        ({"log_warning": "x"}, "expect boolean for 'log_warning'"),
        ({"log_error": "x"}, "expect boolean for 'log_error'"),
        ({"log_verbose_level": "1"}, "expect int32 for 'log_verbose_level'"),
        ({"log_format": True}, "expect string for 'log_format'"),
        ({"log_format": "x"}, "invalid argument for log_format, got: x"),
    ],
)
def test_what_is_no_setting_is_refused_over_grpc_and_changes_nothing(
    server: RunningServer, settings: dict[str, Any], text: str
) -> None:
    assert refusal(server, **{"log_info": False, **settings}) == (grpc.StatusCode.INVALID_ARGUMENT, text)
    assert ask(server) == DEFAULTS


def test_null_and_unknown_names_and_what_is_no_object_say_nothing(server: RunningServer) -> None:
    for body in (b'{"log_file":null,"log_info":null,"of_tomorrow":3}', b"{}", b"[]", b"3"):
        reply = server.post("/v2/logging", body)
        assert (reply.status, reply.json) == (200, DEFAULTS)
    assert ask(server, of_tomorrow="x") == DEFAULTS


def test_an_empty_body_and_another_method_are_refused(server: RunningServer) -> None:
    assert server.post("/v2/logging").status == 500
    assert server.post("/v2/logging").error.startswith("failed to parse the request JSON buffer: The document is empty")
    assert server.request("PUT", "/v2/logging", b"{}").status == 405


@pytest.mark.parametrize(
    ("given", "kept"), [(7, 7), (2147483647, 2147483647), (4294967295, 0), (4294967297, 1), (2147483648, 0)]
)
def test_a_verbosity_has_32_bits_and_a_sign(server: RunningServer, given: int, kept: int) -> None:
    assert change(server, log_verbose_level=given).json["log_verbose_level"] == kept


# ---------------------------------------------------------------------------------------------- what is changed


def test_severities_change_for_models_that_run(server: RunningServer) -> None:
    assert levels_heard(server, "first") == ["info", "warn", "error"]
    change(server, log_verbose_level=2, log_info=False)
    assert levels_heard(server, "second") == ["verbose", "warn", "error"]
    ask(server, log_verbose_level=0, log_info=True, log_warning=False, log_error=False)
    assert levels_heard(server, "third") == ["info"]


def test_severities_hold_for_workers_that_start_later(server: RunningServer) -> None:
    change(server, log_verbose_level=1, log_warning=False)
    kill_worker(server)
    assert levels_heard(server, "after a death") == ["verbose", "info", "error"]
    assert server.post("/v2/repository/models/scripted/load").status == 200
    assert levels_heard(server, "after a load") == ["verbose", "info", "error"]


def test_severities_change_for_the_servers_own_lines(server: RunningServer) -> None:
    change(server, log_error=False)
    silent = kill_worker(server)
    change(server, log_error=True)
    heard = kill_worker(server)
    server.wait_for_log(rf"\(pid {heard}\) .* restarting it")
    assert re.search(rf"\(pid {silent}\) .* restarting it", server.log) is None


@pytest.mark.parametrize(
    ("log_format", "line"),
    [
        ("ISO8601", r'\n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I \d+ script:\d+\] "in ISO8601"'),
        ("json", r'\n\{"time": .*"message": "in json"'),
        ("default", r'\nI\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ script:\d+\] "in default"'),
    ],
)
def test_the_format_changes_from_one_line_to_the_next(server: RunningServer, log_format: str, line: str) -> None:
    assert change(server, log_format=log_format).json["log_format"] == log_format
    answer(server, f"pb_utils.Logger.log_info('in {log_format}'); answer(0)")
    server.wait_for_log(line)


def test_the_settings_begin_with_what_the_command_line_said(tmp_path: Path) -> None:
    """cli.md section 2: the flags of the log, whose file and format the addresses in it show as well."""
    write_scripted_model(tmp_path / "models")
    log = tmp_path / "server.log"
    flags = ("--log-verbose=3", "--log-warning=false", "--log-error=true", "--log-format=ISO8601")
    with FileLoggedServer(log, tmp_path / "models", flags=flags) as server:
        assert server.get("/v2/logging").json == {
            "log_file": str(log),
            "log_info": True,
            "log_warning": False,
            "log_error": True,
            "log_verbose_level": 3,
            "log_format": "ISO8601",
        }
        assert run(server, SPEAK.format(word="said")).status == 200
    said = [line.split('"')[1] for line in log.read_text().splitlines() if '"said ' in line]
    assert said == ["said verbose", "said info", "said error"]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ I ", log.read_text())
