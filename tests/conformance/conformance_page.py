"""docs/conformance.md, made of the rows and the deviations: ``python -m tests.conformance.conformance_page`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from tests.conformance import http1_deviations, http1_rows, http2_deviations, http2_more_rows, http2_rows
from tests.conformance import http1_runner as http1
from tests.conformance import http2_runner as http2
from tests.harness import PROJECT

PAGE = PROJECT / "docs" / "conformance.md"

_INTRODUCTION = """\
# Conformance to HTTP/1.1, HTTP/2 and HPACK

What the server does with requests that are well formed, malformed, or meant to be read in two ways: each case is sent to a real
server over a socket, and the answer compared with what the RFC has. Run them yourself, in less than a minute:

```bash
.venv/bin/python -m pytest tests/conformance
```

The rows are data (`tests/conformance/*_rows.py`), and this page is made of them by
`python -m tests.conformance.conformance_page`. A test fails when the two differ.

* **HTTP/2** runs on both transports of gRPC: `http2`, our own and the default, and `grpcio`, which is Google's C core. The
  list is that of h2spec 2.6 with its numbers, whose sections are those of RFC 7540. The column *rule* has the section of
  RFC 9113, which replaced it, or of RFC 7541; `rfc9113` are cases that h2spec has not. Requests are calls of gRPC, since
  nothing else is served there. A stream error has to leave the connection alive. A connection error has to say GOAWAY with the
  right code, and to close.
* **HTTP/1.1** runs over every way that the server reads a request: the hot path of inference, the application behind it, and
  the ports of HTTP and of metrics. Where the connection is to stay open another request follows, whose answer must be the next
  thing that comes: so a request that hides in the body of another one is found.
* Where the RFC leaves a choice, a case wants one of several outcomes.
* A deviation is tested as well: the server is held to what the table below says that it does.
"""


def page() -> str:
    return "\n".join([_INTRODUCTION, *_counts(), *_deviations(), *_cases()]) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


# ---------------------------------------------------------------------------------------------- counts


def _counts() -> Iterator[str]:
    rows = [
        _count(list_, transport, [row.id for row in cases], deviations)
        for list_, cases in (("h2spec 2.6", http2_rows.ROWS), ("RFC 9113, beyond it", http2_more_rows.ROWS))
        for transport, deviations in http2_deviations.DEVIATIONS.items()
    ]
    ids = [row.id for row in http1_rows.ROWS]
    played = sum(len(row.ways) for row in http1_rows.ROWS)
    rows.append(_count("RFC 9112 and RFC 9110", f"HTTP, metrics ({played} runs)", ids, http1_deviations.DEVIATIONS))
    yield from _table(("list", "over", "cases", "as the RFC has it", "deviations"), rows)


def _count(list_: str, over: str, ids: list[str], deviations: Mapping[str, object]) -> tuple[str, ...]:
    differing = len(deviations.keys() & set(ids))
    return list_, over, str(len(ids)), str(len(ids) - differing), str(differing)


# ---------------------------------------------------------------------------------------------- deviations


def _deviations() -> Iterator[str]:
    yield "## Deviations\n"
    yield from _table(
        ("over", "what it does", "why", "number", "cases"),
        [
            *_grouped("HTTP", http1_deviations.DEVIATIONS),
            *_grouped("gRPC, `http2`", http2_deviations.HTTP2),
            *_grouped("gRPC, `grpcio`", http2_deviations.GRPCIO),
        ],
    )
    yield "What `grpcio` does is Google's code. Who needs more uses `--grpc-transport=http2`, the default.\n"


def _grouped(over: str, deviations: Mapping[str, http1.Deviation | http2.Deviation]) -> Iterator[tuple[str, ...]]:
    """One line for all cases with the same outcome and reason, in the order in which they are written."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for id_, deviation in deviations.items():
        grouped.setdefault((str(deviation.does), deviation.reason), []).append(id_)
    for (does, reason), ids in grouped.items():
        yield over, does, reason, str(len(ids)), ", ".join(ids)


# ---------------------------------------------------------------------------------------------- cases


def _cases() -> Iterator[str]:
    """A table for each list, with a mark at cases of which a transport has a deviation."""
    cases = (*http2_rows.ROWS, *http2_more_rows.ROWS)
    for name, rows in groupby(cases, key=lambda row: row.id.partition("/")[0]):
        yield f"## HTTP/2: {name}\n"
        yield from _table(
            ("case", "rule", "the client", "wanted", "deviates", "note"),
            [(row.id, row.rule, row.what, str(row.wants), ", ".join(_deviating(row.id)), row.note) for row in rows],
        )
    yield "## HTTP/1.1\n"
    yield from _table(
        ("case", "the client", "wanted", "over", "deviates", "note"),
        [
            (
                row.id,
                row.what,
                str(row.wants),
                _ways(row),
                "yes" if row.id in http1_deviations.DEVIATIONS else "",
                row.note,
            )
            for row in http1_rows.ROWS
        ],
    )


def _deviating(id_: str) -> list[str]:
    return [name for name, deviations in http2_deviations.DEVIATIONS.items() if id_ in deviations]


def _ways(row: http1.Row) -> str:
    return "all" if row.ways == http1.ALL else ", ".join(way.name for way in row.ways)


if __name__ == "__main__":
    PAGE.write_text(page())
