"""What is drawn and written from result files. Drawings are made where matplotlib is, the rest everywhere."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import plots
import pytest
from benchmark_error import BenchmarkError

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed (group plots)"
)

FACTS = {"CPU": "a processor, 2 cores", "Date": "2026-11-23 10:00 UTC"}


def cell(callers: int, **rates: list[float]) -> dict[str, Any]:
    """Of each server the rates of its rounds; other figures follow from them."""
    samples = {
        server: [
            {"per_second": rate, "p50_us": rate / 2, "p99_us": rate * 2, "cpu_us": rate / 10, "others_cores": 0.0}
            for rate in of
        ]
        for server, of in rates.items()
    }
    middles = {server: of[len(of) // 2] for server, of in samples.items()}
    return {"callers": callers, "samples": samples, "medians": middles}


def server(name: str, title: str, *, version: str = "1.0", python: str = "3.11.7") -> dict[str, str]:
    return {
        "name": name,
        "title": title,
        "version": version,
        "python": python,
        "form": "V2",
        "configured": f"as {title} likes it",
    }


PEERS: dict[str, Any] = {
    "facts": FACTS,
    "options": {"servers": ["ours", "triton", "ray"], "callers": [1, 8], "rounds": 3, "seconds": 4},
    "servers": [server("ours", "pytriton-lite"), server("triton", "Triton"), server("ray", "Ray Serve")],
    "cells": [
        cell(1, ours=[900, 1000, 1100], triton=[1000, 1000, 1000], ray=[90, 100, 200]),
        cell(8, ours=[9000, 10_000, 12_000], triton=[5000, 5000, 5000], ray=[190, 200, 210]),
    ],
}
PYTHONS: dict[str, Any] = {
    "facts": FACTS,
    "options": {"servers": ["ours"], "callers": [1], "rounds": 1, "seconds": 2},
    "servers": [
        server("ours-3.11", "pytriton-lite, Python 3.11", version="1.0 (compiled)"),
        server("ours-3.13", "pytriton-lite, Python 3.13", version="1.0 (compiled)", python="3.13.0"),
    ],
    "cells": [cell(1, **{"ours-3.11": [1000.0], "ours-3.13": [1500.0]})],
}
GROWTH: dict[str, Any] = {
    "facts": FACTS,
    "options": {"axes": ["models", "connections"], "largest": 100, "rounds": 3, "seconds": 2},
    "rows": [
        {"axis": axis, "size": size, "engine_us": base + extra}
        for extra in (0.0, 1.0, 5.0)
        for axis, size, base in (("models", 1, 19.0), ("models", 100, 24.0), ("connections", 0, 10.0))
    ],
}
PAGE = "# Title\n\n" + "\n".join(
    f"<!-- {name}: written by benchmarks/plots.py -->\nold {name}\n<!-- end of {name} -->\n"
    for kind in plots.KINDS.values()
    for name in kind.blocks
)


def table_of(block: str) -> list[list[str]]:
    """Rows of the table without headings."""
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def without_cpu() -> dict[str, Any]:
    """As a machine without /proc gives it."""
    document = copy.deepcopy(PEERS)
    for one in document["cells"]:
        for figures in [*one["medians"].values(), *(sample for of in one["samples"].values() for sample in of)]:
            figures["cpu_us"] = None
    return document


# ----------------------------------------------------------------------------------------------------------------------
# Text


def test_table_of_peers_has_a_row_for_each_server_and_number_of_callers() -> None:
    rows = table_of(plots.peers_block(PEERS))
    assert [(row[0], row[1]) for row in rows] == [
        (title, callers) for title in ("pytriton-lite", "Triton", "Ray Serve") for callers in ("1", "8")
    ]
    assert rows[1] == ["pytriton-lite", "8", "10,000", "30 %", "5,000", "20,000", "1,000"]


def test_cpu_that_is_not_known_is_a_dash_in_the_table_and_no_point_in_a_line() -> None:
    assert {row[-1] for row in table_of(plots.peers_block(without_cpu()))} == {"–"}
    line = plots.lines_of(without_cpu())[0]
    assert line.points("cpu_us") == ([], [])
    assert line.points("per_second") == ([1, 8], [1000, 10_000])


def test_figures_of_others_that_are_better_are_named() -> None:
    assert plots.better_than_ours(PEERS) == (
        "Better than this server: Triton in p50 (callers: 8); Triton in p99 (callers: 8); Triton in CPU (callers: 8);"
        " Ray Serve in p50 (callers: 1, 8); Ray Serve in p99 (callers: 1, 8); Ray Serve in CPU (callers: 1, 8)."
    )
    faster = copy.deepcopy(PEERS)
    faster["cells"][0]["medians"]["triton"]["per_second"] = 1001
    assert "Triton in requests/s (callers: 1);" in plots.better_than_ours(faster)


def test_page_says_so_where_no_other_server_is_better() -> None:
    best = copy.deepcopy(PEERS)
    best["servers"] = best["servers"][:1]
    assert plots.peers_block(best).endswith("In no row of this table is another server better than this one.")
    assert "better than this one" not in plots.peers_block(PYTHONS)


def test_table_of_servers_tells_version_python_form_and_configuration() -> None:
    assert table_of(plots.servers_block(PEERS))[2] == ["Ray Serve", "1.0", "3.11.7", "V2", "as Ray Serve likes it"]


def test_command_of_a_result_has_its_options_and_a_triton_of_everybody() -> None:
    command = plots.peers_command(PEERS)
    assert command.startswith('make bench-peers ARGS="--servers=ours,triton,ray --callers=1,8 --rounds=3 --seconds=4 ')
    assert "--triton='tritonserver --model-repository={models} " in command
    assert command.endswith(' --result=benchmarks/results/peers.json"')


def test_command_of_several_pythons_names_each_and_asks_for_the_compiled_build_if_it_was_one() -> None:
    assert plots.peers_command(PYTHONS) == (
        'HATCH_BUILD_HOOKS_ENABLE=true make bench-peers ARGS="--servers=ours --callers=1 --rounds=1 --seconds=2'
        ' --python=python3.11 --python=python3.13 --result=benchmarks/results/pythons.json"'
    )


def test_growth_is_the_median_of_the_rounds_and_its_ratio_to_the_smallest_size() -> None:
    assert table_of(plots.growth_block(GROWTH)) == [
        ["models", "1", "20.0", "1.00"],
        ["models", "100", "25.0", "1.25"],
        ["connections", "0", "11.0", "1.00"],
    ]
    assert plots.growth_command(GROWTH).startswith(
        "python benchmarks/growth.py --axes=models,connections --largest=100 --rounds=3 --seconds=2 "
    )


def test_block_replaces_what_is_between_its_markers_and_nothing_else() -> None:
    page = plots.with_block(PAGE, "peers", r"new \1 text")
    assert page == PAGE.replace("old peers\n", "\nnew \\1 text\n\n")
    assert plots.with_block(page, "peers", r"new \1 text") == page


@pytest.mark.parametrize("page", ["", PAGE + PAGE, PAGE.replace("<!-- end of peers -->", "")])
def test_page_without_exactly_one_such_block_is_refused(page: str) -> None:
    with pytest.raises(BenchmarkError, match="has to have the lines '<!-- peers: written by"):
        plots.with_block(page, "peers", "text")


def test_page_of_the_project_holds_the_tables_of_the_stored_results() -> None:
    page = written = plots.PAGE.read_text()
    for name, kind in plots.KINDS.items():
        document = json.loads((plots.RESULTS / f"{name}.json").read_text())
        for block, text in kind.blocks.items():
            written = plots.with_block(written, block, text(document))
    assert page == written


def test_pages_of_the_project_show_every_drawing() -> None:
    pages = (plots.PAGE, plots.PAGE.with_name("deploying.md"))  # those of capacity_plots.py are on the other one
    shown = {name for page in pages for name in re.findall(r"\]\(plots/([^)]+\.svg)\)", page.read_text())}
    assert shown == {path.name for path in (plots.PAGE.parent / "plots").iterdir()}


# ----------------------------------------------------------------------------------------------------------------------
# The whole program


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Result files, a page and a folder for drawings, all in the test's own folder."""
    for name, document in (("peers", PEERS), ("pythons", PYTHONS), ("growth", GROWTH)):
        tmp_path.joinpath(f"{name}.json").write_text(json.dumps(document))
    tmp_path.joinpath("page.md").write_text(PAGE)
    files = [f"--{name}={tmp_path / name}.json" for name in plots.KINDS]
    return [*files, f"--page={tmp_path / 'page.md'}", f"--plots={tmp_path / 'plots'}"]


