"""Options of an embedded server: those of ``pytriton-lite serve``, as keywords, with other defaults where a program differs."""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton_lite.settings import BY_FLAG, ModelControlMode, Settings, Standing, UsageError, flag_of, nearest

logger = logging.getLogger(__name__)

_LISTENERS = ("http", "grpc", "metrics")
_FIELDS = frozenset(entry.name for entry in dataclasses.fields(Settings))
_NOT_HERE = {
    "watch": "it is for a person at a terminal: use model_control_mode='poll'",
    "model_repository": "name the repositories as the first argument",
}
_LOG = frozenset({"log_verbose", "log_info", "log_warning", "log_error", "log_format", "log_file"})
"""Options that have the server write its log itself."""


def read_options(repository: object, options: Mapping[str, Any]) -> Settings:
    """The settings that *options* make, names of fields of `Settings`, for *repository*.

    A value has the field's type, or is its text as it would be typed. Raises TypeError for a name that is no option's, and
    ValueError for a value that the option does not take, or a combination.
    """
    for name in options:
        if name in _NOT_HERE:
            raise TypeError(f"{name} is no option of an embedded server; {_NOT_HERE[name]}")
        if name not in _FIELDS:
            raise TypeError(f"'{name}' is no option of the server; the nearest is '{nearest(name, _FIELDS)}'")
    try:
        values = {name: _value(name, given) for name, given in options.items() if given is not None}
        places = _places(repository)
        values["model_repository"] = tuple(_parsed("model_repository", place) for place in places)
        for listener in _LISTENERS:
            # Nobody listens who was not asked to.
            values.setdefault(f"allow_{listener}", values.get(f"{listener}_port") is not None)
        for listener in ("http", "grpc"):
            values.setdefault(f"{listener}_address", "127.0.0.1")
        values.setdefault("metrics_address", values["http_address"])
        values.setdefault("allow_console", False)
        values.setdefault("model_control_mode", ModelControlMode.EXPLICIT)
        if values["model_control_mode"] is ModelControlMode.EXPLICIT and places:
            values.setdefault("load_model", ("*",))
        settings = Settings(**values)
    except UsageError as error:
        raise ValueError(str(error)) from None
    for name in options:
        option = BY_FLAG[flag_of(name)]
        if option.standing is Standing.NO_EFFECT:
            logger.warning("option '%s' has no effect: %s", name, option.note)
    return settings


def writes_log(options: Mapping[str, Any]) -> bool:
    """Whether *options* ask for a log that the server writes, and not the program's ``logging``."""
    return any(options.get(name) is not None for name in _LOG)


def _places(repository: object) -> Sequence[Any]:
    if repository is None:
        return ()
    if isinstance(repository, (str, os.PathLike)):
        return (repository,)
    if isinstance(repository, Sequence):
        return repository
    raise TypeError(f"a repository is a path, a URL, or a list of them, not {type(repository).__name__}")


def _value(name: str, given: Any) -> Any:
    option = BY_FLAG[flag_of(name)]
    if not option.repeatable:
        return _parsed(name, given)
    items = (given,) if isinstance(given, (str, os.PathLike)) or not isinstance(given, Sequence) else given
    return tuple(_parsed(name, item) for item in items)


def _parsed(name: str, given: Any) -> Any:
    """*given* through the option's own parser, which knows its bounds; what is no text or number is the value already."""
    if isinstance(given, enum.Enum):
        return given
    if isinstance(given, bool):
        text = "true" if given else "false"
    elif isinstance(given, (str, int, float, os.PathLike)):
        text = os.fspath(given) if isinstance(given, os.PathLike) else str(given)
    else:
        return given
    option = BY_FLAG[flag_of(name)]
    try:
        return option.kind.parse(text)
    except ValueError as error:
        raise UsageError(f"option '{name}': {error}") from None
