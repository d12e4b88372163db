"""What a conversion makes: a model's folder, and what it says to the person."""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath

NOTES = "CONVERTED.md"
"""The file of a converted model that says what was taken over and what was not."""


LARGEST_COUNT = (1 << 31) - 1
"""The largest number that config.pbtxt takes for a size of batches or a number of instances."""


class ConversionError(Exception):
    """Why nothing was written; the text says what can be done."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of config.pbtxt. *datatype* is as on the wire: FP32, BYTES."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False

    def as_text(self) -> str:
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        dims = ", ".join(map(str, self.dims))
        optional = " optional: true" if self.is_optional else ""
        return f"{{ name: {quoted(self.name)} data_type: TYPE_{kind} dims: [ {dims} ]{optional} }}"


@dataclass
class Conversion:
    """A model to be written.

    *files* are by their path in the version's directory, *beside* those that lie beside config.pbtxt. ``notes`` say what
    behaves otherwise than before; ``remaining`` is what somebody has to do before the model serves.
    """

    name: str
    runtime: str
    max_batch_size: int = 0
    batch_delay_us: int = 0
    instances: int = 1
    inputs: Sequence[Tensor] = ()
    outputs: Sequence[Tensor] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    beside: Mapping[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)

    def config(self) -> str:
        """The text of config.pbtxt."""
        lines = [f"name: {quoted(self.name)}", 'backend: "python"', f"max_batch_size: {self.max_batch_size}"]
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            if tensors:
                lines += ["", f"{kind} [", ",\n".join(f"  {tensor.as_text()}" for tensor in tensors), "]"]
        if self.max_batch_size > 1:
            lines += ["", f"dynamic_batching {{ max_queue_delay_microseconds: {self.batch_delay_us} }}"]
        lines += ["", f"instance_group [ {{ kind: KIND_CPU count: {self.instances} }} ]"]
        for key, value in self.parameters.items():
            lines += ["", f"parameters {{ key: {quoted(key)} value: {{ string_value: {quoted(value)} }} }}"]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """*text* as a string of protobuf's text form; JSON's escapes are a part of it."""
    return json.dumps(text, ensure_ascii=False)


def write(conversion: Conversion, repository: Path, source: str) -> list[Path]:
    """Write the folder of *conversion*, which came from *source*, into *repository*; the files. Raises ConversionError."""
    name = conversion.name
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None or name.isdigit():
        raise ConversionError(f"'{name}' cannot be the name of a model's folder here; give another with --name")
    folder = repository / name
    if folder.exists():
        raise ConversionError(f"'{folder}' exists; nothing was written")
    try:
        config = conversion.config().encode()
    except UnicodeEncodeError:
        raise ConversionError("the name of an input or output has one half of a surrogate pair; give another") from None
    runtime = resources.files(__package__) / "runtimes"
    texts = {
        "config.pbtxt": config,
        NOTES: notes_text(conversion, source).encode(errors="backslashreplace"),  # names of files may be no UTF-8
        "1/model.py": (runtime / f"{conversion.runtime}_model.py.template").read_bytes(),
        **{f"1/{path}": content for path, content in conversion.files.items()},
        **dict(conversion.beside),
    }
    try:
        repository.mkdir(parents=True, exist_ok=True)
        # Hidden, so that no server takes it for a model; and no half of a folder is left where writing fails.
        with tempfile.TemporaryDirectory(prefix=".converting-", dir=repository) as temporary:
            for path, content in texts.items():
                target = Path(temporary, name, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            Path(temporary, name).rename(folder)
    except OSError as error:
        raise ConversionError(f"cannot write '{folder}': {error.strerror}; nothing was written") from None
    return [folder / path for path in texts]


def notes_text(conversion: Conversion, source: str) -> str:
    """The text of CONVERTED.md."""
    parts = [f"# {conversion.name}\n\nMade by `pytriton-lite convert` from `{source}`."]
    if conversion.remaining:
        parts.append("## To do before it serves\n\n" + _list(conversion.remaining))
    if conversion.notes:
        parts.append("## Different from before\n\n" + _list(conversion.notes))
    return "\n\n".join(parts) + "\n"


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"* {item}" for item in items)


def safe_name(name: str) -> str:
    """*name* of a file in an archive. Raises ConversionError where it leads out of the directory."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ConversionError(
            f"the archive has an entry '{name}', which leads out of its directory; nothing was written"
        )
    return str(path)


def missing_imports(files: Mapping[str, bytes], package: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    """Names that Python *files* import of *package* and that our runtime does not have, each with its place.

    *known* is names by module. What cannot be parsed is told by ``pytriton-lite check`` and by the server.
    """
    missing = []
    for path, content in files.items():
        if not path.endswith(".py"):
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            missing += [f"{path}:{getattr(node, 'lineno', 0)}: {name}" for name in _imports(node, package, known)]
    return missing


def _imports(node: ast.AST, package: str, known: Mapping[str, frozenset[str]]) -> list[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names if alias.name.partition(".")[0] == package]
        return [f"import {name}" for name in names if name not in known]
    if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == package:
        module = node.module or ""
        has = known.get(module, frozenset())
        return [
            f"from {module} import {alias.name}"
            for alias in node.names
            if alias.name not in has and f"{module}.{alias.name}" not in known
        ]
    return []
