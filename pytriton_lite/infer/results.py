"""Responses to the terminal and to files: tables, JSON Lines, NPZ."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import orjson

from pytriton_lite.client.command_line import table
from pytriton_lite.client.errors import ClientError, unwritable
from pytriton_lite.client.messages import InferResponse, array_of, json_values, response_json
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor, format_shape

FORMATS = ("table", "json", "jsonl", "npz")
_SHOWN_VALUES = 64


class Writer(Protocol):
    """Takes results in the order of the requests."""

    def add(self, index: int, responses: Sequence[InferResponse]) -> None:
        """All responses to the request number *index*, from 0."""

    def add_error(self, index: int, request_id: str, text: str) -> None:
        """Request number *index* has failed."""

    def close(self) -> None:
        """Write what is not written yet. Raises ClientError."""


def open_writer(form: str, path: str | None, *, is_single: bool) -> Writer:
    """What writes in one of `FORMATS` to *path*, None for stdout. Raises ClientError."""
    if form == "npz":
        if path is None:
            raise ClientError("--format npz needs a file: -o FILE.npz")
        _check_writable(path)
        return _Npz(path)
    stream = sys.stdout
    if path is not None:
        try:
            stream = Path(path).open("w", encoding="utf-8")  # noqa: SIM115  # the writer closes it
        except OSError as error:
            raise unwritable(path, error) from None
    if form == "table":
        return _Table(stream, is_single)
    return _Json(stream, is_indented=form == "json", is_single=is_single)


def _check_writable(path: str) -> None:
    """So that an hour of answers is not lost for a folder that does not exist."""
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise unwritable(path, error) from None


class _Stream:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def close(self) -> None:
        """See `Writer`."""
        if self.stream is sys.stdout:
            self.stream.flush()
        else:
            self.stream.close()


class _Json(_Stream):
    """A document for each response, in a line of its own or indented."""

    def __init__(self, stream: TextIO, *, is_indented: bool, is_single: bool) -> None:
        super().__init__(stream)
        self._option = orjson.OPT_INDENT_2 if is_indented else 0
        self._is_single = is_single

    def add(self, index: int, responses: Sequence[InferResponse]) -> None:
        for response in responses:
            document = response_json(response)
            self._write(document if self._is_single else {"index": index, **document})

    def add_error(self, index: int, request_id: str, text: str) -> None:
        self._write({"index": index, **({"id": request_id} if request_id else {}), "error": text})

    def _write(self, document: dict[str, Any]) -> None:
        self.stream.write(orjson.dumps(document, option=self._option, default=str).decode() + "\n")
        self.stream.flush()  # whoever reads it may wait for this one before there is another request


class _Table(_Stream):
    """A line for each output."""

    def __init__(self, stream: TextIO, is_single: bool) -> None:
        super().__init__(stream)
        self._is_single = is_single

    def add(self, index: int, responses: Sequence[InferResponse]) -> None:
        for response in responses:
            if not self._is_single:
                self.stream.write(f"#{index}{' ' + response.id if response.id else ''}\n")
            rows = [
                (tensor.name, tensor.datatype.name, format_shape(tensor.shape), shown_values(tensor))
                for tensor in response.outputs
            ]
            if rows:
                self.stream.write(table((), rows) + "\n")
            else:
                self.stream.write("(a response without outputs)\n")

    def add_error(self, index: int, request_id: str, text: str) -> None:
        self.stream.write(f"#{index}{' ' + request_id if request_id else ''} error: {text}\n")


def shown_values(tensor: Tensor) -> str:
    """The first elements, separated by blanks; texts in quotes."""
    values = json_values(tensor) if tensor.shape.count(0) == 0 else []
    shown = values[:_SHOWN_VALUES]
    if tensor.datatype is dtypes.BYTES:
        texts = [orjson.dumps(value[:200]).decode() for value in shown]
    elif tensor.datatype.name in ("FP16", "FP32", "FP64", "BF16"):
        texts = [f"{value:.6g}" for value in shown]
    else:
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in shown]
    more = len(values) - len(shown)
    return " ".join(texts) + (f" … {more:,} more" if more else "")


class _Npz:
    """Arrays by the names of outputs; of many requests stacked, with a first dimension that counts them.

    Where they cannot be stacked, since shapes differ or requests failed or have several responses, each array has the number of
    its request behind its name: ``OUTPUT0.17``, ``OUTPUT0.17.2`` for the third of several responses.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._found: list[tuple[int, list[dict[str, np.ndarray[Any, Any]]]]] = []
        self._failed = 0

    def add(self, index: int, responses: Sequence[InferResponse]) -> None:
        self._found.append((index, [{t.name: _plain_array(t) for t in one.outputs} for one in responses]))

    def add_error(self, index: int, request_id: str, text: str) -> None:
        self._failed += 1

    def close(self) -> None:
        try:
            # Not by np.savez: its own parameters, `file` for one, are names that an output may have.
            with open(self._path, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                for name, array in self._arrays().items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
        except OSError as error:
            raise unwritable(self._path, error) from None

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        firsts = [responses[0] for _, responses in self._found if len(responses) == 1]
        is_complete = not self._failed and len(firsts) == len(self._found)
        if is_complete and len(firsts) == 1:
            return firsts[0]
        if is_complete and firsts and len({_signature(first) for first in firsts}) == 1:
            return {name: np.stack([first[name] for first in firsts]) for name in firsts[0]}
        return {
            f"{name}.{index}" if len(responses) == 1 else f"{name}.{index}.{number}": array
            for index, responses in self._found
            for number, response in enumerate(responses)
            for name, array in response.items()
        }


def _signature(arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    return tuple((name, array.shape, array.dtype.kind) for name, array in arrays.items())


def _plain_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Without Python's objects, which NPZ keeps as pickles: BYTES are ``S<n>``, so zeros at an element's end are lost."""
    array = array_of(tensor)
    return array.astype(np.bytes_) if array.dtype == object else array
