"""The parsing rules of cli.md section 1, the ranking of sources, help and exit statuses."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pytriton_lite import __version__, logs
from pytriton_lite.cli import main, reading
from pytriton_lite.cli.help import help_of, overview, overview_usage, usage
from pytriton_lite.cli.serve import COMMAND as SERVE
from pytriton_lite.cli.serve import Parsed, parse
from pytriton_lite.cli.table import COMMANDS
from pytriton_lite.commands import Arguments
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.engine.workers.fork_process import HeadStart
from pytriton_lite.settings import OPTIONS, BackendSetting, Group, Option, Settings, Standing, UsageError
from tests.harness import MODEL_REPOSITORY, PROJECT, child, free_ports, until_ready, write_model


def read(*argv: str, environ: Mapping[str, str] | None = None) -> Settings:
    settings = parse(argv, environ or {}).settings
    assert settings is not None
    return settings


def refusal(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as raised:
        parse(argv, environ or {})
    return str(raised.value)


# Parsing rules ------------------------------------------------------------------------------------------------------


def test_an_argument_follows_an_equals_sign_or_is_the_next_word() -> None:
    assert read("--http-port=9000").http_port == 9000
    assert read("--http-port", "9000").http_port == 9000
    assert read("--id=a=b").id == "a=b"
    assert read("--id=").id == ""


def test_the_next_word_is_the_argument_whatever_it_looks_like() -> None:
    assert read("--id", "--http-port=1").id == "--http-port=1"
    assert "invalid value for bool option: --allow-grpc" in refusal("--allow-http", "--allow-grpc", "true")


def test_an_unambiguous_beginning_of_a_flag_will_do() -> None:
    assert read("--http-po=9000", "--model-st", "models").http_port == 9000
    assert read("--model-st", "models").model_repository == (Path("models"),)


def test_an_ambiguous_beginning_lists_the_candidates() -> None:
    message = refusal("--http=1")
    assert message.startswith("option '--http' is ambiguous; possibilities: '--http-address' '--http-port' ")
    assert set(re.findall(r"'--([a-z-]+)'", message)) - {"http"} == {
        option.flag for option in OPTIONS if option.flag.startswith("http")
    }


def test_a_whole_flag_is_not_ambiguous_with_a_longer_one() -> None:
    assert read("--grpc-use-ssl=false", "--grpc-max-connection-age=5").grpc_max_connection_age == 5


def test_an_option_needs_its_argument() -> None:
    assert refusal("--allow-http") == "option '--allow-http' requires an argument"


def test_the_one_switch_takes_no_argument() -> None:
    assert read("--disable-auto-complete-config").disable_auto_complete_config is True
    settings = read("--disable-auto-complete-config", "models")
    assert (settings.disable_auto_complete_config, settings.model_repository) == (True, (Path("models"),))
    assert (
        refusal("--disable-auto-complete-config=true")
        == "option '--disable-auto-complete-config' doesn't allow an argument"
    )


def test_the_last_one_wins() -> None:
    assert read("--http-port=1", "--id=x", "--http-port=2").http_port == 2


def test_repeatable_options_add_up() -> None:
    settings = read("--backend-config=python,a=1", "--backend-config", "b=2")
    assert settings.backend_config == (BackendSetting("python", "a", "1"), BackendSetting("", "b", "2"))


def test_repositories_come_from_arguments_and_both_flags_in_the_order_typed() -> None:
    settings = read("b", "--model-repository=a", "--http-port=1", "c", "--model-store", "d", "--model-repository=b")
    assert settings.model_repository == (Path("b"), Path("a"), Path("c"), Path("d"))


def test_two_dashes_end_the_options() -> None:
    assert read("--id=x", "--", "--id=y").model_repository == (Path("--id=y"),)
    assert read("-").model_repository == (Path("-"),)


@pytest.mark.parametrize(
    ("word", "near"),
    [("--http-prot=1", "http-port"), ("--frobnicate", None), ("--logverbose", "log-verbose"), ("--=1", None)],
)
def test_an_unknown_flag_is_refused_with_the_nearest_known_one(word: str, near: str | None) -> None:
    message = refusal(word)
    found = re.fullmatch(r"unrecognized option '(.*)'; the nearest known one is '--([a-z-]+)'", message)
    assert found is not None and found.group(1) == word
    assert near in (None, found.group(2))


def test_a_short_option_is_refused() -> None:
    assert refusal("-x").startswith("invalid option -- 'x'")


def test_the_deprecated_strict_model_config_is_the_switch_with_a_boolean() -> None:
    assert read("--strict-model-config=true").disable_auto_complete_config is True
    assert read("--strict-model-config=false").disable_auto_complete_config is False
    assert parse(["--strict-model-config=true"], {}).warnings == (
        "--strict-model-config is deprecated; use --disable-auto-complete-config",
    )


# Environment --------------------------------------------------------------------------------------------------------


def test_the_environment_ranks_above_the_default_and_below_the_command_line() -> None:
    environ = {"PYTRITON_LITE_HTTP_PORT": "9000", "PYTRITON_LITE_ID": "env"}
    assert (read().http_port, read().id) == (8000, "triton")
    assert (read(environ=environ).http_port, read(environ=environ).id) == (9000, "env")
    settings = read("--http-port=9001", environ=environ)
    assert (settings.http_port, settings.id) == (9001, "env")


def test_an_empty_variable_is_none() -> None:
    assert read(environ={"PYTRITON_LITE_HTTP_PORT": "", "PYTRITON_LITE_MODEL_REPOSITORY": ";"}) == Settings()


def test_a_repeatable_variable_has_its_values_between_semicolons() -> None:
    settings = read(environ={"PYTRITON_LITE_BACKEND_CONFIG": "python,a=1;b=2", "PYTRITON_LITE_MODEL_STORE": "x;y"})
    assert settings.backend_config == (BackendSetting("python", "a", "1"), BackendSetting("", "b", "2"))
    assert settings.model_repository == (Path("x"), Path("y"))


def test_the_command_line_replaces_a_repeatable_variable_whole() -> None:
    environ = {"PYTRITON_LITE_MODEL_REPOSITORY": "env", "PYTRITON_LITE_MODEL_STORE": "store"}
    assert read("typed", environ=environ).model_repository == (Path("typed"),)
    assert read(environ=environ).model_repository == (Path("env"), Path("store"))


def test_the_switch_is_a_boolean_in_the_environment() -> None:
    assert read(environ={"PYTRITON_LITE_DISABLE_AUTO_COMPLETE_CONFIG": "on"}).disable_auto_complete_config is True
    assert read(environ={"PYTRITON_LITE_DISABLE_AUTO_COMPLETE_CONFIG": "0"}).disable_auto_complete_config is False


def test_a_bad_variable_is_named() -> None:
    assert refusal(environ={"PYTRITON_LITE_HTTP_PORT": "tcp://10.0.0.1:8000"}) == (
        'Bad option: "--http-port" (environment variable PYTRITON_LITE_HTTP_PORT).\n'
        "Invalid option value. Got tcp://10.0.0.1:8000"
    )


def test_a_bad_variable_that_the_command_line_outranks_is_not_read() -> None:
    assert read("--http-port=1", environ={"PYTRITON_LITE_HTTP_PORT": "x"}).http_port == 1


def test_a_misspelt_variable_warns_with_the_nearest_and_service_links_do_not() -> None:
    environ = {
        "PYTRITON_LITE_HTP_PORT": "1",
        "PYTRITON_LITE_PORT": "tcp://10.0.0.1:8000",
        "PYTRITON_LITE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "PYTRITON_LITE_SERVICE_HOST": "10.0.0.1",
        "PYTRITON_LITE_SERVICE_PORT_HTTP": "8000",
        "HOME": "/",
    }
    assert parse([], environ).warnings == (
        "environment variable PYTRITON_LITE_HTP_PORT sets no option; the nearest is PYTRITON_LITE_HTTP_PORT",
    )


# Warnings -----------------------------------------------------------------------------------------------------------


def _some_text(option: Option) -> str:
    for text in ("1", "off", "a:1"):
        try:
            option.parse(text)
        except UsageError:
            continue
        return text
    raise AssertionError(option.flag)


WITHOUT_EFFECT = [option for option in OPTIONS if option.standing is Standing.NO_EFFECT]


@pytest.mark.parametrize("option", WITHOUT_EFFECT, ids=lambda option: option.flag)
def test_an_option_without_effect_is_taken_with_one_warning_however_often_it_is_given(option: Option) -> None:
    text = _some_text(option)
    warning = (f"--{option.flag} has no effect: {option.note}",)
    assert parse([f"--{option.flag}={text}", f"--{option.flag}", text], {}).warnings == warning
    assert parse([], {option.environment: text}).warnings == warning


def test_an_honoured_option_does_not_warn() -> None:
    argv = ["m", "--http-port=1", "--backend-config=python,stub-timeout-seconds=3", "--allow-client-shm=false"]
    assert parse(argv, {}).warnings == ()


@pytest.mark.parametrize(
    ("argv", "flags"),
    [
        ([], ["http-restricted-api", "grpc-restricted-protocol"]),
        (["--http-address=127.0.0.1", "--metrics-address=0.0.0.0"], ["grpc-restricted-protocol"]),
        (["--http-address=::1", "--grpc-address=unix:/run/g.sock"], []),
        (["--http-restricted-api=trace,model-repository:k=v", "--allow-grpc=false"], []),
        (["--http-restricted-api=trace:k=v", "--allow-grpc=false"], ["http-restricted-api"]),
        (
            [
                *("--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r"),
                "--allow-http=false",
            ],
            [],
        ),
    ],
)
def test_model_control_that_is_open_to_all_is_warned_of(argv: list[str], flags: list[str]) -> None:
    warnings = parse(["--model-control-mode=explicit", *argv], {}).warnings
    assert [re.findall(r"--([a-z-]+)=model-repository:<key>=<value> asks for a key$", text) for text in warnings] == [
        [flag] for flag in flags
    ]
    assert parse(argv, {}).warnings == ()


def test_files_for_tls_that_is_off_are_warned_of() -> None:
    assert parse(["--grpc-server-cert=c.pem", "--http-root-cert=r.pem"], {}).warnings == tuple(
        f"--{flag} has no effect: TLS is off there, or asks clients for no certificate"
        for flag in ("http-root-cert", "grpc-server-cert")
    )


@pytest.mark.parametrize(
    ("argv", "warnings"),
    [
        (
            ["--trace-config=opentelemetry,url=http://a", "--trace-config=opentelemetry,resource=a=b"],
            [
                "--trace-config opentelemetry,url has no effect: the mode is triton; use --trace-config mode=opentelemetry",
                "--trace-config opentelemetry,resource has no effect: the mode is triton; "
                "use --trace-config mode=opentelemetry",
            ],
        ),
        (
            ["--trace-config=mode=OpenTelemetry", "--trace-config=triton,file=t.json"],
            ["--trace-config triton,file has no effect: the mode is opentelemetry; use --trace-config mode=triton"],
        ),
        (["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=http://a"], []),
        (["--trace-config=triton,file=t.json", "--trace-config=level=TIMESTAMPS"], []),
    ],
)
def test_settings_of_the_trace_mode_that_is_not_on_are_warned_of(argv: list[str], warnings: list[str]) -> None:
    assert list(parse(argv, {}).warnings) == warnings


def test_an_interval_between_looks_that_nobody_takes_is_warned_of() -> None:
    argv = ["--repository-poll-secs=3"]
    assert parse(argv, {}).warnings == (
        "--repository-poll-secs has no effect: nobody looks again without --model-control-mode=poll",
    )
    assert parse([*argv, "--model-control-mode=poll"], {}).warnings == ()


def test_limits_of_shared_memory_that_is_not_allowed_are_warned_of() -> None:
    argv = ["--client-shm-key-prefix=a", "--client-shm-key-prefix=b", "--client-shm-max-byte-size=9"]
    assert parse(argv, {}).warnings == tuple(
        f"--{flag} has no effect: clients register no shared memory without --allow-client-shm=true"
        for flag in ("client-shm-key-prefix", "client-shm-max-byte-size")
    )
    assert parse([*argv, "--allow-client-shm=true"], {}).warnings == ()


def test_a_backend_setting_that_nothing_reads_warns_once() -> None:
    argv = ["--backend-config=tensorflow,version=2", "--backend-config=tensorflow,version=2"]
    assert parse(argv, {}).warnings == ("--backend-config=tensorflow,version=2 has no effect: nothing here reads it",)


def test_a_path_in_place_of_a_backends_name_is_one_that_nothing_reads(tmp_path: Path) -> None:
    text = f"--backend-config={tmp_path},version=2"
    assert parse([text], {}).warnings == (f"{text} has no effect: nothing here reads it",)


def test_a_setting_of_a_backend_that_a_package_brings_is_not_warned_of() -> None:
    assert parse(["--backend-config=sklearn,allow-pickle=true"], {}).warnings == ()


# Help and the command -----------------------------------------------------------------------------------------------


ALL = help_of("serve", SERVE, is_all=True)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_every_option_stands_in_the_whole_help_once_and_under_its_heading(option: Option) -> None:
    assert len(re.findall(rf"^  --{option.flag}( |$)", ALL, re.MULTILINE)) == 1
    before = ALL[: re.search(rf"^  --{option.flag}( |$)", ALL, re.MULTILINE).start()]  # type: ignore[union-attr]
    headings = re.findall(rf"^({'|'.join(group.value for group in Group)}):$", before, re.MULTILINE)
    assert headings[-1] == option.group.value


def test_the_whole_help_shows_defaults_and_standings() -> None:
    text = " ".join(ALL.split())
    assert "--http-port <integer> Port that HTTP listens on; 0 picks a free one and prints it. Default: 8000." in text
    assert "Default: that of --http-address, unless that is a Unix socket." in text
    assert "Accepted without effect: one event loop serves every connection." in text
    assert max(map(len, ALL.splitlines())) <= 100


def test_the_help_of_serve_is_for_people_twenty_options_and_where_the_others_are() -> None:
    text = help_of("serve", SERVE)
    flags = re.findall(r"^  --([a-z-]+)", text, re.MULTILINE)
    assert flags == list(SERVE.common) and len(flags) == 20
    assert len(text.splitlines()) < 80
    assert text.endswith(f"pytriton-lite serve --help-all shows all {len(OPTIONS)} options.")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 100])
def test_no_line_of_a_help_is_wider_than_its_terminal(name: str, columns: int) -> None:
    text = help_of(name, COMMANDS[name].load(), columns=columns)
    # A paragraph that begins with blanks is an example, which nobody could use in two pieces.
    wide = [line for line in text.splitlines() if len(line) > columns and not line.startswith("  ")]
    assert wide == []


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--help"], overview()),
        (["--h"], overview()),
        (["-h"], overview()),
        (["help"], overview()),
        (["serve", "--help"], help_of("serve", SERVE)),
        (["serve", "-h"], help_of("serve", SERVE)),
        (["help", "serve"], help_of("serve", SERVE)),
        (["serve", "m", "--he", "--nonsense"], help_of("serve", SERVE)),
        (["serve", "--help-all"], ALL),
        *(([name, "-h"], help_of(name, COMMANDS[name].load())) for name in COMMANDS),
    ],
)
def test_help_goes_to_stdout_with_status_0(argv: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (text + "\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_has_a_line_for_each_command(name: str) -> None:
    assert re.search(rf"^  {name} +{re.escape(COMMANDS[name].summary)}$", overview(), re.MULTILINE)
    assert COMMANDS[name].load().usage[0].split()[0] == name


@pytest.mark.parametrize("argv", [["check", "--help"], ["--version"]])
def test_a_reader_that_has_gone_is_no_traceback(argv: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pytriton_lite", *argv]
    with open(writing, "wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=60, cwd=PROJECT)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("argv", [["check", "--help"], ["check", "model_repository"]])
def test_an_output_that_is_full_is_told_in_a_line(argv: list[str]) -> None:
    command = [sys.executable, "-m", "pytriton_lite", *argv]
    with open("/dev/full", "wb") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=60, cwd=PROJECT)
    assert (ended.returncode, ended.stderr) == (
        1,
        b"error: cannot write: No space left on device\n",
    )


@pytest.mark.parametrize(("encoding", "accent"), [("ascii", r"\xe9"), ("utf-8", "é")])
def test_what_the_output_cannot_show_is_escaped(tmp_path: Path, encoding: str, accent: str) -> None:
    for model in ("é", "m\udcff", "z"):
        write_model(tmp_path, model, "class TritonPythonModel: pass", "max_batch_size: -1")
    command = [sys.executable, "-m", "pytriton_lite", "check", str(tmp_path)]
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run(command, capture_output=True, timeout=60, cwd=PROJECT, env=environ)
    assert (ended.returncode, ended.stderr) == (1, b"")
    told = ended.stdout.decode(encoding)
    assert f"/{accent}/config.pbtxt" in told and r"m\udcff" in told and "/z/config.pbtxt" in told


def test_the_output_may_have_been_replaced_under_python(tmp_path: Path) -> None:
    code = "import os, sys; from pytriton_lite.cli import main; os.dup2(2, 1); sys.exit(main(['--version']))"
    with (tmp_path / "file").open("w") as file:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=file, stderr=subprocess.PIPE, timeout=60, cwd=PROJECT
        )
    assert (ended.returncode, ended.stderr.split()[0]) == (0, b"pytriton-lite")


@pytest.mark.parametrize("argv", [["debug"], []])
def test_a_file_that_cannot_be_looked_at_is_told_in_a_line(argv: list[str]) -> None:
    command = [sys.executable, "-m", "pytriton_lite", *argv, "x" * 300]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=PROJECT)
    assert ended.returncode == 1
    assert re.fullmatch("error: .*x{300}: File name too long", ended.stderr.splitlines()[-1])
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("argv", ["check models", "serve models", "debug models/m"])
def test_a_working_directory_that_was_removed_is_told_in_a_line(tmp_path: Path, argv: str) -> None:
    (tmp_path / "gone").mkdir()
    shell = ["/bin/sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh"]
    ended = subprocess.run(
        [*shell, sys.executable, "-m", "pytriton_lite", *argv.split()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert (ended.returncode, ended.stderr) == (1, "error: the working directory is not there any more\n")


def without_streams(closed: str, *argv: str) -> list[str]:
    """The command line of the command, which has those of its streams *closed* that are there for a shell: ``<&- 2>&-``."""
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "pytriton_lite", *argv]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("has_log_file", [False, True])
def test_a_server_needs_no_streams(tmp_path: Path, closed: str, has_log_file: bool) -> None:
    (port,) = free_ports(1)
    flags = [f"--http-port={port}", "--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
    if has_log_file:
        flags.append(f"--log-file={tmp_path / 'log'}")
    command = without_streams(closed, "serve", str(MODEL_REPOSITORY), *flags)
    with child(command, cwd=PROJECT, stdin=subprocess.DEVNULL) as server:
        until_ready(server, port)
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.parametrize(("closed", "status"), [(">&-", 0), ("2>&-", 1)])
def test_a_command_that_cannot_say_anything_ends_as_always(closed: str, status: int) -> None:
    command = without_streams(closed, "--version" if status == 0 else "no_such_command")
    ended = subprocess.run(command, capture_output=True, timeout=60, cwd=PROJECT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b"")


def test_help_has_no_settings() -> None:
    assert parse(["--help"], {}) == Parsed(None)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pytriton-lite {__version__} ({build_kind()})\n"


@pytest.mark.parametrize(
    ("argv", "last"),
    [
        ([], f"Error: no command given; the commands are: {', '.join(COMMANDS)}"),
        (["sevre"], "Unexpected argument: sevre; the nearest known command is 'serve'"),
        (["tests"], "Unexpected argument: tests; to serve the models in it: pytriton-lite serve tests"),
        (["version"], "Unexpected argument: version; the nearest known command is '--version'"),
        (["help", "sevre"], "Unexpected argument: sevre; the nearest known command is 'serve'"),
        (["--vresion"], "unrecognized option '--vresion'; the nearest known one is '--version'"),
        (
            ["--http-port=1", "serve"],
            "unrecognized option '--http-port=1'; the nearest known one is '--help'; options of the server follow the "
            "command 'serve'",
        ),
        (["serve"], "Name a directory of models, as in: pytriton-lite serve model_repository"),
        (["serve", "m", "--http-port=abc"], "Invalid option value. Got abc"),
        (
            ["serve", "m", "--grpc-port=8000"],
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port 0.0.0.0:8000",
        ),
    ],
)
def test_an_error_prints_usage_first_and_the_message_last_on_stderr_with_status_1(
    argv: list[str], last: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTRITON_LITE_MODEL_REPOSITORY", raising=False)
    monkeypatch.chdir(PROJECT)
    assert main(argv) == 1
    out, err = capsys.readouterr()
    assert out == ""
    of_command = usage(SERVE) if argv[:1] == ["serve"] else overview_usage()
    assert err.startswith(of_command + "\n\n")
    assert err.splitlines()[-1] == last


def test_no_repository_has_tritons_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTRITON_LITE_MODEL_REPOSITORY", raising=False)
    main(["serve"])
    assert (
        "error: creating server: Invalid argument - --model-repository must be specified\n" in capsys.readouterr().err
    )


@pytest.fixture
def quiet_logging() -> Iterator[None]:
    """Take back what a start did to the loggers, and to SIGHUP."""
    hung_up = signal.getsignal(signal.SIGHUP)
    loggers = [logging.getLogger(name) for name in ("pytriton_lite", *logs.FOREIGN_LOGGERS)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate
    signal.signal(signal.SIGHUP, hung_up)


def test_serve_hands_the_settings_to_the_app_and_returns_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quiet_logging: None
) -> None:
    served: list[Settings] = []

    def serve(settings: Settings, log: logs.Log, foreground: object, head_start: HeadStart, owner: object) -> int:
        head_start.end()
        served.append(settings)
        assert log.settings.format is LogFormat.JSON
        return 7

    app = types.ModuleType("pytriton_lite.app")
    app.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pytriton_lite.app", app)
    monkeypatch.setenv("PYTRITON_LITE_ID", "from-environment")
    log = tmp_path / "server.log"

    assert main(["serve", "models", f"--log-file={log}", "--log-format=json", "--http-thread-count=4"]) == 7

    (settings,) = served
    assert (settings.id, settings.model_repository) == ("from-environment", (Path("models"),))
    assert settings.log_format is LogFormat.JSON
    assert '"message": "--http-thread-count has no effect: one event loop serves every connection"' in log.read_text()


def test_a_log_file_that_cannot_be_opened_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet_logging: None
) -> None:
    assert main(["serve", "models", f"--log-file={tmp_path / 'absent' / 'a.log'}"]) == 1
    assert capsys.readouterr().err.endswith(
        f'Bad option: "--log-file".\ncannot append to {tmp_path / "absent" / "a.log"}: No such file or directory\n'
    )


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytriton_lite", "serve", "m", "--no-such-flag"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("unrecognized option '--no-such-flag'; the nearest known one is")


def test_help_does_not_wait_for_the_web_frameworks() -> None:
    code = "import sys; from pytriton_lite.cli import main; main(['--version']); print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_server_imports_nothing_that_only_mistakes_plug_ins_or_clients_need() -> None:
    code = "import sys, pytriton_lite.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    seldom = {"difflib", "fastapi", "google.protobuf.json_format", "grpc", "hpack", "importlib.metadata", "pydantic"}
    assert seldom & set(done.stdout.split()) == set()


def test_windows_is_refused_before_anything_is_imported_that_it_lacks() -> None:
    code = (
        "import sys; sys.platform = 'win32'\n"
        "sys.modules.update(dict.fromkeys(('fcntl', 'resource', 'termios', 'pwd', 'grp')))\n"
        "from pytriton_lite.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, "serve", "models"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "pytriton-lite runs on Linux and macOS; on Windows, use it in WSL 2 or in a Linux container\n"
    )


def test_ctrl_c_before_the_command_is_imported_ends_without_a_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'pytriton_lite.settings': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from pytriton_lite.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


# Letters ------------------------------------------------------------------------------------------------------------


def test_a_letter_stands_for_a_flag_where_the_command_says_so() -> None:
    infer = COMMANDS["infer"].load()
    for argv in (("-m", "add_sub"), ("-madd_sub",), ("--model-name", "add_sub")):
        arguments = reading.read(infer, argv, {})
        assert isinstance(arguments, Arguments)
        assert arguments.values["model_name"] == "add_sub"
    with pytest.raises(UsageError, match="option '-m' requires an argument"):
        reading.read(infer, ("-m",), {})
    with pytest.raises(UsageError, match="invalid option -- 'm'"):
        reading.read(SERVE, ("-m", "add_sub"), {})
    assert "  -m, --model-name <model>" in help_of("infer", infer)
