"""Requests as they go over a wire, made before the measurement, and what tells a right answer from a wrong one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytriton_lite.bench.input_data import MOST_BYTES, Row, Streams, batched
from pytriton_lite.bench.settings import Sequences, Traffic
from pytriton_lite.client import grpc_codec, http_codec
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.http_wire import request_head
from pytriton_lite.client.messages import InferRequest, InferResponse, Parameter, array_of
from pytriton_lite.client.target import Protocol
from pytriton_lite.core.tensor import Tensor, format_shape


@dataclass(frozen=True)
class Prepared:
    """One request, ready to be sent."""

    data: bytes
    """Head and body of HTTP; the message of gRPC."""
    id: bytes
    """Stands in the right answer where the server gives ids back."""
    expected: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All that a sender needs for its requests; it goes to each of them whole."""

    traffic: Traffic
    prepared: Sequence[Prepared] = ()
    """Requests by turns, of models without sequences."""
    streams: Streams = ()
    """Rows that sequences send, batched already; those requests are made as they are sent, for each has an id and flags."""
    checks_ids: bool = False


def make_request(
    traffic: Traffic, row: Row, request_id: str, more: Sequence[tuple[str, Parameter]] = ()
) -> InferRequest:
    """The request of a row, which has its batch already."""
    parameters = {**traffic.parameters, **dict(more)}
    if traffic.is_streaming:
        parameters[grpc_codec.EMPTY_FINAL] = True
    return InferRequest(traffic.model, row.inputs, traffic.version, request_id, (), parameters)


def encode(traffic: Traffic, request: InferRequest) -> bytes:
    """Head and body of HTTP, or the message of gRPC."""
    target = traffic.target
    if target.protocol is Protocol.GRPC:
        return grpc_codec.encode_request(request)
    headers, body = http_codec.encode_request(request, binary_in=traffic.binary_in, binary_out=traffic.binary_out)
    path = target.prefix + http_codec.model_path(traffic.model, traffic.version, "infer")
    return request_head(target.authority, "POST", path, {**headers, **dict(target.headers)}, len(body)) + body


def make_plan(traffic: Traffic, streams: Streams, *, batches: bool) -> Plan:
    """What senders are to send. Raises ClientError."""

    def joined(rows: Sequence[Row]) -> Iterator[Row]:
        return (batched(rows, at, traffic.batch, batches=batches) for at in _starts(rows, traffic.batch))

    if traffic.sequences is not None:
        return Plan(traffic, streams=[list(joined(rows)) for rows in streams])
    prepared = []
    for number, row in enumerate(row for rows in streams for row in joined(rows)):
        request_id = f"bench-{number}-"  # of which no other is the beginning
        prepared.append(
            Prepared(encode(traffic, make_request(traffic, row, request_id)), request_id.encode(), row.expected)
        )
    return Plan(traffic, prepared)


def _starts(rows: Sequence[Row], batch: int) -> range:
    """At which of *rows* batches begin: at every one, or, where those would take too much memory, each row is in one batch."""
    nbytes = batch * sum(tensor.nbytes for row in rows for tensor in row.inputs)
    return range(0, len(rows), 1 if nbytes <= MOST_BYTES else batch)


class Sequence_:
    """One sequence under way: which request is its next."""

    __slots__ = ("at", "id", "length", "rows")

    def __init__(self, sequence_id: int, length: int, rows: Sequence[Row]) -> None:
        self.id = sequence_id
        self.length = length
        self.rows = rows
        self.at = 0

    @property
    def is_over(self) -> bool:
        """Whether its last request was made."""
        return self.at >= self.length


class SequenceMaker:
    """Sequences one after another, with ids that no other sequence under way has, of this sender or another."""

    def __init__(self, plan: Plan, sequences: Sequences, part: int, parts: int) -> None:
        """*part* of *parts* is the sender's own number: each takes every *parts*-th id.

        There are at least as many ids as sequences under way in all parts together.
        """
        self._plan = plan
        self._sequences = sequences
        self._next = sequences.first_id + part
        self._first = self._next
        self._parts = parts
        self._made = part
        self._random = random.Random(part)
        self._ids: set[int] = set()
        """Ids of the sequences that this sender has under way."""

    def make(self) -> Sequence_:
        """Another sequence. The caller says `end` once it is over or given up."""
        plan, sequences = self._plan, self._sequences
        rows = plan.streams[self._made % len(plan.streams)]
        self._made += self._parts
        if sequences.length is None:
            length = len(rows)
        else:
            spread = sequences.length * sequences.variation_percent / 100
            length = max(1, round(sequences.length + self._random.uniform(-spread, spread)))
        return Sequence_(self._take_id(), length, rows)

    def end(self, sequence: Sequence_) -> None:
        """No request of *sequence* is under way any more: its id may be used again."""
        self._ids.remove(sequence.id)

    def _take_id(self) -> int:
        while True:
            sequence_id = self._next
            self._next += self._parts
            if self._sequences.end_id is not None and self._next >= self._sequences.end_id:
                self._next = self._first
            if sequence_id not in self._ids:  # a long one may be under way still when the range is through
                self._ids.add(sequence_id)
                return sequence_id

    def prepare(self, sequence: Sequence_) -> Prepared:
        """The next request of *sequence*, which is not over."""
        at = sequence.at
        sequence.at = at + 1
        row = sequence.rows[at % len(sequence.rows)]
        request_id = f"bench-{sequence.id}-{at}-"
        flags: list[tuple[str, Parameter]] = [
            ("sequence_id", sequence.id),
            ("sequence_start", at == 0),
            ("sequence_end", sequence.is_over),
        ]
        request = make_request(self._plan.traffic, row, request_id, flags)
        return Prepared(encode(self._plan.traffic, request), request_id.encode(), row.expected)


def difference(response: InferResponse | None, expected: Sequence[Tensor]) -> str:
    """What in *response*, the first one to a request, is not as *expected*; empty where everything is."""
    if response is None:
        return "there was no response"
    given = {tensor.name: tensor for tensor in response.outputs}
    for tensor in expected:
        output = given.get(tensor.name)
        if output is None:
            return f"the answer lacks output '{tensor.name}' of validation_data"
        is_kind, expected_kind = _kind(output), _kind(tensor)
        if is_kind != expected_kind:
            return f"output '{tensor.name}' is {is_kind}, and validation_data says {expected_kind}"
        if bytes(output.content()) != bytes(tensor.content()):
            return f"output '{tensor.name}' is not as validation_data says"
    return ""


def _kind(tensor: Tensor) -> str:
    """Data type and shape, in words: a data type that has come with a plan is not the constant of that name."""
    return f"{tensor.datatype.name} {format_shape(tensor.shape)}"


def check_response(response: InferResponse, names: Sequence[str]) -> None:
    """Look at a whole answer once, before the load. Raises ClientError where it is none of the model's."""
    for tensor in response.outputs:
        array_of(tensor)
    missing = [name for name in names if name not in {tensor.name for tensor in response.outputs}]
    if missing and not response.is_final:
        raise ClientError(f"the answer lacks output '{missing[0]}'")
