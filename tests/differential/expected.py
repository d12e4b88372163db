"""Where a Triton and this server may differ: what differs, and the row of docs/compatibility.md that says why.

`tests/differential/test_differential_expected.py` holds the rows against the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"


@dataclass(frozen=True)
class Deviation:
    """*peer* and *ours* are searched in what was answered, ``STATUS KIND CONTENT``; *row* is the first cell of a row.

    *request* is searched in what was asked; it narrows a deviation that answers alone would make too wide.
    """

    row: str
    peer: str
    ours: str
    request: str = ""

    def explains(self, asked: str, peer: str, ours: str) -> bool:
        found = ((self.request, asked), (self.peer, peer), (self.ours, ours))
        return all(re.search(pattern, text, re.DOTALL) for pattern, text in found)


_OVERFLOW = r"exceed(s|ed)? (the )?maximum|invalid dimension"

DEVIATIONS = (
    Deviation("percent-encoding in a path", r"%5F|^400 ", r"add_sub|^200 ", r"%5F"),
    Deviation("index with a non-boolean `ready`", r"^500 ", r"^400 error Invalid value for 'ready'"),
    Deviation(
        "load or unload with an unreadable body in mode none",
        r"^500 error failed to parse",
        r"explicit model load / unload",
    ),
    Deviation(
        "required input missing while an optional one fills the count",
        r"^200 |^OK ",
        r"missing required input\(s\) \['INPUT_A'\]",
    ),
    Deviation("request parameters of 2⁶³ and more in `parameters()`", r"000\.0", r"e\+1[89]"),
    Deviation(
        "`Inference-Header-Content-Length: abc`", r"^400 error", r"Unable to parse Inference-Header-Content-Length"
    ),
    Deviation("an input given twice and something else wrong", r"already exists in request", r"^([45]00|[A-Z_]+) "),
    Deviation("an output requested twice", r"^(200|OK) ", r"output '.*' already exists in request"),
    Deviation("batch dimension 0 with the bytes of one request", r"got \[0", r"batch size does not match"),
    Deviation("negative dimension, overflowing shape over gRPC", r"^[A-Z_]+ ", _OVERFLOW),
    Deviation("malformed HTTP", r"^0 no answer", r"^400 "),
    Deviation("a key with `..`, or a slash inside", r"^500 error Unable to open", r"invalid shm key"),
    Deviation("a region without a name, gRPC", r"^OK ", r"^INVALID_ARGUMENT "),
    Deviation("equal elements, more than 16 in an item", r"^(200|OK) ", r"^(200|OK) ", r"classification"),
    Deviation(
        "refused requests of a decoupled model on a stream",
        r"^DEADLINE_EXCEEDED",
        r"^OK ",
        r"^gRPC ModelStreamInfer .*\"repeat\"",
    ),
    Deviation(
        "0 bytes of a region",
        r"Invalid offset \+ byte size",
        r"Expected \d+, got 0",
        r"shared_memory_byte_size\W+(int64Param\W+)?0",
    ),
    Deviation(
        "a second region over one key, when the first was unregistered",
        r"Invalid shared memory region",
        r"invalid args|^OK |^200 ",
    ),
    Deviation("status where the first response is an error", r"^400 ", r"^(500|404|503|501) ", r"generate"),
    Deviation("negative `trace_rate` and `log_frequency`", r'"42949672\d\d"', r"out of range", r"[tT]race"),
    Deviation("`/`, `/docs`, `/console/…`", r"^404 ", r"^200 ", r"GET /($|\s|\")"),
    Deviation("`GET /v2/models`", r"^404 ", r"^200 ", r"GET /v2/models(?!/)"),
    Deviation("`response_stats` of decoupled models", r'"response_stats": \{\}', r'"response_stats": \{"'),
)

CONFIGURATIONS = (
    Deviation("duplicate input or output names", "", r"model (in|out)put '.*' is specified more than once for"),
    Deviation(
        "duplicate input or output names",
        "^200 ",
        r"inconsistent",
        r'((?:in|out)put) \{ name: "(\w+)".* \1 \{ name: "\2"',
    ),
    Deviation("a number that its enum does not have", "", r"has the unknown number"),
    Deviation(
        "no `input_name`, no `data_type`, a dim below -1",
        r"^200 |does not match the state data type",
        r"batching state .*(must specify '(input_name|data_type)'|dimension must be)",
    ),
    Deviation("`input_name` of an input or a control", r"^200 ", r"batching state '.*' has the name of"),
    Deviation("`use_growable_memory` without a GPU", r"^200 ", r"use_growable_memory"),
    Deviation("a text in which something is not closed", r": Expected ", r"closes this$"),
    Deviation(
        "a batch input without a data type", r"unexpected batch input data type 'TYPE_INVALID'", r": batch input "
    ),
    Deviation("`MAX_QUEUE_SIZE` (parameter)", r"^200 ", r"MAX_QUEUE_SIZE"),
    Deviation(
        "`BATCH_TENSORS` (parameter), `batch_input`, `batch_output`",
        r"^200 ",
        r"value for BATCH_TENSORS|has the name of|target name is empty|of two batch outputs|dimension \d+ is variable",
    ),
    Deviation("`SHARED_MEMORY_VIEWS` (parameter)", r"^200 ", r"Incorrect value for SHARED_MEMORY_VIEWS"),
    Deviation("`KEEP_FREED_MEMORY` (parameter)", r"^200 ", r"Incorrect value for KEEP_FREED_MEMORY"),
    Deviation("`BATCH_ANY_SHAPES` (parameter)", r"^200 ", r"Incorrect value for BATCH_ANY_SHAPES"),
    Deviation(
        "`EXECUTE_CONCURRENCY`, `CANCEL_COROUTINES` (parameters)",
        r"^200 ",
        r"Incorrect value for (EXECUTE_CONCURRENCY|CANCEL_COROUTINES)",
    ),
    Deviation("what can be seen without the model", "^200 ", r"warmup|\[request id: <id_unknown>\]", "passive: true"),
    Deviation("`libtriton_<b>.so` beside a `model.py`", r"unable to find backend library '", r"searched: '[^']*' ;"),
    Deviation("repository agents", r"libtritonrepoagent_", r"libtritonrepoagent_.*loads no native repository agents"),
)
"""Of `tests/differential/configs.py`."""

_CANCELLED_ALONG = r"^(CANCELLED |400 error |OK )$"
_CANCELS = r"\n    cancel r"

SCHEDULERS = (
    Deviation("cancelled requests in a queue that is full", "Exceeds maximum queue size", r"^(200|OK) ", _CANCELS),
    Deviation(
        "a cancelled request of a sequence, those before it", r"^(200|OK) \{|^no answer", _CANCELLED_ALONG, _CANCELS
    ),
    Deviation(
        "a cancelled request of a sequence, those before it",
        "timeout of the corresponding sequence",
        _CANCELLED_ALONG,
        _CANCELS,
    ),
    Deviation(
        "a sequence that waited in the backlog for longer than it may be idle",
        "must specify the START flag",
        r"^(200|OK) \{",
        "max_sequence_idle_microseconds: 700000",
    ),
)
"""Of `tests/differential/schedulers.py`."""

_SOME_OUTPUTS = "some outputs requested, of which one, or one left out, is also an input of another step"

ENSEMBLES = (
    Deviation(_SOME_OUTPUTS, r"unexpected deadlock", r""),
    Deviation(_SOME_OUTPUTS, r"^OK $", r"", r"\noutputs \{"),
    Deviation(
        "a step, or outputs side by side, with tensors of a decoupled model and others",
        r"^ $",
        r"^READY ",
        r"dec_|ens\d",
    ),
    Deviation("required input missing while an optional one fills the count", r"KeyError: 'IN0'", r"a step failed"),
)
"""Of `tests/differential/ensembles.py`."""


def rows() -> set[str]:
    """The first cells of all tables of the page."""
    return {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")}


def row_for(asked: str, peer: str, ours: str, deviations: Sequence[Deviation] = DEVIATIONS) -> str | None:
    """The row of one of *deviations* that explains a difference."""
    for deviation in deviations:
        if deviation.explains(asked, peer, ours):
            return deviation.row
    return None
