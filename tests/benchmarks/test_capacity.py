"""The arithmetic of the capacity model, and the simulation where it is installed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from benchmark_error import BenchmarkError
from capacity import main, read_costs
from capacity_model import Cost, Costs, Unattainable, Wanted, erlang_c, fitted, forecast, plan, wait_quantile

COSTS = Costs(Cost(50.0, 1.0), Cost(30.0, 0.5), Cost(20.0), {"haproxy": Cost(25.0)})


def test_a_cost_is_a_line_through_two_points() -> None:
    cost = fitted((0, 40.0), (64 * 1024, 104.0))
    assert (cost.base_us, cost.per_kib_us) == (40.0, 1.0)
    assert cost.of(10 * 1024) == 50.0
    assert fitted((0, 40.0), (1024, 30.0)).per_kib_us == 0.0


def test_one_core_is_shared_by_all_parts() -> None:
    found = forecast(COSTS, cores=1, nbytes=0)
    assert (found.per_second, found.limit) == (1e6 / 100, "the machine's cores")


@pytest.mark.parametrize(
    ("case", "limit", "per_second"),
    [
        ({"cores": 64}, "the servers' processes", 1e6 / 50),
        ({"cores": 64, "servers": 4, "balancer": "haproxy"}, "the balancer's core", 1e6 / 25),
        ({"cores": 64, "servers": 4, "compute_us": 970.0, "instances": 2}, "the workers", 8 * 1e6 / 1000),
        ({"cores": 2, "servers": 4, "balancer": "haproxy"}, "the machine's cores", 2e6 / 125),
        ({"cores": 2, "compute_us": 970.0, "is_cpu": False}, "the workers", 1e6 / 1000),
    ],
)
def test_what_saturates_first(case: dict[str, float], limit: str, per_second: float) -> None:
    found = forecast(COSTS, nbytes=0, **case)  # type: ignore[arg-type]
    assert found.limit == limit
    assert found.per_second == pytest.approx(per_second)


def test_erlang_c_is_what_tables_have() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)  # M/M/1: the load
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 8.0) == pytest.approx(0.4092, abs=1e-4)
    assert erlang_c(3, 3.0) == 1.0
    assert erlang_c(2000, 1000.0) == pytest.approx(0.0, abs=1e-9)


def test_a_wait_grows_without_end_towards_saturation() -> None:
    waits = [wait_quantile(1, rate, 0.01, 0.99) for rate in (1, 50, 90, 99)]
    assert waits == sorted(waits)
    assert wait_quantile(1, 100, 0.01, 0.99) == math.inf
    assert wait_quantile(1, 0.5, 0.01, 0.99) == 0.0


def test_a_plan_grows_with_the_rate_and_shrinks_with_patience() -> None:
    wanted = Wanted(per_second=10_000, p99_ms=50, nbytes=4096, compute_us=4000, batch=8)
    found = plan(COSTS, wanted)
    ten_times = plan(COSTS, Wanted(per_second=100_000, p99_ms=50, nbytes=4096, compute_us=4000, batch=8))
    patient = plan(COSTS, Wanted(per_second=10_000, p99_ms=500, nbytes=4096, compute_us=4000, batch=8))
    assert found.limit == "the workers"
    assert ten_times.pods == pytest.approx(10 * found.pods, abs=10)
    assert patient.pods <= found.pods
    assert found.pods * found.per_pod * 0.8 >= 10_000
    assert found.price_per_hour == pytest.approx(found.cores * 0.04)


def test_what_nobody_can_serve_is_said() -> None:
    with pytest.raises(Unattainable, match="one request alone takes 100"):
        plan(COSTS, Wanted(per_second=1, p99_ms=50, nbytes=0, compute_us=100_000))


def test_costs_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "costs.json"
    file.write_text("{}")
    with pytest.raises(BenchmarkError, match=r"is not what `capacity\.py measure --out` writes"):
        read_costs(file)
    assert main(["plan", "--costs", str(file), "--rate", "1", "--p99-ms", "1", "--compute-us", "1"]) == 2
    assert "costs.json" in capsys.readouterr().err


def test_the_costs_that_are_kept_make_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "100000", "--p99-ms", "50", "--compute-us", "4000", "--batch", "8"]) == 0
    assert "pods" in capsys.readouterr().out


# The simulation ----------------------------------------------------------------------------------------------------------


def test_a_pod_is_a_queue_of_batches() -> None:
    """Against the arithmetic: one request at a time, of one length, and its known mean wait (M/D/1)."""
    simulation = pytest.importorskip(
        "cluster_simulation", reason="simpy is in the group capacity", exc_type=ImportError
    )
    model = simulation.Model(base_us=0.0, each_us=10_000.0, batch=1, deadline_s=1.0)
    still = simulation.Signal("none", 1.0, lambda window: 1.0)
    cluster = simulation.Cluster(model, still, lambda now: 4 * 70.0, pods=4, most=4, start_s=1.0, seed=1)
    waited: list[float] = []
    scrape = cluster._scrape

    def scraped() -> object:
        window = scrape()
        waited.append(window.queue_us / 1e6)
        return window

    cluster._scrape = scraped
    cluster.run(900)
    load = 0.7
    assert sum(waited) / len(waited) == pytest.approx(0.01 * load / (2 * (1 - load)), rel=0.1)
    assert set(cluster.trace.pods) == {4}


def test_an_autoscaler_follows_its_load() -> None:
    simulation = pytest.importorskip(
        "cluster_simulation", reason="simpy is in the group capacity", exc_type=ImportError
    )
    model = simulation.Model(base_us=40_000.0, each_us=10_000.0, batch=4, deadline_s=0.5)
    rate = simulation.there_and_back(20.0, 200.0, 60.0, 60.0, 600.0)
    pods = simulation.Cluster(model, simulation.CPU, rate, pods=2, most=100, start_s=30.0, seed=1).run(1500).pods
    assert max(pods) >= 200 / model.most_per_second
    assert pods[-1] < max(pods)
