"""The command ``serve``: a server with the options of Triton's."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite import INTERPRETED_VARIABLE, logs, owned_server
from pytriton_lite.cli.reading import HelpWanted, read
from pytriton_lite.commands import Arguments, Command, Words
from pytriton_lite.core.file_limit import raise_file_limit
from pytriton_lite.core.garbage import no_collections
from pytriton_lite.engine.tracing.options import TRITON, parse_mode
from pytriton_lite.engine.workers.fork_process import head_start
from pytriton_lite.settings import (
    BY_ENVIRONMENT,
    BY_FLAG,
    ENVIRONMENT_PREFIX,
    HONOURED_BACKEND_KEYS,
    ModelControlMode,
    RateLimitMode,
    Settings,
    Standing,
    UsageError,
    nearest,
    vertex_ai_values,
)

# A Kubernetes service named pytriton-lite puts those of the first two kinds into every container of its namespace.
_NO_OPTION = re.compile(rf"PYTRITON_LITE_(PORT(_[0-9]+_.*)?|SERVICE_(HOST|PORT(_.*)?))|{INTERPRETED_VARIABLE}")

COMMON = (
    "model-repository",
    "model-control-mode",
    "load-model",
    "watch",
    "exit-on-error",
    "http-address",
    "http-port",
    "grpc-address",
    "grpc-port",
    "metrics-port",
    "frontends",
    "execution-timeout-secs",
    "allow-requirements",
    "backend-config",
    "cache-config",
    "trace-config",
    "log-verbose",
    "log-format",
    "log-file",
    "access-log",
)
"""The options that ``--help`` shows."""


@dataclass(frozen=True)
class Parsed:
    """``settings`` is None where help was asked for. ``warnings`` are sentences for the log."""

    settings: Settings | None
    warnings: tuple[str, ...] = ()


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Read the arguments of ``serve`` and the environment. Raises UsageError."""
    arguments = read(COMMAND, argv, environ)
    return Parsed(None) if isinstance(arguments, HelpWanted) else parsed(arguments)


def parsed(arguments: Arguments) -> Parsed:
    """The settings that *arguments* make, and what is to be said of them. Raises UsageError."""
    # Each option's kind makes its field's type, which a test compares.
    settings = Settings(**vertex_ai_values(arguments.values, arguments.environ))
    return Parsed(settings, tuple(_warnings(settings, arguments)))


def serve(arguments: Arguments) -> int:
    """Serve until the end; the exit status."""
    return start(parsed(arguments))


def serve_owner(argv: Sequence[str]) -> int:
    """Serve for the process that has started this one, and end with it (owned_server.py); the exit status."""
    channel = owned_server.take_channel()
    return start(parse(argv, os.environ), owner=channel)


def start(
    parsed: Parsed, *, foreground: tuple[str, socket.socket] | None = None, owner: socket.socket | None = None
) -> int:
    """Serve as *parsed* says, until the end; the exit status. Raises UsageError.

    *foreground* is a model that runs in the process that started this one, and the control socket of that (debug.py).
    *owner* is the channel to the process that this server is for alone.
    """
    settings = parsed.settings
    assert settings is not None
    if not settings.model_repository:
        raise UsageError(
            "error: creating server: Invalid argument - --model-repository must be specified\n"
            "Name a directory of models, as in: pytriton-lite serve model_repository"
        )
    if settings.has_log_files:
        # Until there is a loop that heeds it: whoever moves log files away does not know that the server is only starting.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    limited = raise_file_limit()
    # Forked before there is anything that workers should not have: handlers of the log, the server's modules, threads.
    begun = head_start() if foreground is None else None
    try:
        log = logs.configure(settings, screen=_screen(settings))
    except OSError as error:
        if begun is not None:
            begun.end()
        raise UsageError(f'Bad option: "--log-file".\ncannot append to {settings.log_file}: {error.strerror}') from None
    for warning in parsed.warnings:
        logs.LOGGER.warning(warning)
    if limited:
        logs.LOGGER.info(limited)
    # Late, so that --help, --version and a misspelt flag do not wait for what a server needs.
    with no_collections():
        from pytriton_lite.app import serve
    return serve(settings, log, foreground, begun, owner)


