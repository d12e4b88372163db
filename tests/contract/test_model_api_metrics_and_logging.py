"""Metrics and log lines of models, as operators see them: model_api.md sections 2.8 and 2.9, rows 131 to 134."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contract.scripted_model import CONFIG, answer, run, write_scripted_model
from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, tensor, write_model

REFUSAL = """
def refusal(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except pb_utils.TritonModelException as error:
        return str(error)

Family = pb_utils.MetricFamily
"""

# In every place of its life: a family, and a line of each level.
EVERYWHERE = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def attempt(where):
    pb_utils.Logger.log_info(f"info in {where}")
    pb_utils.Logger.log_warn(f"warning in {where}")
    pb_utils.Logger.log_error(f"error in {where}")
    pb_utils.Logger.log_verbose(f"chatter in {where}")
    try:
        family = pb_utils.MetricFamily("everywhere", "where a model may count", pb_utils.MetricFamily.COUNTER)
        metric = family.Metric({"where": where})
        metric.increment(1)
        value = metric.value()
        print(f"counted {value} in {where}", flush=True)
        return family
    except pb_utils.TritonModelException as error:
        print(f"refused in {where}: {error}", flush=True)


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        attempt("auto_complete_config")
        return config

    def initialize(self, args):
        self.kept = attempt("initialize")

    def execute(self, requests):
        attempt("execute")
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        attempt("finalize")
"""

# Each instance counts what it executes, in a series of its own and in one that all of them share.
INSTANCES = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("served", "requests that were served", pb_utils.MetricFamily.COUNTER)
        self.own = self.family.Metric({"instance": args["model_instance_name"]})
        self.all = self.family.Metric({"instance": "any"})

    def execute(self, requests):
        word = requests[0].inputs()[0].as_numpy()[0].decode()
        if word == "die":
            os._exit(1)
        for metric in (self.own, self.all):
            metric.increment(1)
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("metrics_of_models")
    write_scripted_model(repository)
    write_scripted_model(repository, "other")
    write_model(repository, "instances", INSTANCES, CONFIG.replace("KIND_CPU }", "KIND_CPU count: 2 }"))
    write_model(repository, "everywhere", EVERYWHERE, CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*")
    with RunningServer(repository, flags=flags) as running:
        yield running


def ask(server: RunningServer, script: str, *, model: str = "scripted") -> Any:
    return answer(server, REFUSAL + script, model=model)


def lines(server: RunningServer, family: str) -> list[str]:
    """What the page says of *family*, HELP and TYPE first. Reads the whole page as Prometheus does."""
    page = server.get(server.metrics_url).body.decode()
    list(text_string_to_metric_families(page))
    return [line for line in page.splitlines() if re.match(rf"(# \w+ )?{family}(_count|_sum|_bucket)?[ {{]", line)]


def util(text: str, instance: str = "scripted_0_0") -> str:
    """UTIL(text) of the model API's shorthand."""
    return f"Failed to process the request for model '{instance}', message: {text}"


# ---------------------------------------------------------------------------------------------- metrics


def test_a_counter_is_on_the_page_and_refuses_what_a_counter_may_not(server: RunningServer) -> None:
    """model_api.md row 131."""
    told = ask(
        server,
        r"""
model.cc = Family(name="cc", description="a counter\nof \\ things", kind=Family.COUNTER)
metric = model.cc.Metric(labels={"b": 'x"y', "a": "1"})
metric.increment(2)
metric.increment(1.5)
answer([metric.value(), refusal(metric.increment, -1), refusal(metric.set, 1), refusal(metric.observe, 1)])
""",
    )
    assert lines(server, "cc") == [
        r"# HELP cc a counter\nof \\ things",
        "# TYPE cc counter",
        'cc{a="1",b="x\\"y"} 3.5',
    ]
    kind = "TRITONSERVER_METRIC_KIND_COUNTER"
    assert told == [
        3.5,
        "Failed to increment metric value: "
        + util(f"{kind} can only be incremented monotonically by non-negative values."),
        "Failed to set metric value: " + util(f"{kind} does not support Set"),
        "Failed to observe metric value: " + util(f"{kind} does not support Observe"),
    ]


def test_a_gauge_is_on_the_page(server: RunningServer) -> None:
    told = ask(
        server,
        """
model.gauge = Family("temperature", "degrees", Family.GAUGE)
metric = model.gauge.Metric()
metric.set(21.5)
metric.increment(-30)
answer([metric.value(), refusal(metric.observe, 1)])
""",
    )
    assert lines(server, "temperature") == [
        "# HELP temperature degrees",
        "# TYPE temperature gauge",
        "temperature -8.5",
    ]
    assert told == [
        -8.5,
        "Failed to observe metric value: " + util("TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"),
    ]


def test_a_histogram_is_on_the_page(server: RunningServer) -> None:
    """model_api.md row 132."""
    told = ask(
        server,
        """
model.histogram = Family("seconds", "a histogram", Family.HISTOGRAM)
metric = model.histogram.Metric(labels={"of": "it"}, buckets=[0.1, 1, 2.5])
for value in (0.05, 1, 5):
    metric.observe(value)
answer([refusal(metric.value), refusal(metric.increment, 1), refusal(metric.set, 1)])
""",
    )
    assert sorted(lines(server, "seconds")) == sorted(
        [
            "# HELP seconds a histogram",
            "# TYPE seconds histogram",
            'seconds_count{of="it"} 3',
            'seconds_sum{of="it"} 6.05',
            'seconds_bucket{of="it",le="0.1"} 1',
            'seconds_bucket{of="it",le="1"} 2',
            'seconds_bucket{of="it",le="2.5"} 2',
            'seconds_bucket{of="it",le="+Inf"} 3',
        ]
    )
    kind = "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support"
    assert told == [
        "Failed to get metric value: " + util(f"{kind} Value"),
        "Failed to increment metric value: " + util(f"{kind} Increment"),
        "Failed to set metric value: " + util(f"{kind} Set"),
    ]


def test_series_live_as_long_as_their_family(server: RunningServer) -> None:
    """model_api.md row 133: local ones go with ``execute``, and a metric that is deleted leaves its series."""
    ask(
        server,
        """
def local():
    family = Family("local", "gone at once", Family.COUNTER)
    family.Metric().increment(1)
local()
model.kept = Family("kept", "stays", Family.COUNTER)
metric = model.kept.Metric({"n": "1"})
metric.increment(4)
del metric
answer(0)
""",
    )
    assert lines(server, "local") == []
    assert lines(server, "kept")[2:] == ['kept{n="1"} 4']
    ask(server, "del model.kept; answer(0)")
    assert lines(server, "kept") == []


def test_a_metric_whose_family_was_deleted_is_refused(server: RunningServer) -> None:
    told = ask(
        server,
        """
family = Family("short", "lived", Family.COUNTER)
metric = family.Metric()
del family
answer(refusal(metric.value))
""",
    )
    assert told == (
        "Failed to get metric value: Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The "
        "'MetricFamily' object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
    )


def test_a_family_of_two_models_lives_while_one_of_them_holds_it(server: RunningServer) -> None:
    make = "model.shared = Family('shared', {text!r}, Family.COUNTER); m = model.shared.Metric(); m.increment(1)\nanswer(0)"
    ask(server, make.format(text="the first text"))
    ask(server, make.format(text="another text"), model="other")
    both = ["# HELP shared the first text", "# TYPE shared counter", "shared 2"]
    assert lines(server, "shared") == both
    ask(server, "del model.shared; answer(0)")
    assert lines(server, "shared") == both
    assert ask(server, "answer(refusal(Family, 'shared', 'x', Family.GAUGE))") == (
        "Error when creating MetricFamily: " + util("Family name already exists with different type")
    )
    ask(server, "del model.shared; answer(0)", model="other")
    assert lines(server, "shared") == []


@pytest.mark.parametrize(
    ("make", "text"),
    [
        ("Family('', 'x', Family.COUNTER)", "Error when creating MetricFamily: " + util("Invalid metric name")),
        ("Family('a-b', 'x', Family.COUNTER)", "Error when creating MetricFamily: " + util("Invalid metric name")),
        ("counter.Metric([1])", "Failed to create metric. Labels must be a dictionary."),
        (
            "counter.Metric({'a': 1})",
            "Error when creating Metric: " + util("attempt to access JSON non-string as string"),
        ),
        ("counter.Metric({'1a': 'x'})", "Error when creating Metric: " + util("Invalid label name")),
        ("counter.Metric({}, [1.0])", "Failed to create metric. Unexpected buckets found."),
        ("histogram.Metric()", "Failed to create metric. Missing required buckets."),
        ("histogram.Metric({}, (1.0,))", "Failed to create metric. Buckets must be a list."),
        (
            "histogram.Metric({}, [2.0, 1.0])",
            "Error when creating Metric: " + util("Bucket Boundaries must be strictly sorted"),
        ),
    ],
)
def test_what_is_no_metric_is_refused(server: RunningServer, make: str, text: str) -> None:
    told = ask(
        server,
        f"""
counter, histogram = Family("c", "", Family.COUNTER), Family("h", "", Family.HISTOGRAM)
answer(refusal(lambda: {make}))
""",
    )
    assert told == text


def test_a_name_of_the_servers_own_is_refused(server: RunningServer) -> None:
    told = ask(server, "answer(refusal(Family, 'nv_inference_count', 'mine', Family.COUNTER))")
    assert told.startswith("Error when creating MetricFamily: ")
    assert "nv_inference_count" in told
    assert [line for line in lines(server, "nv_inference_count") if line.startswith("#")] == [
        "# HELP nv_inference_count Number of inferences performed (does not include cached requests)",
        "# TYPE nv_inference_count counter",
    ]


def test_instances_share_series_and_one_that_dies_takes_only_its_own_hold(server: RunningServer) -> None:
    """What the other one holds as well goes on; a series of the dead one's own begins again with its new worker."""

    def send(word: str) -> int:
        return server.infer("instances", [tensor("IN", "BYTES", [1], [word])]).status

    def served() -> dict[str, float]:
        found = re.findall(r'served\{instance="(\w+)"\} (\S+)', "\n".join(lines(server, "served")))
        return {name: float(value) for name, value in found}

    assert [send("x") for _ in range(6)] == [200] * 6
    before = served()
    assert before["any"] == 6
    assert before["instances_0_0"] + before["instances_0_1"] == 6
    assert send("die") == 503
    server.wait_for_log("instance 'instances_0_[01]' is back")
    after = served()
    assert after["any"] == 6
    own = {name: count for name, count in after.items() if name != "any"}
    assert 0 in own.values()
    assert any(count == before[name] for name, count in own.items() if count)
    assert [send("x") for _ in range(2)] == [200, 200]
    assert served()["any"] == 8


def test_families_go_with_the_last_worker_that_held_them(server: RunningServer) -> None:
    """Killed or unloaded: nobody has to give anything back."""
    ask(server, "model.held = Family('held', 'x', Family.GAUGE); model.held.Metric().set(1); answer(0)", model="other")
    assert lines(server, "held")[2:] == ["held 1"]
    (pid,) = server.worker_pids("other")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: lines(server, "held") == [])
    server.wait_for_log("instance 'other_0_0' is back")
    ask(server, "model.held = Family('held', 'x', Family.GAUGE); model.held.Metric().set(2); answer(0)", model="other")
    assert lines(server, "held")[2:] == ["held 2"]
    assert server.post("/v2/repository/models/other/unload").status == 200
    wait_until(lambda: lines(server, "held") == [])
    assert server.post("/v2/repository/models/other/load").status == 200


def test_many_threads_of_a_model_count_together(server: RunningServer) -> None:
    told = ask(
        server,
        """
import threading
model.many = Family("many", "x", Family.COUNTER)
def count():
    metric = model.many.Metric({"of": "all"})
    for _ in range(100):
        metric.increment(1)
threads = [threading.Thread(target=count) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
answer(model.many.Metric({"of": "all"}).value())
""",
    )
    assert told == 800
    assert lines(server, "many")[2:] == ['many{of="all"} 800']


def test_without_a_page_models_count_all_the_same(tmp_path: Path) -> None:
    """Section 2.9: with ``--allow-metrics=false`` every call succeeds."""
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path, flags=("--allow-metrics=false",)) as server:
        told = ask(
            server,
            """
family = Family("c", "x", Family.COUNTER)
metric = family.Metric()
metric.increment(3)
answer([metric.value(), refusal(metric.set, 1) is not None])
""",
        )
    assert told == [3, True]


