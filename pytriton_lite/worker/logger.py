"""``pb_utils.Logger`` (model API, section 2.8)."""

from __future__ import annotations

import sys

from pytriton_lite.worker.api_errors import COMPILED, NumberedEnum, refuse_arguments
from pytriton_lite.worker.arguments import Unfit, text
from pytriton_lite.worker.process import host


class Logger:
    """Log lines of a model in the server's log, with the caller's file and line. A class used as it is."""

    __module__ = COMPILED
    __slots__ = ()

    class LogLevel(NumberedEnum):
        """How serious a line is."""

        __module__ = COMPILED

        INFO = 0
        WARNING = 1
        ERROR = 2
        VERBOSE = 3

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str | bytes, level: LogLevel = LogLevel.INFO) -> None:
        try:
            if not isinstance(level, Logger.LogLevel):
                raise Unfit
            line = text(message)
        except Unfit:
            refuse_arguments("log", "(message: str, level: LogLevel = INFO) -> None", (message, level))
        _log(line, level)

    @staticmethod
    def log_info(message: str | bytes) -> None:
        _log_checked("log_info", message, Logger.INFO)

    @staticmethod
    def log_warn(message: str | bytes) -> None:
        _log_checked("log_warn", message, Logger.WARNING)

    @staticmethod
    def log_error(message: str | bytes) -> None:
        _log_checked("log_error", message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str | bytes) -> None:
        _log_checked("log_verbose", message, Logger.VERBOSE)


def _log_checked(function: str, message: object, level: Logger.LogLevel) -> None:
    try:
        line = text(message)
    except Unfit:
        refuse_arguments(function, "(message: str) -> None", (message,))
    _log(line, level)


def _log(message: str, level: Logger.LogLevel) -> None:
    caller = sys._getframe(1)
    while caller.f_back is not None and caller.f_code.co_filename == __file__:
        caller = caller.f_back
    host().log(level.value, caller.f_code.co_filename, caller.f_lineno, message)