def _screen(settings: Settings) -> logs.Screen | None:
    """The terminal that the log goes to, if a person looks at it."""
    if settings.log_file is not None or not logs.is_for_people(sys.stderr):
        return None
    from pytriton_lite.terminal import Terminal  # it brings rich, of which a server in the background has no use

    return Terminal(sys.stderr)


def _warnings(settings: Settings, arguments: Arguments) -> Iterable[str]:
    given = (*arguments.inherited, *arguments.typed)
    for option in dict.fromkeys(entry.option for entry in given):
        if option.standing is Standing.NO_EFFECT:
            yield f"--{option.flag} has no effect: {option.note}"
        if option.instead:
            yield f"--{option.flag} is deprecated; use --{option.instead}"
    for flag in settings.open_model_control():
        yield (
            "in mode explicit whoever reaches the server can load a model, and so run code as its user; "
            f"--{flag}=model-repository:<key>=<value> asks for a key"
        )
    for flag in settings.idle_tls_flags():
        yield f"--{flag} has no effect: TLS is off there, or asks clients for no certificate"
    for setting in dict.fromkeys(settings.backend_config):
        if (setting.backend, setting.key) not in HONOURED_BACKEND_KEYS and not settings.has_backend(setting.backend):
            yield f"--backend-config={setting} has no effect: nothing here reads it"
    yield from _idle_trace_settings(settings)
    if settings.rate_limit is RateLimitMode.OFF and settings.rate_limit_resource:
        yield "--rate-limit-resource has no effect: no instance waits for resources without --rate-limit=execution_count"
    is_interval_given = any(entry.option.flag == "repository-poll-secs" for entry in given)
    if is_interval_given and settings.model_control_mode is not ModelControlMode.POLL:
        yield "--repository-poll-secs has no effect: nobody looks again without --model-control-mode=poll"
    if not settings.allow_client_shm:
        for flag in ("client-shm-key-prefix", "client-shm-max-byte-size"):
            if any(entry.option.flag == flag for entry in given):
                yield f"--{flag} has no effect: clients register no shared memory without --allow-client-shm=true"
    for name in arguments.environ:
        is_ours = name.startswith(ENVIRONMENT_PREFIX) and _NO_OPTION.fullmatch(name) is None
        if is_ours and name not in BY_ENVIRONMENT:
            yield f"environment variable {name} sets no option; the nearest is {nearest(name, BY_ENVIRONMENT)}"


def _idle_trace_settings(settings: Settings) -> Iterable[str]:
    """Warnings of those that belong to the mode that is not on."""
    modes = [parse_mode(setting.value) for setting in settings.trace_config if setting.key == "mode"]
    mode = modes[-1] if modes else TRITON
    for of_mode, key in dict.fromkeys((setting.mode, setting.key) for setting in settings.trace_config):
        if of_mode not in ("", mode):
            yield f"--trace-config {of_mode},{key} has no effect: the mode is {mode}; use --trace-config mode={of_mode}"


def only_model(folder: Path) -> list[str]:
    """The arguments of ``serve`` for one model of a repository, nothing else of which is loaded unless it is asked for."""
    return [f"--model-repository={folder.parent}", "--model-control-mode=explicit", f"--load-model={folder.name}"]


COMMAND = Command(
    usage=("serve [options] REPOSITORY ...",),
    introduction=f"""Serves the models in each REPOSITORY, a directory with a directory for each model, over HTTP and gRPC.

An option may also be set by an environment variable, --http-port by {BY_FLAG["http-port"].environment} for instance; the
command line ranks higher. Options that may be given several times have their values between semicolons there.""",
    options=BY_FLAG,
    run=serve,
    common=COMMON,
    words_are="model-repository",
    words=Words.DIRECTORIES,
)
