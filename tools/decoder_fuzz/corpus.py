"""The corpora: for each target one file of inputs that reach different code, a line of base64 for each, sorted."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def read(name: str, folder: Path = FOLDER) -> list[bytes]:
    """The inputs of target *name*; none where no file is there."""
    path = folder / f"{name}.txt"
    if not path.exists():
        return []
    return [base64.b64decode(line, validate=True) for line in path.read_text("ascii").splitlines()]


def write(name: str, inputs: Iterable[bytes], folder: Path = FOLDER) -> int:
    """Replace the corpus of target *name*; how many different inputs it has now."""
    different = sorted(set(inputs), key=lambda data: (len(data), data))
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(base64.b64encode(data).decode() + "\n" for data in different)
    (folder / f"{name}.txt").write_text(text, "ascii")
    return len(different)
