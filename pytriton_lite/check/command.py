"""The command: its options, its output, its exit status."""

from __future__ import annotations

import enum
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytriton_lite.check.backend_file import ALLOW_PICKLE
from pytriton_lite.check.findings import Finding, Severity, summary
from pytriton_lite.check.repositories import Rules, check
from pytriton_lite.commands import Arguments, Command, Words, own_option
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.workers.backends import Backend, Backends
from pytriton_lite.ipc import device
from pytriton_lite.logs import is_for_people
from pytriton_lite.remote.url import RemoteUrl
from pytriton_lite.settings import BY_FLAG, SWITCH, Kind, Option, RateLimitMode, Settings, UsageError

_OF_SERVE = (
    "model-repository",
    "model-store",
    "remote-cache-directory",
    "model-config-name",
    "disable-auto-complete-config",
    "strict-model-config",
    "model-namespacing",
    "backend-directory",
    "backend-config",
    "allow-requirements",
    "rate-limit",
    "rate-limit-resource",
)
"""Options of the server that decide about what is right."""


_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


class Format(enum.Enum):
    TEXT = "text"
    JSON = "json"


def _parse_format(text: str) -> Format:
    try:
        return Format(text.lower())
    except ValueError:
        known = ", ".join(member.value for member in Format)
        raise ValueError(f"invalid argument for --format: {text}; expected one of {known}") from None


_FORMAT = own_option(
    "format",
    Kind("{text,json}", _parse_format),
    "text: one finding on each line, file:line:column first, and a line with their numbers. json: one object on each line, "
    "with severity, model, file, line, column, field, text and hint.",
    default=Format.TEXT,
)
_WARNINGS_AS_ERRORS = own_option(
    "warnings-as-errors", SWITCH, "End with status 1 if there are warnings, too.", default=False
)

OPTIONS: Mapping[str, Option] = {
    **{flag: BY_FLAG[flag] for flag in _OF_SERVE},
    **{option.flag: option for option in (_FORMAT, _WARNINGS_AS_ERRORS)},
}
"""What the command takes, by flag."""


def run(arguments: Arguments) -> int:
    """Print what is found on standard output. 0 when nothing was found that matters, else 1. Raises UsageError."""
    own = (_FORMAT.field, _WARNINGS_AS_ERRORS.field)
    settings = Settings(**{field: value for field, value in arguments.values.items() if field not in own})
    if not settings.model_repository:
        raise UsageError("error: check needs a directory of models, as in: pytriton-lite check model_repository")
    urls = [place for place in settings.model_repository if not isinstance(place, Path)]
    findings, models = _check_remote(settings, urls) if urls else _check(settings.model_repository, settings)
    is_text = arguments.value(_FORMAT) is Format.TEXT
    tell = _teller() if is_text else lambda finding: print(finding.as_json())
    for finding in findings:
        tell(finding)
    if is_text:
        print(summary(findings, models))
    counting = {Severity.ERROR, Severity.WARNING} if arguments.value(_WARNINGS_AS_ERRORS) else {Severity.ERROR}
    return int(any(finding.severity in counting for finding in findings))


def _teller() -> Callable[[Finding], None]:
    """What prints a finding as text: in colours for who looks at a terminal."""
    if not is_for_people(sys.stdout):
        return lambda finding: print(finding.as_text())
    from rich.console import Console  # nobody else needs it
    from rich.text import Text

    console = Console(highlight=False)

    def tell(finding: Finding) -> None:
        text = Text(finding.as_text())
        text.highlight_words([f" {finding.severity.value}: "], _STYLES[finding.severity])
        console.print(text, soft_wrap=True)

    return tell


def _check(places: Sequence[Path | RemoteUrl], settings: Settings) -> tuple[list[Finding], int]:
    backends = Backends(settings.backend_directory.resolve(), settings.backend_settings)
    folders = backends.folders()
    rules = Rules(
        config_name=settings.model_config_name,
        strict_config=settings.disable_auto_complete_config,
        namespacing=settings.model_namespacing,
        allow_requirements=settings.allow_requirements,
        backends=folders,
        allowing_pickles=[name for name in folders if _allows_pickles(backends.find(name, folders))],
        gpu_ids=device.visible_device_ids(),
        resources=settings.rate_limit_resource if settings.rate_limit is not RateLimitMode.OFF else None,
    )
    return check([place for place in places if isinstance(place, Path)], rules)


def _allows_pickles(backend: Backend | None) -> bool:
    return backend is not None and backend.settings.get(ALLOW_PICKLE, "").lower() in ("true", "1")


def _check_remote(settings: Settings, urls: Sequence[RemoteUrl]) -> tuple[list[Finding], int]:
    """Check copies, as a server has them; findings name the places that were copied."""
    from pytriton_lite.remote.repositories import RemoteRepositories  # what few repositories need

    try:
        remote = RemoteRepositories(
            urls, cache_directory=settings.remote_cache_directory, environ=os.environ, clock=time.monotonic_ns
        )
    except InferenceError as error:
        findings, models = _check(settings.model_repository, settings)
        return [*(Finding(Severity.ERROR, "", str(url), error.message) for url in urls), *findings], models
    try:
        refreshed = remote.refresh()
        unread = {_named(text, urls) for text in refreshed.repositories}
        copies = {url: remote.path_of(url) for url in urls if str(url) not in unread}
        places = [place if isinstance(place, Path) else copies.get(place) for place in settings.model_repository]
        findings, models = _check([place for place in places if place is not None], settings)
        failed = [Finding(Severity.ERROR, "", _named(text, urls), text) for text in refreshed.repositories]
        failed += [
            Finding(Severity.ERROR, name, f"{_named(text, urls)}/{name}", text)
            for name, text in refreshed.models.items()
        ]
    finally:
        remote.close()
    for url, copy in copies.items():
        findings = [_renamed(finding, str(copy), str(url)) for finding in findings]
    return [*failed, *findings], models


def _named(text: str, urls: Sequence[RemoteUrl]) -> str:
    """The repository that *text* is about."""
    return max((str(url) for url in urls if str(url) in text), key=len)


def _renamed(finding: Finding, copy: str, url: str) -> Finding:
    return replace(finding, file=finding.file.replace(copy, url), text=finding.text.replace(copy, url))


COMMAND = Command(
    usage=("check [options] REPOSITORY ...",),
    introduction="""\
Says what is wrong with the models in each REPOSITORY, without serving them and without running their code: one finding on
each line, with its place, what a server would say of it, and what to do. Ends with status 1 if a model would not load.""",
    options=OPTIONS,
    run=run,
    words_are="model-repository",
    words=Words.DIRECTORIES,
)
