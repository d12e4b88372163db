"""The two ways in which a configuration is refused (model_config.md, section 1, shapes A and B)."""

from __future__ import annotations

from pytriton_lite.core.errors import ErrorCode, InferenceError


class PollError(Exception):
    """Shape A: the model's configuration cannot be read or makes no sense, so no version of it is looked at.

    The client learns only that the model could not be polled; ``detail`` is for the log.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def invalid(text: str) -> InferenceError:
    """A broken rule as shape B. Where the rule is checked while polling, the caller turns it into a `PollError`."""
    return InferenceError(ErrorCode.INVALID_ARG, text)
