"""Medians, ratios, spreads, and the three forms in which they come out."""

from __future__ import annotations

import json

from comparison_report import (
    FIGURES,
    OURS,
    PEER,
    Cell,
    CellResult,
    Ratio,
    Sample,
    as_json,
    as_markdown,
    as_text,
    others_cores,
    ratio,
    spread_percent,
    table,
)

CELL = Cell("add_sub", "http-binary", 32, "wrk")
STREAM = Cell("decoupled", "grpc-stream", 8, "h2load", responses=100)


def sample(
    per_second: float, *, p50: float = 100, p99: float = 200, cpu: float | None = 50, others: float | None = 0.0
) -> Sample:
    return Sample(per_second=per_second, p50_us=p50, p99_us=p99, cpu_us=cpu, others_cores=others)


def both() -> CellResult:
    ours = [sample(2000, p50=50), sample(1500, p50=60), sample(3000, p50=40)]
    peer = [sample(1000, cpu=100), sample(1000, cpu=100), sample(2000, cpu=100)]
    return CellResult(CELL, {OURS: ours, PEER: peer})


def test_ratio_is_taken_in_each_round_and_then_the_median() -> None:
    assert ratio(both(), FIGURES["per_second"]) == Ratio(median=1.5, lowest=1.5, highest=2.0)


def test_ratio_needs_both_sides_and_the_figure_on_both() -> None:
    alone = CellResult(CELL, {OURS: [sample(1000)]})
    assert ratio(alone, FIGURES["per_second"]) is None
    one_unknown = CellResult(CELL, {OURS: [sample(1, cpu=None)], PEER: [sample(1)]})
    assert ratio(one_unknown, FIGURES["cpu_us"]) is None
    assert ratio(one_unknown, FIGURES["per_second"]) == Ratio(1.0, 1.0, 1.0)


def test_spread_is_the_whole_width_in_percent_of_the_median() -> None:
    assert spread_percent([sample(900), sample(1000), sample(1200)]) == 30.0


def test_table_has_a_line_for_each_side_and_one_for_the_ratios() -> None:
    assert table([both()])[1:] == [
        ("add_sub", "http-binary", "32", "ours", "2,000", "75 %", "50", "200", "50.0"),
        ("add_sub", "http-binary", "32", "peer", "1,000", "100 %", "100", "200", "100.0"),
        ("add_sub", "http-binary", "32", "ours/peer", "1.50", "1.50–2.00", "0.50", "1.00", "0.50"),
    ]


def test_responses_have_a_column_where_a_scenario_streams_them() -> None:
    stream = CellResult(STREAM, {OURS: [sample(30), sample(20)], PEER: [sample(10), sample(10)]})
    headings, *lines = table([both(), stream])
    assert headings[-1] == "responses/s"
    assert [line[-1] for line in lines] == ["2,000", "1,000", "1.50", "2,500", "1,000", "2.50"]
    assert "responses/s" not in table([both()])[0]


def test_table_of_one_side_has_no_ratios_and_says_what_is_not_known() -> None:
    alone = CellResult(CELL, {PEER: [sample(1000, cpu=None)]})
    assert table([alone])[1:] == [("add_sub", "http-binary", "32", "peer", "1,000", "0 %", "100", "200", "–")]


def test_cross_check_is_told_from_the_cell_that_it_checks() -> None:
    result = CellResult(Cell("add_sub", "grpc", 1, "perf_analyzer"), {OURS: [sample(10)]})
    assert table([result])[1][1] == "grpc (perf_analyzer)"


def test_what_everybody_else_used_is_told_over_all_samples() -> None:
    results = [
        CellResult(CELL, {OURS: [sample(1, others=0.1)], PEER: [sample(1, others=0.9)]}),
        CellResult(CELL, {OURS: [sample(1, others=0.2), sample(1, others=None)]}),
    ]
    assert others_cores(results) == (0.2, 0.9)
    assert others_cores([CellResult(CELL, {OURS: [sample(1, others=None)]})]) is None


def test_markdown_is_a_table_below_the_facts() -> None:
    lines = as_markdown({"CPU": "a fast one"}, [both()]).splitlines()
    assert lines[:2] == ["* CPU: a fast one", ""]
    assert {line.count("|") for line in lines[2:]} == {10}
    assert lines[3] == "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    lead = "| add_sub | http-binary | 32 | "
    assert lines[-1] == f"{lead}**ours/peer** | **1.50** | **1.50–2.00** | **0.50** | **1.00** | **0.50** |"


def test_text_columns_line_up() -> None:
    lines = [line for line in as_text({}, [both()]).splitlines() if line]
    assert len(lines) == 4
    assert len({line.index(word) for line, word in zip(lines, ["server", "ours", "peer", "ours/peer"])}) == 1
    assert len({len(line) for line in lines}) == 1


def test_json_keeps_every_sample_and_what_was_made_of_them() -> None:
    document = json.loads(json.dumps(as_json({"CPU": "a fast one"}, {"rounds": 3}, [both()])))
    (cell,) = document["cells"]
    assert (document["facts"], document["options"]) == ({"CPU": "a fast one"}, {"rounds": 3})
    described = {"scenario": "add_sub", "protocol": "http-binary", "callers": 32, "generator": "wrk", "responses": 1}
    assert {key: cell[key] for key in described} == described
    assert [entry["per_second"] for entry in cell["samples"]["ours"]] == [2000, 1500, 3000]
    assert cell["medians"]["peer"] == {"per_second": 1000, "p50_us": 100, "p99_us": 200, "cpu_us": 100}
    assert cell["ratios"]["per_second"] == {"median": 1.5, "lowest": 1.5, "highest": 2.0}
