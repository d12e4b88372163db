"""The command ``completion``: scripts for shells, generated from the table of commands and their options.

A script knows everything by itself: nothing of this program is started when somebody presses the tabulator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from pytriton_lite.cli.help import first_sentence
from pytriton_lite.cli.table import COMMANDS
from pytriton_lite.commands import Arguments, Command, Words
from pytriton_lite.settings import BOOL, PATH, Option, UsageError, nearest

_FREE = ""
"""What may be given for an option of which nothing is known."""

_HELP = (("help", "Say how the command is used"), ("help-all", "Say all of it"))


def _values_of(option: Option) -> str | None:
    """The values of *option* between blanks, ``_FREE`` for any, None for a path."""
    if option.kind is BOOL:
        return "true false"
    if option.kind is PATH or option.kind.metavar in ("<path>", "<file>", "<directory>"):
        return None
    choices = re.fullmatch(r"\{(.*)\}", option.kind.metavar)
    return choices[1].replace(",", " ") if choices else _FREE


def _description(option: Option) -> str:
    """What fits on a line beside the flag."""
    return re.split(r"[;:] ", first_sentence(option))[0].rstrip(".")


def _own_flags(command: Command) -> Iterator[tuple[str, str]]:
    return iter(_HELP if command.common else _HELP[:1])


def _commands() -> dict[str, Command]:
    return {name: entry.load() for name, entry in COMMANDS.items()}


# Bash ---------------------------------------------------------------------------------------------------------------


def _bash() -> str:
    commands = _commands()
    names = " ".join([*COMMANDS, "--help", "--version"])
    options, values, words = [], [], []
    for name, command in commands.items():
        flags = [*command.options, *(flag for flag, _ in _own_flags(command))]
        options.append(f'        {name}) options="{" ".join(f"--{flag}" for flag in flags)}" ;;')
        if command.words is not Words.NONE:
            words.append(f"        {name}) _pytriton_lite_files {'-f' if command.words is Words.FILES else '-d'} ;;")
        elif name == "completion":
            words.append(f'        {name}) COMPREPLY=($(compgen -W "{" ".join(_SHELLS)}" -- "$word")) ;;')
        for option in command.options.values():
            if option.kind.takes_argument:
                known = _values_of(option)
                reply = (
                    "_pytriton_lite_files -f" if known is None else f'COMPREPLY=($(compgen -W "{known}" -- "$word"))'
                )
                values.append(f'        "{name} --{option.flag}") {reply}; return ;;')
    return "\n".join(
        [
            "# Completion of pytriton-lite for bash. To have it now: source <(pytriton-lite completion bash)",
            "_pytriton_lite_files() {",
            "    local IFS=$'\\n'",
            "    compopt -o filenames 2>/dev/null",
            '    COMPREPLY=($(compgen "$1" -- "$word"))',
            "}",
            "_pytriton_lite() {",
            '    local word="${COMP_WORDS[COMP_CWORD]}" option="${COMP_WORDS[COMP_CWORD-1]}" options=""',
            '    local command="${COMP_WORDS[1]}"',
            "    COMPREPLY=()",
            "    # bash takes --flag=value for three words",
            '    if [[ "$word" == "=" ]]; then',
            '        word=""',
            '    elif [[ "$option" == "=" ]]; then',
            '        option="${COMP_WORDS[COMP_CWORD-2]}"',
            "    fi",
            "    if ((COMP_CWORD == 1)); then",
            f'        COMPREPLY=($(compgen -W "{names}" -- "$word"))',
            "        return",
            "    fi",
            '    case "$command $option" in',
            *values,
            "    esac",
            '    case "$command" in',
            *options,
            "    esac",
            '    if [[ "$word" == -* ]]; then',
            '        COMPREPLY=($(compgen -W "$options" -- "$word"))',
            "        return",
            "    fi",
            '    case "$command" in',
            *words,
            "    esac",
            "}",
            "complete -F _pytriton_lite pytriton-lite",
        ]
    )


# Zsh ----------------------------------------------------------------------------------------------------------------


def _zsh() -> str:
    lines = [
        "#compdef pytriton-lite",
        "# Completion of pytriton-lite for zsh. To have it now: source <(pytriton-lite completion zsh)",
        "_pytriton_lite() {",
        "    local curcontext=$curcontext state line",
        "    typeset -A opt_args",
        "    _arguments -C '(- *)--help[Say how the program is used]' '(- *)--version[Print the version]' "
        "'1: :->command' '*:: :->rest'",
        "    case $state in",
        "    command)",
        "        local -a commands=(",
        *(f"            {_quoted(f'{name}:{entry.summary}')}" for name, entry in COMMANDS.items()),
        "        )",
        "        _describe command commands ;;",
        "    rest)",
        "        case $line[1] in",
    ]
    for name, command in _commands().items():
        specs = [f"--{flag}[{text}]" for flag, text in _own_flags(command)]
        for option in command.options.values():
            repeated = "*" if option.repeatable else ""
            text = re.sub(r"([\[\]:\\])", r"\\\1", _description(option))
            if not option.kind.takes_argument:
                specs.append(f"{repeated}--{option.flag}[{text}]")
                continue
            known = _values_of(option)
            action = "_files" if known is None else f"({known})" if known else " "
            specs.append(f"{repeated}--{option.flag}=[{text}]:{option.flag}:{action}")
        if command.words is not Words.NONE:
            specs.append(f"*: :_files{' -/' if command.words is Words.DIRECTORIES else ''}")
        elif name == "completion":
            specs.append(f"1:shell:({' '.join(_SHELLS)})")
        lines += [f"        {name})", "            _arguments \\"]
        lines += [f"                {_quoted(spec)} \\" for spec in specs]
        lines += ["            ;;"]
    lines += [
        "        esac ;;",
        "    esac",
        "}",
        # as a file of $fpath it is the function itself; read by `source` it makes itself known
        "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then",
        '    _pytriton_lite "$@"',
        "else",
        "    compdef _pytriton_lite pytriton-lite",
        "fi",
    ]
    return "\n".join(lines)


# Fish ---------------------------------------------------------------------------------------------------------------


def _fish() -> str:
    start = "complete -c pytriton-lite"
    lines = [
        "# Completion of pytriton-lite for fish. To have it now: pytriton-lite completion fish | source",
        f"{start} -f",
        f"{start} -n __fish_use_subcommand -l help -d 'Say how the program is used'",
        f"{start} -n __fish_use_subcommand -l version -d 'Print the version'",
    ]
    for name, entry in COMMANDS.items():
        lines.append(f"{start} -n __fish_use_subcommand -a {name} -d {_quoted_fish(entry.summary)}")
    for name, command in _commands().items():
        seen = f"{start} -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} -l {flag} -d {_quoted_fish(text)}" for flag, text in _own_flags(command)]
        for option in command.options.values():
            kind = ""
            if option.kind.takes_argument:
                known = _values_of(option)
                kind = " -r -F" if known is None else f" -x -a '{known}'" if known else " -x"
            lines.append(f"{seen} -l {option.flag}{kind} -d {_quoted_fish(_description(option))}")
        if command.words is Words.FILES:
            lines.append(f"{seen} -F")
        elif command.words is Words.DIRECTORIES:
            lines.append(f"{seen} -a '(__fish_complete_directories)'")
        elif name == "completion":
            lines.append(f"{seen} -a '{' '.join(_SHELLS)}'")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: Mapping[str, Callable[[], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


def run(arguments: Arguments) -> int:
    """Print the script of one shell. Raises UsageError."""
    if len(arguments.words) != 1:
        raise UsageError(f"error: completion needs the name of a shell: {', '.join(_SHELLS)}")
    (shell,) = arguments.words
    if shell not in _SHELLS:
        raise UsageError(
            f"error: there is no completion for the shell {shell}; expected one of {', '.join(_SHELLS)}, "
            f"the nearest is '{nearest(shell, _SHELLS)}'"
        )
    print(_SHELLS[shell]())
    return 0


COMMAND = Command(
    usage=("completion bash|zsh|fish",),
    introduction="""\
Prints a script that makes a shell complete the commands, their options and what these take. To have it in this shell, and in
every later one:

  bash   source <(pytriton-lite completion bash)          the same line in ~/.bashrc
  zsh    source <(pytriton-lite completion zsh)           the same line in ~/.zshrc, behind compinit
  fish   pytriton-lite completion fish | source           the same line in ~/.config/fish/config.fish""",
    options={},
    run=run,
)
