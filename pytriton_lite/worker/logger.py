"""``pb_utils.Logger`` (model API, section 2.8)."""

from __future__ import annotations

import enum
import sys

from pytriton_lite.worker.api_errors import COMPILED, refuse_arguments
from pytriton_lite.worker.arguments import Unfit, text
from pytriton_lite.worker.process import host


class _LogLevel(enum.Enum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


class Logger:
    """Log lines of a model in the server's log, with the caller's file and line. A class used as it is."""

    __module__ = COMPILED
    __slots__ = ()

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str | bytes, level: _LogLevel = _LogLevel.INFO) -> None:
        try:
            if not isinstance(level, _LogLevel):
                raise Unfit
            line = text(message)
        except Unfit:
            refuse_arguments("log", "(message: str, level: LogLevel = INFO) -> None", (message, level))
        _log(line, level)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _log_checked("log_info", message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _log_checked("log_warn", message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _log_checked("log_error", message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        _log_checked("log_verbose", message, _LogLevel.VERBOSE)


def _log_checked(function: str, message: object, level: _LogLevel) -> None:
    try:
        line = text(message)
    except Unfit:
        refuse_arguments(function, "(message: str) -> None", (message,))
    _log(line, level)


def _log(message: str, level: _LogLevel) -> None:
    caller = sys._getframe(1)
    while caller.f_back is not None and caller.f_code.co_filename == __file__:
        caller = caller.f_back
    host().log(level.value, caller.f_code.co_filename, caller.f_lineno, message)
