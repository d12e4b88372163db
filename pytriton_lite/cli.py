"""The command ``pytriton-lite``: Triton's command line, read by Triton's rules.

tritonserver reads its options with getopt_long, whose rules are not argparse's: an option's argument is the next word
whatever it looks like, options and repositories mix, a boolean needs its word, an error prints the usage first and the
message last and ends with status 1. Start scripts lean on these rules, and they fit in a page (CLI spec, section 1).

What ranks higher is taken whole: an option on the command line, then its environment variable, then its default.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton_lite import INTERPRETED_VARIABLE, __version__, logs
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.garbage import no_collections
from pytriton_lite.engine.tracing.options import TRITON, parse_mode
from pytriton_lite.settings import (
    BY_ENVIRONMENT,
    BY_FLAG,
    ENVIRONMENT_PREFIX,
    HONOURED_BACKEND_KEYS,
    OPTIONS,
    Group,
    ModelControlMode,
    Option,
    RateLimitMode,
    Settings,
    Standing,
    UsageError,
    nearest,
    show,
)

USAGE = """\
Usage: pytriton-lite serve [options] [REPOSITORY ...]
       pytriton-lite check [options] REPOSITORY ...
       pytriton-lite debug MODEL_FOLDER [options]
       pytriton-lite --version | --help"""

_COMMANDS = ("serve", "check", "debug")

_SERVER_OF_DEBUG = "debug-server"
"""The command of the process that `debug` starts. Not for users."""

_HELP_COLUMNS = 100

# A Kubernetes service named pytriton-lite puts those of the first two kinds into every container of its namespace.
_NO_OPTION = re.compile(rf"PYTRITON_LITE_(PORT(_[0-9]+_.*)?|SERVICE_(HOST|PORT(_.*)?))|{INTERPRETED_VARIABLE}")


@dataclass(frozen=True)
class Given:
    """An option and the text that was given for it."""

    option: Option
    text: str


@dataclass(frozen=True)
class Parsed:
    """``settings`` is None where help was asked for. ``warnings`` are sentences for the log."""

    settings: Settings | None
    warnings: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; *argv* is without the program's name, None for this process's own. Returns the exit status."""
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return report_usage(error)
    except BrokenPipeError:
        # Who reads, `head` for instance, has seen enough. Python would try to write the rest once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def report_usage(error: UsageError) -> int:
    """Print how the command is used and, last, what was wrong with it; the exit status."""
    print(f"{USAGE}\n\n{error}", file=sys.stderr)
    return 1


def _run(argv: Sequence[str]) -> int:
    if not argv:
        raise UsageError(f"Error: no command given; the commands are: {', '.join(_COMMANDS)}")
    command = argv[0]
    if command == "serve":
        return _serve(argv[1:], os.environ)
    if command == "check":
        return _check(argv[1:], os.environ)
    if command == "debug":
        return _debug(argv[1:])
    if command == _SERVER_OF_DEBUG:
        return _serve_debugged(argv[1:])
    if not command.startswith("-"):
        raise UsageError(
            f"Unexpected argument: {command}; the nearest known command is '{nearest(command, _COMMANDS)}'"
        )
    flag = _resolve(command.removeprefix("--"), ("help", "version")) if command.startswith("--") else None
    if flag is None:
        hint = "; options of the server follow the command 'serve'" if _flag_name(command) in BY_FLAG else ""
        raise UsageError(f"{_unrecognized(command, ('help', 'version'))}{hint}")
    print(help_text() if flag == "help" else f"pytriton-lite {__version__} ({build_kind()})")
    return 0


def _serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    return start(parse(argv, environ))


