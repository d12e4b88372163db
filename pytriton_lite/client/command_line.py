"""What the commands that ask a server share in the terminal: options that say where it is, tables, a line of progress."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.target import Protocol, Target, parse_target
from pytriton_lite.commands import Arguments, CommandError, own_option
from pytriton_lite.settings import INT32_MAX, SWITCH, Kind, parse_integer

_REDRAW_S = 0.1
_NARROWEST_CELL = 8


def positive(text: str) -> float:
    """A number above 0. Raises ValueError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a number above 0, got '{text}'")
    return value


def count_from(low: int) -> Callable[[str], int]:
    """What reads a whole number from *low* on, and raises ValueError for anything else."""
    return lambda text: parse_integer(text, low=low, high=INT32_MAX)


def utf8(text: str) -> str:
    """*text* that goes to a server. Raises ValueError where the command line had bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected UTF-8, got {os.fsencode(text)!r}") from None
    return text


def choice(*words: str) -> Kind:
    """One of *words*."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"expected one of {', '.join(words)}, got '{text}'")
        return text.lower()

    return Kind("{" + ",".join(words) + "}", parse)


SECONDS = Kind("<seconds>", positive)
COUNT = Kind("<integer>", count_from(1))
FILE = Kind("<file>", str)

MODEL_NAME = own_option("model-name", Kind("<model>", utf8), "The model.")
MODEL_VERSION = own_option(
    "model-version", Kind("<version>", utf8), "A version of the model; without it, the server chooses.", default=""
)
URL = own_option(
    "url",
    Kind("<url>", str),
    "The server: HOST:PORT, http(s)://HOST:PORT, grpc(s)://HOST:PORT or unix:PATH.",
    shown_default="localhost:8000, with gRPC localhost:8001",
)
PROTOCOL = own_option("protocol", choice("http", "grpc"), "What is spoken with the server.", shown_default="http")
HEADER = own_option("header", Kind("<name>:<value>", str), "A header that every request has.", repeatable=True)
CACERT = own_option("cacert", FILE, "Certificates of authorities to be trusted over TLS, PEM.")
CERT = own_option("cert", FILE, "The client's certificate, for a server that asks for one over TLS, PEM.")
KEY = own_option("key", FILE, "The key of --cert, PEM, where it is not in the same file.")
INSECURE = own_option("insecure", SWITCH, "Trust any certificate.", default=False)
TIMEOUT = own_option("timeout", SECONDS, "How long to wait for an answer.", default=60.0)

TARGET_OPTIONS = (MODEL_NAME, MODEL_VERSION, URL, PROTOCOL, HEADER, CACERT, CERT, KEY, INSECURE, TIMEOUT)
"""What every command that asks a server takes; `target_of` reads them."""
TARGET_LETTERS = {
    "m": MODEL_NAME.flag,
    "x": MODEL_VERSION.flag,
    "u": URL.flag,
    "i": PROTOCOL.flag,
    "H": HEADER.flag,
}
"""perf_analyzer's letters for them."""


def target_of(arguments: Arguments) -> Target:
    """The server that the options name. Raises ClientError."""
    headers = []
    for text in arguments.value(HEADER):
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not (name + value).isprintable():
            raise ClientError(f"-H '{text}': expected NAME:VALUE")
        headers.append((name.strip().lower(), value.strip()))
    url, protocol = arguments.value(URL), arguments.value(PROTOCOL)
    if protocol is None:
        protocol = "grpc" if url is not None and url.startswith(("grpc://", "grpcs://")) else "http"
    return parse_target(
        url,
        Protocol(protocol),
        ca_file=arguments.value(CACERT),
        verifies=not arguments.value(INSECURE),
        certificate_file=arguments.value(CERT),
        key_file=arguments.value(KEY),
        headers=tuple(headers),
    )


def shapes_of(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by the names of inputs, of what ``--shape`` was given. Raises ClientError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, colon, dims = text.rpartition(":")
        try:
            shape = tuple(int(dim) for dim in dims.split(",")) if dims else ()
        except ValueError:
            shape = (-1,)
        if not colon or any(dim < 0 for dim in shape):
            raise ClientError(f"--shape {text}: expected NAME:N,N with lengths from 0 on")
        shapes[name] = shape
    return shapes


def reporting(run: Callable[[Arguments], int]) -> Callable[[Arguments], int]:
    """*run* of a command, with ClientErrors told as the command line tells them."""

    @functools.wraps(run)
    def wrapped(arguments: Arguments) -> int:
        try:
            return run(arguments)
        except ClientError as error:
            raise CommandError(str(error)) from None

    return wrapped


def width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[bool] = ()) -> str:
    """Rows under *heads*, if there are any, in columns as wide as they have to be.

    The last one gives way where the terminal is narrow. *right* says of each column whether it is aligned there.
    """
    cells = [list(row) for row in ((heads, *rows) if heads else rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(cells[0]))]
    room = width() - sum(widths[:-1]) - 2 * (len(widths) - 1)
    widths[-1] = max(min(widths[-1], room), min(widths[-1], _NARROWEST_CELL))
    lines = []
    for row in cells:
        texts = []
        for index, text in enumerate(row):
            if len(text) > widths[index]:
                text = text[: widths[index] - 1] + "…"
            is_right = index < len(right) and right[index]
            texts.append(text.rjust(widths[index]) if is_right else text.ljust(widths[index]))
        lines.append("  ".join(texts).rstrip())
    return "\n".join(lines)


class Progress:
    """One line at the bottom of a terminal, which says how far something is; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_shown = self._stream.isatty()
        self._drawn_at = 0.0
        self._is_drawn = False

    def show(self, text: str, share: float | None = None) -> None:
        """Put *text* there, with a bar where *share* says how much is done, 0 to 1; at most ten times a second."""
        now = time.monotonic()
        if not self._is_shown or now - self._drawn_at < _REDRAW_S:
            return
        self._drawn_at = now
        if share is not None:
            done = round(20 * min(max(share, 0.0), 1.0))
            text = f"{'█' * done}{'░' * (20 - done)} {text}"
        self._stream.write(f"\r\x1b[2K{text[: width() - 1]}")
        self._stream.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Take the line away, so that something else can be printed."""
        if self._is_drawn:
            self._stream.write("\r\x1b[2K")
            self._stream.flush()
            self._is_drawn = False
