"""What the log writes and how: the part that can change while the server runs (HTTP spec, section 14)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LogFormat(enum.Enum):
    DEFAULT = "default"
    ISO8601 = "ISO8601"
    JSON = "json"
    """Ours: one JSON object per line."""


@dataclass(frozen=True, kw_only=True)
class LogSettings:
    """One field for each setting of the log API, whose names have ``log_`` in front.

    ``file`` is empty for stderr, and stays as it is; ``verbose_level`` 0 is off, any other number is on.
    """

    file: str = ""
    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: LogFormat = LogFormat.DEFAULT

    @property
    def levels(self) -> int:
        """Bit n is set when level n of pb_utils.Logger is wanted: INFO 0, WARNING 1, ERROR 2, VERBOSE 3."""
        return self.info << 0 | self.warning << 1 | self.error << 2 | (self.verbose_level > 0) << 3


FILE_IS_FIXED = "log file location can not be updated through network protocol"
"""What a client is told that would have another file."""


def stored_level(number: int) -> int:
    """*number* as Triton keeps a verbosity: in 32 bits with a sign, where what is negative is off (asked of 2.51)."""
    low = number & 0xFFFFFFFF
    return low if low < 1 << 31 else 0
