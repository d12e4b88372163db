"""What was found, and how it is printed."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pytriton_lite.config.directory_name import shown


class Severity(enum.Enum):
    ERROR = "error"
    """The model, or an ensemble that it is part of, does not load."""
    WARNING = "warning"
    NOTE = "note"
    """The model loads and runs here; under Triton it would not."""


@dataclass(frozen=True)
class Finding:
    """``line`` and ``column`` are counted from 1, and 0 where the file as a whole is meant, or is a directory.

    ``text`` is what a server would say, in Triton's words where Triton says it; ``hint`` what to do. ``field`` is a path such
    as ``input[1].dims``, or empty.
    """

    severity: Severity
    model: str
    file: str
    text: str
    line: int = 0
    column: int = 0
    field: str = ""
    hint: str = ""

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    def as_text(self) -> str:
        """One line, as compilers write them, so that editors find the place."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        hint = f" ({self.hint})" if self.hint else ""
        return shown(" ".join(f"{place}: {self.severity.value}: {self.text}{hint}".split("\n")))

    def as_json(self) -> str:
        """One JSON object on one line; its members are the same for every finding."""
        return json.dumps(
            {
                "severity": self.severity.value,
                "model": self.model,
                "file": self.file,
                "line": self.line or None,
                "column": self.column or None,
                "field": self.field,
                "text": self.text,
                "hint": self.hint,
            }
        )


def summary(findings: Iterable[Finding], models: int) -> str:
    """The last line of the text form."""
    counts = Counter(finding.severity for finding in findings)
    parts = [
        _count(models, "model"),
        _count(counts[Severity.ERROR], "error"),
        _count(counts[Severity.WARNING], "warning"),
    ]
    if counts[Severity.NOTE]:
        parts.append(_count(counts[Severity.NOTE], "note"))
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
