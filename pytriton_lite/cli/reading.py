"""Reading a command line by Triton's rules.

tritonserver reads its options with getopt_long, whose rules are not argparse's: an option's argument is the next word
whatever it looks like, options and repositories mix, a boolean needs its word, an error prints the usage first and the
message last and ends with status 1. Start scripts lean on these rules, and they fit in a page (CLI spec, section 1).

What ranks higher is taken whole: an option on the command line, then its environment variable, then its default.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytriton_lite.commands import Arguments, Command, Given
from pytriton_lite.settings import BY_FLAG, Option, UsageError, nearest

HELP, HELP_ALL = "help", "help-all"


class HelpWanted(enum.Enum):
    """Help was asked for, in place of anything else."""

    SHORT = HELP
    ALL = HELP_ALL


def read(command: Command, argv: Sequence[str], environ: Mapping[str, str]) -> Arguments | HelpWanted:
    """The arguments of *command*, with what *environ* says of the server's options among them. Raises UsageError."""
    words: list[str] = []
    typed: list[Given] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            for behind in rest:
                _take_word(command, behind, words, typed)
        elif word.startswith("--"):
            name, equals, text = word[2:].partition("=")
            flag = _resolve_option(word, name, command.options)
            if flag in (HELP, HELP_ALL):
                return HelpWanted(flag)
            option = command.options[flag]
            if option.kind.takes_argument and not equals:
                text = _argument(f"--{flag}", rest)
            elif equals and not option.kind.takes_argument:
                raise UsageError(f"option '--{flag}' doesn't allow an argument")
            typed.append(Given(option, text if option.kind.takes_argument else "true"))
        elif word == "-h":
            return HelpWanted.SHORT
        elif word.startswith("-") and word[1:2] in command.letters:
            option = command.options[command.letters[word[1]]]
            if option.kind.takes_argument:  # as getopt has it: -m NAME or -mNAME
                typed.append(Given(option, word[2:] or _argument(word, rest)))
            elif word[2:]:
                raise UsageError(f"option '{word[:2]}' doesn't allow an argument")
            else:
                typed.append(Given(option, "true"))
        elif word.startswith("-") and word != "-":
            near = nearest(word[1:], (*command.options, HELP))
            raise UsageError(f"invalid option -- '{word[1]}': options are long, as in --{near}")
        else:
            _take_word(command, word, words, typed)
    fields = {entry.option.field for entry in typed}
    inherited = [entry for entry in _read_environment(command, environ) if entry.option.field not in fields]
    return Arguments(_values(inherited, typed), tuple(words), tuple(typed), tuple(inherited), environ)


def _argument(name: str, rest: Iterator[str]) -> str:
    """The next word, which is the argument of the option *name* whatever it looks like. Raises UsageError."""
    following = next(rest, None)
    if following is None:
        raise UsageError(f"option '{name}' requires an argument")
    return following


def _take_word(command: Command, word: str, words: list[str], typed: list[Given]) -> None:
    if command.words_are:
        typed.append(Given(command.options[command.words_are], word))
    else:
        words.append(word)


def _values(inherited: Iterable[Given], typed: Iterable[Given]) -> dict[str, Any]:
    """The values by field. Raises UsageError."""
    values: dict[str, Any] = {}
    for entry in inherited:
        _take(values, entry, source=f" (environment variable {entry.option.environment})")
    for entry in typed:
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


def _resolve_option(word: str, name: str, by_flag: Mapping[str, Option]) -> str:
    # --help-all is not known by its beginnings: --h and --he have always been --help.
    flag = HELP_ALL if name == HELP_ALL else resolve(name, (*by_flag, HELP))
    if flag is None:
        raise UsageError(unrecognized(word, by_flag))
    return flag


def resolve(name: str, flags: Iterable[str]) -> str | None:
    """The flag that *name* is, or is the beginning of; None if there is none. Raises UsageError if there are several."""
    matches = [flag for flag in flags if flag.startswith(name)]
    if name in matches:
        return name
    if len(matches) > 1 and name:
        possibilities = " ".join(f"'--{flag}'" for flag in matches)
        raise UsageError(f"option '--{name}' is ambiguous; possibilities: {possibilities}")
    return matches[0] if len(matches) == 1 else None


def flag_name(word: str) -> str:
    """The name in ``--name=value``."""
    return word.lstrip("-").partition("=")[0]


def unrecognized(word: str, flags: Iterable[str]) -> str:
    """What is said of an option that is none of *flags*."""
    return f"unrecognized option '{word}'; the nearest known one is '--{nearest(flag_name(word), (*flags, HELP))}'"


def _read_environment(command: Command, environ: Mapping[str, str]) -> list[Given]:
    """The options of the server that *command* takes and *environ* sets.

    An empty variable is none; several values of one option stand between ``;``.
    """
    given: list[Given] = []
    for option in command.options.values():
        if BY_FLAG.get(option.flag) is not option:
            continue  # an option of the command alone
        text = environ.get(option.environment, "")
        texts = text.split(";") if option.repeatable else [text]
        given.extend(Given(option, part) for part in texts if part)
    return given
