"""Requests by turns, and those of sequences and which of them are under way at once."""

from __future__ import annotations

from dataclasses import replace

from pytriton_lite.bench.calls import Plan, Sequence_, SequenceMaker, difference, make_plan
from pytriton_lite.bench.input_data import Row
from pytriton_lite.bench.settings import Sequences, Traffic
from pytriton_lite.client.messages import InferResponse
from pytriton_lite.client.target import Protocol, parse_target
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor

TRAFFIC = Traffic(parse_target("127.0.0.1:1", Protocol.HTTP), "m")


def maker(sequences: Sequences, *, part: int = 0, parts: int = 1, lists: tuple[int, ...] = (1,)) -> SequenceMaker:
    """A maker whose data have lists of so many rows."""
    return SequenceMaker(Plan(TRAFFIC, streams=[[Row(())] * rows for rows in lists]), sequences, part, parts)


def sent(maker: SequenceMaker, sequence: Sequence_) -> int:
    """How many requests it has."""
    number = 0
    while not sequence.is_over:
        maker.prepare(sequence)
        number += 1
    maker.end(sequence)
    return number


def rows(number: int, nbytes: int) -> list[Row]:
    return [Row((Tensor("A", dtypes.INT8, (nbytes,), bytes([at]) * nbytes),)) for at in range(number)]


def test_a_batch_begins_at_every_row_while_there_is_memory_for_that() -> None:
    traffic = replace(TRAFFIC, batch=2)
    few = make_plan(traffic, [rows(5, 4)], batches=True).prepared
    assert [request.data[-8:] for request in few] == [
        bytes([at] * 4 + [following] * 4) for at, following in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0))
    ]


def test_many_large_rows_are_in_one_batch_each() -> None:
    """Batches at every row would take 64 times their memory."""
    nbytes = 1 << 15
    traffic = replace(TRAFFIC, batch=64)
    large = make_plan(traffic, [rows(100, nbytes)], batches=True).prepared
    assert [set(request.data[-64 * nbytes :]) for request in large] == [
        set(range(64)),
        {*range(64, 100), *range(28)},
    ]


def test_an_output_of_another_shape_or_type_is_not_as_expected() -> None:
    expected = [Tensor("A", dtypes.INT8, (2, 2), bytes(4))]
    for datatype, shape, says in (
        (dtypes.INT8, (2, 2), ""),
        (dtypes.INT8, (4,), "output 'A' is INT8 [4], and validation_data says INT8 [2,2]"),
        (dtypes.UINT8, (2, 2), "output 'A' is UINT8 [2,2], and validation_data says INT8 [2,2]"),
    ):
        response = InferResponse("m", "1", "", [Tensor("A", datatype, shape, bytes(4))], {})
        assert difference(response, expected) == says


def test_ids_go_up_to_before_the_second_number_and_begin_anew() -> None:
    one = maker(Sequences(1, 1, 0, 5, 8))
    ids = []
    for _ in range(5):
        sequence = one.make()
        ids.append(sequence.id)
        sent(one, sequence)
    assert ids == [5, 6, 7, 5, 6]


def test_no_two_sequences_under_way_have_the_same_id() -> None:
    one = maker(Sequences(2, 1, 0, 1, 4))
    long = one.make()
    for _ in range(6):
        short = one.make()
        assert short.id != long.id
        sent(one, short)


def test_processes_share_the_ids() -> None:
    """Four ids for four sequences, in three processes: the first of which has two of them."""
    makers = [maker(Sequences(4, 1, 0, 7, 11), part=part, parts=3) for part in range(3)]
    under_way = [one.make() for one in (*makers, makers[0])]
    assert sorted(sequence.id for sequence in under_way) == [7, 8, 9, 10]
    for one, sequence in zip(makers, under_way):
        one.end(sequence)
        assert one.make().id == sequence.id, "the only one of that process that is free"


def test_a_sequence_of_a_file_has_as_many_requests_as_its_list_has_rows() -> None:
    one = maker(Sequences(1, None, 20, 1, None), lists=(3,))
    assert [sent(one, one.make()) for _ in range(2)] == [3, 3]
    several = maker(Sequences(1, None, 20, 1, None), lists=(3, 2))
    assert [sent(several, several.make()) for _ in range(3)] == [3, 2, 3]


def test_a_length_that_was_asked_for_holds_for_lists_too() -> None:
    one = maker(Sequences(1, 5, 0, 1, None), lists=(3, 2))
    assert [sent(one, one.make()) for _ in range(2)] == [5, 5]