def _check(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Look at repositories without serving them: check/."""
    from pytriton_lite.check import command  # it brings protobuf

    given = _read_arguments(argv, command.OPTIONS)
    if given is None:
        print(_check_help(command.OPTIONS.values()))
        return 0
    typed = {entry.option.field for entry in given}
    inherited = [
        entry
        for entry in _read_environment(environ)
        if entry.option.flag in command.OPTIONS and entry.option.field not in typed
    ]
    request = command.request_of(_values(inherited, given))
    try:
        return command.run(request)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # as shells have it


def _debug(argv: Sequence[str]) -> int:
    """Serve one model, which runs in this process: debug.py. Options that were typed come last, and so rank higher."""
    if "--help" in argv:
        print(help_text())
        return 0
    if not argv or argv[0].startswith("-"):
        raise UsageError(
            "error: debug needs the folder of a model, as in: pytriton-lite debug model_repository/add_sub"
        )
    folder = Path(argv[0]).absolute()
    if not folder.is_dir():
        raise UsageError(f"error: the model folder {folder} is no directory")
    if not any(entry.name.isdigit() for entry in folder.iterdir()):
        raise UsageError(
            f"error: {folder} has no version directory, such as {folder / '1'}; debug needs one model, not a repository"
        )
    from pytriton_lite import debug

    arguments = [*only_model(folder), *debug.PATIENCE, *argv[1:]]
    parsed = parse(arguments, os.environ)  # so that a mistake is told before anything is started
    if parsed.settings is not None and parsed.settings.watch:
        raise UsageError("error: debug runs one model in this terminal to its end; --watch goes with serve")
    return debug.debug(folder.name, arguments, server=_SERVER_OF_DEBUG)


def _serve_debugged(argv: Sequence[str]) -> int:
    """The server of `_debug`, in a process of its own."""
    control, model, *arguments = argv
    return start(parse(arguments, os.environ), foreground=(model, socket.socket(fileno=int(control))))


def start(parsed: Parsed, *, foreground: tuple[str, socket.socket] | None = None) -> int:
    """Serve as *parsed* says, until the end; the exit status. Raises UsageError.

    *foreground* is a model that runs in the process that started this one, and the control socket of that (debug.py).
    """
    settings = parsed.settings
    if settings is None:
        print(help_text())
        return 0
    if not settings.model_repository:
        raise UsageError(
            "error: creating server: Invalid argument - --model-repository must be specified\n"
            "Name a directory of models, as in: pytriton-lite serve model_repository"
        )
    try:
        log = logs.configure(settings)
    except OSError as error:
        raise UsageError(f'Bad option: "--log-file".\ncannot append to {settings.log_file}: {error.strerror}') from None
    for warning in parsed.warnings:
        logs.LOGGER.warning(warning)
    # Late, so that --help, --version and a misspelt flag do not wait for what a server needs.
    with no_collections():
        from pytriton_lite.app import serve
    return serve(settings, log, foreground)


# Reading ------------------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Read the arguments of ``serve`` and the environment. Raises UsageError."""
    given = _read_arguments(argv)
    if given is None:
        return Parsed(None)
    typed = {entry.option.field for entry in given}
    inherited = [entry for entry in _read_environment(environ) if entry.option.field not in typed]
    settings = Settings(**_values(inherited, given))  # each option's kind makes its field's type, which a test compares
    return Parsed(settings, tuple(_warnings(settings, [*inherited, *given], environ)))


def _values(inherited: Iterable[Given], given: Iterable[Given]) -> dict[str, Any]:
    """The values by field. Raises UsageError."""
    values: dict[str, Any] = {}
    for entry in inherited:
        _take(values, entry, source=f" (environment variable {entry.option.environment})")
    for entry in given:
        _take(values, entry, source="")
    return values


def _take(values: dict[str, Any], entry: Given, *, source: str) -> None:
    option = entry.option
    try:
        value = option.parse(entry.text)
    except UsageError as error:
        heading, _, message = str(error).partition("\n")
        raise UsageError(f"{heading.removesuffix('.')}{source}.\n{message}") from None
    if option.repeatable:
        value = (*values.get(option.field, ()), value)
    values[option.field] = value


def _read_arguments(argv: Sequence[str], by_flag: Mapping[str, Option] = BY_FLAG) -> list[Given] | None:
    """Options of *by_flag* and repositories in the order in which they were typed; None for ``--help``."""
    given: list[Given] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            given.extend(_repository(rest) for rest in words)
        elif word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            flag = _resolve_option(word, name, by_flag)
            if flag == "help":
                return None
            option = by_flag[flag]
            if option.kind.takes_argument and not equals:
                following = next(words, None)
                if following is None:
                    raise UsageError(f"option '--{flag}' requires an argument")
                text = following
            elif equals and not option.kind.takes_argument:
                raise UsageError(f"option '--{flag}' doesn't allow an argument")
            given.append(Given(option, text if option.kind.takes_argument else "true"))
        elif word.startswith("-") and word != "-":
            raise UsageError(f"invalid option -- '{word[1]}': options are long, as in --{nearest(word[1:], by_flag)}")
        else:
            given.append(_repository(word))
    return given


def _repository(word: str) -> Given:
    return Given(BY_FLAG["model-repository"], word)


def _resolve_option(word: str, name: str, by_flag: Mapping[str, Option]) -> str:
    flag = _resolve(name, (*by_flag, "help"))
    if flag is None:
        raise UsageError(_unrecognized(word, by_flag))
    return flag


def _resolve(name: str, flags: Iterable[str]) -> str | None:
    """The flag that *name* is, or is the beginning of; None if there is none. Raises UsageError if there are several."""
    matches = [flag for flag in flags if flag.startswith(name)]
    if name in matches:
        return name
    if len(matches) > 1 and name:
        possibilities = " ".join(f"'--{flag}'" for flag in matches)
        raise UsageError(f"option '--{name}' is ambiguous; possibilities: {possibilities}")
    return matches[0] if len(matches) == 1 else None


def _flag_name(word: str) -> str:
    return word.lstrip("-").partition("=")[0]


def _unrecognized(word: str, flags: Iterable[str]) -> str:
    return f"unrecognized option '{word}'; the nearest known one is '--{nearest(_flag_name(word), flags)}'"


def _read_environment(environ: Mapping[str, str]) -> list[Given]:
    """The options that *environ* sets. An empty variable is none; several values of one option stand between ``;``."""
    given: list[Given] = []
    for option in OPTIONS:
        text = environ.get(option.environment, "")
        texts = text.split(";") if option.repeatable else [text]
        given.extend(Given(option, part) for part in texts if part)
    return given


def _warnings(settings: Settings, given: Sequence[Given], environ: Mapping[str, str]) -> Iterable[str]:
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
    for name in environ:
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


# Help ---------------------------------------------------------------------------------------------------------------


def help_text() -> str:
    """Everything that ``--help`` prints, grouped as Triton's."""
    introduction = textwrap.fill(
        "Serves the models in each REPOSITORY over HTTP and gRPC. An option may also be set by an environment variable, "
        f"--http-port by {BY_FLAG['http-port'].environment} for instance; the command line ranks higher. Options that "
        "may be given several times have their values between semicolons there. With check the models are looked at and not "
        "served; check --help says more. With debug the one model in MODEL_FOLDER is "
        "served, and runs in the foreground process: breakpoint() stops in this terminal.",
        _HELP_COLUMNS,
    )
    sections = [
        f"{USAGE}\n\n{introduction}\n\n  --help\n        Print this text.\n  --version\n        Print the version."
    ]
    for group in Group:
        entries = [_help_entry(option) for option in OPTIONS if option.group is group]
        sections.append("\n".join([f"{group.value}:", *entries]))
    return "\n\n".join(sections)


def _check_help(options: Iterable[Option]) -> str:
    introduction = textwrap.fill(
        "Says what is wrong with the models in each REPOSITORY, without serving them and without running their code: one "
        "finding on each line, with its place, what a server would say of it, and what to do. Ends with status 1 if a model "
        "would not load.",
        _HELP_COLUMNS,
    )
    usage = "Usage: pytriton-lite check [options] REPOSITORY ..."
    own = "\n".join(["  --help\n        Print this text.", *map(_help_entry, options)])
    return f"{usage}\n\n{introduction}\n\n{own}"


def _help_entry(option: Option) -> str:
    sentences = [option.help]
    if option.repeatable:
        sentences.append("May be given several times.")
    default = show(option.default) if option.shown_default is None else option.shown_default
    if default and option.kind.takes_argument:
        sentences.append(f"Default: {default}.")
    if option.standing is Standing.NO_EFFECT:
        sentences.append(f"Accepted without effect: {option.note}.")
    indent = " " * 8
    text = textwrap.fill(
        " ".join(sentences),
        _HELP_COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return f"  --{option.flag} {option.kind.metavar}".rstrip() + "\n" + text
