"""docs/metrics.md and docs/grafana-dashboard.json: what they name is on the page of a server, and the page has nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytriton_lite.config.text import parse_model_config
from pytriton_lite.engine.counting.latencies import read_latency_metrics
from pytriton_lite.engine.counting.statistics import FailureReason, Refusal
from pytriton_lite.frontends.metrics.gpu import find_gpus
from pytriton_lite.settings import OPTIONS, Settings
from tests.contract.wire_models import IDENTITY, identity_config, wait_until
from tests.frontends.metrics.fake_nvml import FakeNvml
from tests.harness import PROJECT, RunningServer, tensor, write_model
from tests.metrics_text import metrics_page
from tests.openai_routes.openai_models import COMPLETION_CONFIG, SCRIBE
from tests.prometheus_text import PageFamily, read_page

DOCS = PROJECT / "docs"
PAGE = (DOCS / "metrics.md").read_text()
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text())
ROWS = {
    row[0].strip("`"): row
    for row in (
        [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        for line in PAGE.splitlines()
    )
    if len(row) == 4 and row[0].startswith("`")
}
_RECIPES = PAGE.partition("## Recipes")[2].partition("## Statistics")[0]
RECIPES = re.findall(r"\| `([^`]+)` \|$", _RECIPES, re.MULTILINE)
FAMILY = re.compile(r"\b(?:(?:nv|pytriton_lite|process)_|vllm:)[a-z0-9_]+")
_KINDS = {"counter", "gauge", "histogram", "summary"}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, PageFamily]]:
    """What a server with a model, and with GPUs, prints when every choice is made."""
    repository = tmp_path_factory.mktemp("documented") / "models"
    write_model(repository, "served", IDENTITY, identity_config("FP32", "-1"))
    levels = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
    write_model(repository, "with_levels", IDENTITY, identity_config("FP32", "-1", more=levels))
    cached = identity_config("FP32", "-1", more="response_cache { enable: true }")
    write_model(repository, "cached", IDENTITY, cached)
    write_model(repository, "scribe", SCRIBE, COMPLETION_CONFIG)
    flags = (
        "--cache-config=local,size=1000000",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=histogram_latencies=true",
        "--metrics-interval-ms=1",
        "--frontends=1",
    )
    with RunningServer(repository, flags=flags) as server:
        assert server.infer("served", [tensor("INPUT0", "FP32", [1], [1.0])]).status == 200
        assert server.post("/v1/completions", {"model": "scribe", "prompt": "a b c"}).status == 200

        def page() -> dict[str, PageFamily]:
            return read_page(server.get(server.metrics_url).body.decode())

        wait_until(lambda: "nv_cpu_utilization" in page())
        found = page()
    gpus = find_gpus(lambda: ("aaaa",), {}, FakeNvml)
    assert gpus is not None
    yield {**found, **read_page(metrics_page([], gpus.read()))}


def test_the_documentation_names_every_family_and_no_other(families: dict[str, PageFamily]) -> None:
    assert set(ROWS) == set(families)


def test_types_and_labels_are_documented_as_they_are(families: dict[str, PageFamily]) -> None:
    for name, (_, kind, labels, _) in ROWS.items():
        assert name in families, f"no model of this test has {name}"
        family = families[name]
        assert kind == family.kind, name
        names = {key for _, pairs in family.samples for key, _ in pairs} - {"model", "version"}
        if name == "pytriton_lite_build_info":
            names.add("version")
        assert set(re.findall(r"`(\w+)`", labels)) == names, name


def test_reasons_are_documented(families: dict[str, PageFamily]) -> None:
    for name, reasons in (
        ("nv_inference_request_failure", FailureReason),
        ("pytriton_lite_rejected_requests", Refusal),
    ):
        assert {reason.value for reason in reasons} <= set(re.findall(r"`([A-Z_]+)`", ROWS[name][3]))


def test_flags_exist_and_have_the_defaults_that_are_told() -> None:
    named = set(re.findall(r"--([a-z][a-z-]+)", PAGE))
    assert named <= {option.flag for option in OPTIONS}
    assert {option.flag for option in OPTIONS if "metrics" in option.flag} <= named
    assert Settings().metrics_interval_ms == 2000
    quantiles = re.search(r"\| `summary_quantiles` \| `([^`]+)` \|", PAGE)
    assert quantiles is not None
    chosen = [("summary_latencies", "true"), ("summary_quantiles", quantiles[1])]
    assert read_latency_metrics(chosen) == read_latency_metrics(chosen[:1])


def test_the_configuration_of_the_page_is_one() -> None:
    (text,) = re.findall(r"^```protobuf\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    message = parse_model_config(text, source="the page")
    assert list(message.model_metrics.metric_control[0].histogram_options.buckets) == [1, 2, 4, 8]


def names_in(query: str, families: dict[str, PageFamily]) -> set[str]:
    """The families that *query* asks for."""
    found = set()
    for name in FAMILY.findall(query):
        base = re.sub(r"_(count|sum|bucket)$", "", name)
        is_part = base in families and families[base].kind in ("histogram", "summary")
        found.add(base if is_part else name)
    return found


def test_recipes_ask_for_families_that_exist(families: dict[str, PageFamily]) -> None:
    assert len(RECIPES) == _RECIPES.count("\n| ") - 1  # but for the heading
    for recipe in RECIPES:
        names = names_in(recipe, families)
        assert names and names <= set(families), recipe


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_every_panel_of_the_dashboard_asks_for_families_that_exist(families: dict[str, PageFamily]) -> None:
    """And every family of a model's is shown in one of them."""
    shown = set()
    for panel in panels():
        assert panel["targets"]
        for target in panel["targets"]:
            names = names_in(target["expr"], families)
            assert names and names <= set(families), target["expr"]
            shown |= names
    for variable in DASHBOARD["templating"]["list"]:
        assert variable["type"] == "datasource" or names_in(variable["definition"], families) <= set(families)
    not_shown = {name for name, family in families.items() if family.kind != "summary"} - shown
    assert not_shown == {
        "nv_pinned_memory_pool_total_bytes",
        "nv_pinned_memory_pool_used_bytes",
        "process_virtual_memory_bytes",
        "process_start_time_seconds",
        "pytriton_lite_front_ends",
        "pytriton_lite_front_end_restarts",
        "pytriton_lite_refused_connections",
        "pytriton_lite_build_info",
    }


def test_labels_that_the_dashboard_groups_by_are_there(families: dict[str, PageFamily]) -> None:
    for panel in panels():
        for target in panel["targets"]:
            grouped = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
            known = {
                key
                for name in names_in(target["expr"], families)
                for _, pairs in families[name].samples
                for key, _ in pairs
            }
            assert grouped <= known, target["expr"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= (grouped or known), target[
                "legendFormat"
            ]


def test_no_series_has_a_label_that_prometheus_gives_to_its_target(families: dict[str, PageFamily]) -> None:
    """Prometheus would call it ``exported_instance``, and the dashboard would show the address of the server."""
    labels = {key for family in families.values() for _, pairs in family.samples for key, _ in pairs}
    assert "model_instance" in labels
    assert not labels & {"instance", "job"}


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)]+)\)", PAGE))))
def test_a_link_of_the_metrics_page_leads_somewhere(link: str) -> None:
    assert (DOCS / Path(link)).is_file()