def test_result_that_is_not_there_is_named_and_the_page_stays_as_it_is(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("growth.json").unlink()
    assert plots.main(arguments) == 1
    assert "growth.json" in capsys.readouterr().err
    assert tmp_path.joinpath("page.md").read_text() == PAGE


@needs_matplotlib
def test_same_results_give_the_same_bytes_without_a_date(arguments: list[str], tmp_path: Path) -> None:
    def drawn() -> dict[str, bytes]:
        assert plots.main(arguments) == 0
        return {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}

    first = drawn()
    assert first.keys() == {"peers-throughput.svg", "peers-latency.svg", "peers-cpu.svg", "pythons.svg", "growth.svg"}
    assert drawn() == first
    assert all(b"<dc:date>" not in drawing for drawing in first.values())
    assert max(map(len, first.values())) < 64 * 1024


@needs_matplotlib
def test_drawing_names_every_server_and_what_its_axes_are(arguments: list[str], tmp_path: Path) -> None:
    assert plots.main(arguments) == 0
    texts = texts_of(tmp_path / "plots" / "peers-throughput.svg")
    assert {"pytriton-lite", "Triton", "Ray Serve", "callers", "requests/s", "1", "8"} <= texts
    assert {"3.11.7", "3.13.0", "1 caller"} <= texts_of(tmp_path / "plots" / "pythons.svg")
    assert {"models", "connections", "µs per request", "0", "100"} <= texts_of(tmp_path / "plots" / "growth.svg")


def texts_of(drawing: Path) -> set[str]:
    return {
        "".join(element.itertext()).strip()
        for element in ElementTree.parse(drawing).iter()
        if element.tag.endswith("text")
    }


@needs_matplotlib
def test_results_without_cpu_can_be_drawn(arguments: list[str], tmp_path: Path) -> None:
    tmp_path.joinpath("peers.json").write_text(json.dumps(without_cpu()))
    assert plots.main(arguments) == 0
    assert "Triton" in texts_of(tmp_path / "plots" / "peers-cpu.svg")