# ---------------------------------------------------------------------------------------------- places, and log lines


def test_a_model_counts_and_logs_wherever_it_may(tmp_path: Path) -> None:
    """Sections 2.8 and 2.9, row 134: in auto_complete_config there are log lines and no metrics."""
    write_model(tmp_path, "everywhere", EVERYWHERE, CONFIG)
    with RunningServer(tmp_path) as server:
        assert run(server, "", model="everywhere").status == 200
    for where in ("initialize", "execute", "finalize"):
        assert re.search(rf"counted 1\.0 in {where}", server.log), server.log
        for letter, word in (("I", "info"), ("W", "warning"), ("E", "error")):
            # The caller's file and line.
            assert re.search(rf'{letter}\d{{4}} .* model\.py:\d+\] "{word} in {where}"', server.log), server.log
    assert re.search("refused in auto_complete_config: ", server.log)
    for letter, word in (("I", "info"), ("W", "warning"), ("E", "error")):
        assert re.search(rf'{letter}\d{{4}} .* model\.py:\d+\] +"?{word} in auto_complete_config', server.log), (
            server.log
        )
    assert "chatter" not in server.log


@pytest.mark.parametrize(
    ("flag", "silent"),
    [("--log-warning=false", "warning"), ("--log-error=false", "error")],
)
def test_a_level_that_is_off_is_off_for_models(tmp_path: Path, flag: str, silent: str) -> None:
    """Section 2.8: wherever the model is in its life."""
    write_model(tmp_path, "everywhere", EVERYWHERE, CONFIG)
    with RunningServer(tmp_path, flags=(flag, "--log-verbose=1")) as server:
        assert run(server, "", model="everywhere").status == 200
    for word in {"info", "warning", "error", "chatter"} - {silent}:
        assert f"{word} in execute" in server.log
    assert f"{silent} in" not in server.log
