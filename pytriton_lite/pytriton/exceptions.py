"""PyTriton's exceptions."""

from __future__ import annotations

from pytriton_lite.binding.adapter import Unrecoverable


class PyTritonError(Exception):
    """Whatever the names of PyTriton refuse."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        """What is wrong."""


class PyTritonValidationError(PyTritonError):
    """A configuration, or what is bound, cannot be."""


class PyTritonInvalidOperationError(PyTritonError):
    """Something was asked for at the wrong time."""


class PyTritonBadParameterError(PyTritonError):
    """An argument is wrong."""


class PyTritonModelConfigError(PyTritonError):
    """A model's configuration is wrong."""


class PyTritonRuntimeError(PyTritonError):
    """Anything else."""


class PyTritonUnrecoverableError(PyTritonError, Unrecoverable):
    """What a function raises that cannot go on: the server stops."""
