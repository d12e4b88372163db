"""The arithmetic of the capacity model, the simulated machine, and the simulated cluster where SimPy is installed."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import capacity_cases
import pytest
from benchmark_error import BenchmarkError
from capacity import RESULTS, checks_in, main, read_costs, read_samples
from capacity_cases import drawn
from capacity_fit import DIRECT, GROUPS, Machine, loads
from capacity_machine import Sample
from capacity_model import Cost, Costs, Unattainable, Wanted, erlang_c, plan, wait_quantile
from machine_simulation import Outcome, Part, Parts, Workload, simulate

COSTS = Costs(Cost(50.0, 1.0), Cost(30.0, 0.5), {"haproxy": Cost(25.0)})


# One machine ----------------------------------------------------------------------------------------------------------------

PARTS = Parts(
    Part(10.0, 20.0, 5.0), Part(40.0, 50.0, 20.0), Part(20.0, 60.0, 30.0), {"haproxy": Part(20.0, 25.0, 10.0)}
)


def test_a_caller_alone_wakes_everybody_for_each_request() -> None:
    found = simulate(PARTS, Workload(cores=2, callers=1))
    # Two visits wake the server, one each the others; nobody works at the same time as another.
    expected = {"client": 30.0, "server": 40.0 + 2 * 50.0, "worker": 80.0, "balancer": 0.0}
    assert found.part_us == pytest.approx(expected, rel=0.03)
    assert found.per_second == pytest.approx(1e6 / sum(expected.values()), rel=0.03)
    assert found.busy == pytest.approx(0.5, rel=0.03)


def test_requests_that_come_together_cost_less() -> None:
    alone, many = (simulate(PARTS, Workload(cores=1, callers=callers)) for callers in (1, 32))
    assert many.part_us["server"] < alone.part_us["server"]
    assert many.busy == pytest.approx(1.0, rel=0.01)


def test_a_worker_that_computes_limits_the_rate_and_batches_lift_it() -> None:
    one = simulate(PARTS, Workload(cores=2, callers=32, compute_us=2_000.0))
    assert one.per_second == pytest.approx(1e6 / 2_020, rel=0.05)
    # Of 32 callers 16 are executed, and the other 16 are the next batch.
    batches = simulate(PARTS, Workload(cores=2, callers=32, compute_us=2_000.0, batch=16))
    assert batches.per_second == pytest.approx(16e6 / (2_000 + 16 * 20), rel=0.1)


def test_a_queue_below_saturation_is_that_of_one_worker() -> None:
    """Callers who think for long arrive independently: M/D/1, of which the tail is known."""
    nothing = Part(1e-3)
    parts = Parts(nothing, nothing, nothing)
    load = Workload(cores=2, callers=400, think_us=400 * 10_000.0, compute_us=5_000.0)
    found = simulate(parts, load, requests=20_000)
    busy = found.per_second / 200
    assert busy == pytest.approx(0.5, rel=0.05)
    # P(wait > t) of M/D/1 falls as exp(-1.256 t) at a load of a half, to 1 % at 3.4 services; one's own takes 0.5 to 1.5.
    assert found.p99_us == pytest.approx(22_500.0, rel=0.1)


def test_models_that_wait_do_not_take_the_cores_from_each_other() -> None:
    one, four = (
        simulate(
            PARTS, Workload(cores=2, callers=8 * servers, servers=servers, balancer="haproxy", wait_us=10e3, batch=4)
        )
        for servers in (1, 4)
    )
    assert one.per_second == pytest.approx(400, rel=0.05)
    assert four.per_second == pytest.approx(4 * one.per_second, rel=0.05)
    assert four.part_us["worker"] < 200


def test_what_others_take_is_in_the_tail_alone() -> None:
    load = Workload(cores=2, callers=64, think_us=60e3, compute_us=200.0)
    without, beside = (simulate(replace(PARTS, others=others), load, requests=10_000) for others in (0.0, 0.02))
    assert beside.p50_us == pytest.approx(without.p50_us, rel=0.05)
    assert beside.p99_us > 1.2 * without.p99_us


def test_least_requests_keep_servers_even() -> None:
    one, four = (
        simulate(PARTS, Workload(cores=8, callers=8 * servers, servers=servers, balancer="haproxy", compute_us=900.0))
        for servers in (1, 4)
    )
    assert four.per_second == pytest.approx(4 * one.per_second, rel=0.05)


# From samples to forecasts --------------------------------------------------------------------------------------------------

BASE = {"client": 10.0, "balancer": 20.0, "server": 40.0, "worker": 20.0}
EXTRA = {"client": 20.0, "balancer": 25.0, "server": 100.0, "worker": 60.0}


def sampled(load: Workload) -> Sample:
    """What a machine would show whose parts cost as above, and whose chain leaves no core idle."""
    is_one_by_one = load.callers == 1 or (load.compute_us and load.batch == 1)
    group = 1.0 if is_one_by_one else load.callers / load.servers / GROUPS
    cost = {kind: BASE[kind] + EXTRA[kind] / group for kind in BASE}
    if not load.balancer:
        cost["balancer"] = 0.0
    cost["worker"] += load.compute_us / load.batch
    rate = min(load.cores * 1e6 / sum(cost.values()), 1e6 / cost["worker"], load.servers * 1e6 / cost["server"])
    return Sample(rate, 0.0, 0.0, **{f"{kind}_us": us for kind, us in cost.items()})


@pytest.fixture
def machine() -> Machine:
    return Machine({name: sampled(load) for name, load in loads(["haproxy", "nginx"]).items()})


def test_what_was_measured_is_forecast(machine: Machine) -> None:
    for name in ("many", "many, one core"):
        assert machine.saturated(DIRECT[name]).per_second == pytest.approx(sampled(DIRECT[name]).per_second, rel=0.01)
    found = machine.saturated(DIRECT["paced"])
    assert (found.limit, found.per_second) == ("the workers", pytest.approx(1e6 / (500 + 80)))


def test_what_limits_a_machine_is_said(machine: Machine) -> None:
    assert machine.saturated(Workload(cores=2, callers=256, servers=4, balancer="nginx")).limit == "the machine's cores"
    assert machine.saturated(Workload(cores=2, callers=64, compute_us=3_000.0)).limit == "the workers"
    cpu = machine.saturated(Workload(cores=2, callers=256, servers=4, balancer="nginx", compute_us=500.0))
    assert cpu.limit == "the machine's cores"
    assert cpu.per_second == pytest.approx(2e6 / (500 + 80 + 140 + 30 + 45), rel=0.01)


def test_the_same_seed_draws_the_same_cases_of_every_kind(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def briefly(parts: Parts, load: Workload, *, requests: int) -> Outcome:
        """A tenth of the requests: how long callers think depends on the seed as before, and is merely found less exactly."""
        return simulate(parts, load, requests=requests // 10)

    monkeypatch.setattr(capacity_cases, "simulate", briefly)
    cases = drawn(machine, seed=3, count=6)
    assert cases[:5] == drawn(machine, seed=3, count=5)
    assert cases[:4] != drawn(machine, seed=4, count=4)
    assert {case.is_saturated for case in cases} == {True, False}
    assert {case.load.servers for case in cases} == {1, 2, 4}
    assert any(case.load.batch > 1 for case in cases)
    assert all(case.load.servers == 1 or case.load.balancer for case in cases)


def test_what_is_not_committed_is_no_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "forecasts.json").write_text('{"rows": []}')
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    command = ["check", str(tmp_path / "forecasts.json"), "--out", str(tmp_path / "measured.json")]
    assert main(command) == 2
    assert "is to be committed before anything is measured" in capsys.readouterr().err
    assert not (tmp_path / "measured.json").exists()


def test_a_forecast_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there.json").write_text("{}")
    assert main(["forecast", "--seed", "1", "--out", str(tmp_path / "there.json")]) == 2
    assert "a forecast is made once" in capsys.readouterr().err


def test_the_forecasts_that_are_kept_are_those_of_the_page() -> None:
    """Every row of docs/deploying.md, as the files of results have it."""
    page = (RESULTS.parents[1] / "docs" / "deploying.md").read_text()
    checked = checks_in(RESULTS)
    assert checked
    for one in checked:
        assert f"| {one.case} |" in page
        assert f" {100 * one.off:+.0f}% |" in page


# A cluster ------------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(BenchmarkError, match=r"is not what `capacity\.py calibrate --out` writes"):
        read_costs([file])
    with pytest.raises(BenchmarkError, match="are missing"):
        file.write_text('{"samples": {}}')
        read_samples([file])
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
