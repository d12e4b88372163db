"""The command ``pytriton-lite``: which subcommand was typed, and what becomes of its errors.

`table` has the subcommands, `reading` the rules of their command lines, `help` and `completion` what is generated of them.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytriton_lite import __version__, owned_server
from pytriton_lite.cli import help, reading
from pytriton_lite.cli.table import COMMANDS, SERVER_OF_DEBUG
from pytriton_lite.commands import CommandError
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.standard_streams import hold_standard_descriptors
from pytriton_lite.settings import BY_FLAG, UsageError, nearest

_ASKING_FOR_HELP = ("-h", "help")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""What a full disk answers, and one of which a user has had his share."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; *argv* is without the program's name, None for this process's own. Returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    _open_streams()
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return report_usage(error, words[0] if words else "")
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # as shells have it
    except BrokenPipeError:
        # Who reads, `head` for instance, has seen enough.
        _drop_output()
        return 1
    except OSError as error:
        if error.filename is not None:
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
            return 1
        if _is_adrift():
            print("error: the working directory is not there any more", file=sys.stderr)
            return 1
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        return 1


def _is_adrift() -> bool:
    """Whether somebody has removed the directory that this process works in, from which relative paths lead nowhere."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _open_streams() -> None:
    """Have all three standard streams; one that was closed by whoever has started this, as scripts do, is empty."""
    hold_standard_descriptors()
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As Python does for stderr: names of files may be any bytes, and a locale may know few characters. A stream whose
        # descriptor was replaced under it, by what makes a daemon for instance, may not know where it is, and stays as it was.
        with suppress(OSError):
            sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Have what is printed go nowhere. Python would try to write what is left once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report_usage(error: UsageError, name: str = "") -> int:
    """Print how the command *name* is used and, last, what was wrong with it; the exit status."""
    usage = help.overview_usage() if name not in COMMANDS else help.usage(COMMANDS[name].load())
    print(f"{usage}\n\n{error}", file=sys.stderr)
    return 1


def _run(argv: Sequence[str]) -> int:
    if not argv:
        raise UsageError(f"Error: no command given; the commands are: {', '.join(COMMANDS)}")
    name, *rest = argv
    if name in COMMANDS:
        return _run_command(name, rest, os.environ)
    if name == SERVER_OF_DEBUG:
        from pytriton_lite.cli.debug import serve_debugged

        return serve_debugged(rest)
    if name == owned_server.COMMAND:
        from pytriton_lite.cli.serve import serve_owner

        return serve_owner(rest)
    if name == "help" and rest:
        if rest[0] not in COMMANDS:
            raise UsageError(_no_command(rest[0]))
        return _run_command(rest[0], ["--help"], os.environ)
    if name in _ASKING_FOR_HELP:
        print(help.overview())
        return 0
    if not name.startswith("-"):
        raise UsageError(_no_command(name))
    flag = reading.resolve(name.removeprefix("--"), ("help", "version")) if name.startswith("--") else None
    if flag is None:
        hint = "; options of the server follow the command 'serve'" if reading.flag_name(name) in BY_FLAG else ""
        raise UsageError(f"{reading.unrecognized(name, ('version',))}{hint}")
    print(help.overview() if flag == "help" else f"pytriton-lite {__version__} ({build_kind()})")
    return 0


def _run_command(name: str, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    command = COMMANDS[name].load()
    arguments = reading.read(command, argv, environ)
    if isinstance(arguments, reading.HelpWanted):
        print(help.help_of(name, command, is_all=arguments is reading.HelpWanted.ALL, columns=_columns()))
        return 0
    return command.run(arguments)


def _columns() -> int:
    """Width of the help: that of a narrow terminal, and no more than reads well."""
    if not sys.stdout.isatty():
        return help.COLUMNS
    return min(help.COLUMNS, shutil.get_terminal_size().columns)


def _no_command(word: str) -> str:
    if Path(word).is_dir():
        return f"Unexpected argument: {word}; to serve the models in it: pytriton-lite serve {word}"
    return f"Unexpected argument: {word}; the nearest known command is '{nearest(word, (*COMMANDS, '--version'))}'"
