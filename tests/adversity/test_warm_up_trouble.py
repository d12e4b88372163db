"""Warm-up that goes wrong in ways that no answer tells: the worker dies, hangs, or is told to go meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, is_running, tensor, write_model

DEADLINE_S = 10
"""Of every worker of these models: on a busy machine those that are to come up need seconds, too."""

MODEL = """
    import os
    import threading

    import triton_python_backend_utils as pb_utils

    FOLDER = {folder!r}

    class TritonPythonModel:
        def execute(self, requests):
            for word in os.listdir(FOLDER):
                if word == "die":
                    os._exit(3)
                if word == "hang":
                    print("hanging", flush=True)
                    threading.Event().wait()
                if word == "err":
                    return [pb_utils.InferenceResponse([], pb_utils.TritonError("on purpose")) for _ in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""

SENDS_NOTHING = """
    class TritonPythonModel:
        def execute(self, requests):
            self.senders = [request.get_response_sender() for request in requests]
"""

CONFIG = """
    backend: "python"
    max_batch_size: 2
    input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
    model_warmup { name: "w" batch_size: 2 inputs { key: "IN" value { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true } } }
"""

UNHEALTHY = "Stub process '{}' is not healthy"


class Model:
    """One model of the server. Words in its folder say what ``execute`` does."""

    def __init__(self, server: RunningServer, repository: Path, name: str) -> None:
        self.server = server
        self.name = name
        self.folder = repository.parent / f"words of {name}"
        self.folder.mkdir()
        write_model(repository, name, MODEL.format(folder=str(self.folder)), CONFIG)

    def say(self, word: str) -> None:
        (self.folder / word).touch()

    def unsay(self, word: str) -> None:
        (self.folder / word).unlink()

    def load_error(self) -> str:
        """ "" when it was loaded."""
        reply = self.server.post(f"/v2/repository/models/{self.name}/load")
        return reply.error if reply.status != 200 else ""

    @property
    def state(self) -> tuple[str, str]:
        rows = self.server.post("/v2/repository/index").json
        (row,) = [row for row in rows if row["name"] == self.name]
        return row.get("state", ""), row.get("reason", "")

    @property
    def pids(self) -> list[int]:
        return self.server.worker_pids(f"{self.name}_0")

    def kill_worker(self) -> None:
        (pid,) = self.pids
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in self.pids)

    def infer(self) -> int:
        return self.server.infer(self.name, [tensor("IN", "INT32", [1, 1], [1])]).status


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm_up_trouble") / "models"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    flags = (
        "--model-control-mode=explicit",
        f"--backend-config=python,ready-timeout-seconds={DEADLINE_S}",
        "--exit-timeout-secs=20",
    )
    with RunningServer(repository, flags=flags) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


@pytest.fixture
def model(server: RunningServer, repository: Path) -> Model:
    return Model(server, repository, f"m{len(list(repository.iterdir()))}")


def test_a_worker_that_dies_fails_the_load_and_another_load_may_go_well(model: Model) -> None:
    model.say("die")
    one = f"{UNHEALTHY.format(model.name + '_0')}. The worker exited with code 3 while it had this request.; "
    assert model.load_error() == (
        f"load failed for model '{model.name}': version 1 is at UNAVAILABLE state: Invalid argument: failed to run warmup "
        f"sample 'w': {one * 2};\n"
    )
    wait_until(lambda: model.pids == [])
    model.unsay("die")
    assert model.load_error() == ""
    assert model.infer() == 200


def test_a_model_that_never_answers_fails_the_load_at_the_deadline(
    model: Model, server: RunningServer, repository: Path
) -> None:
    """Of ``execute``, or of the end that a decoupled model owes."""
    model.say("hang")
    decoupled = CONFIG + "model_transaction_policy { decoupled: true }"
    write_model(repository, "mute", SENDS_NOTHING, decoupled)
    with ThreadPoolExecutor(2) as pool:
        loads = [pool.submit(server.post, f"/v2/repository/models/{name}/load") for name in (model.name, "mute")]
        for name, load in zip((model.name, "mute"), loads):
            assert load.result().error == (
                f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: failed to run warmup "
                f"sample 'w': {UNHEALTHY.format(name + '_0')}: it did not answer the warm-up within {DEADLINE_S} s.; ;\n"
            )
    wait_until(lambda: model.pids == server.worker_pids("mute_0") == [])


def test_workers_whose_warm_up_fails_again_and_again_make_the_version_unavailable_until_one_comes_up(
    model: Model,
) -> None:
    assert model.load_error() == ""
    model.say("err")
    model.kill_worker()
    wait_until(lambda: model.state[0] == "UNAVAILABLE")
    assert model.state[1] == "Invalid argument: failed to run warmup sample 'w': on purpose; on purpose; "
    assert model.infer() == 503
    model.unsay("err")
    wait_until(lambda: model.state == ("READY", ""))
    assert model.infer() == 200


def test_a_model_can_be_unloaded_while_a_new_worker_hangs_in_its_warm_up(model: Model) -> None:
    assert model.load_error() == ""
    model.say("hang")
    hanging = model.server.log.count("hanging")
    model.kill_worker()
    wait_until(lambda: model.server.log.count("hanging") > hanging)
    assert model.server.post(f"/v2/repository/models/{model.name}/unload").status == 200
    wait_until(lambda: model.state == ("UNAVAILABLE", "unloaded"))
    wait_until(lambda: model.pids == [])


def test_a_server_that_is_told_to_stop_does_not_wait_for_a_warm_up(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    with RunningServer(repository, flags=("--model-control-mode=explicit",)) as server, ThreadPoolExecutor(1) as pool:
        model = Model(server, repository, "m")
        model.say("hang")
        load = pool.submit(model.server.post, "/v2/repository/models/m/load")
        server.wait_for_log("hanging")
        (pid,) = model.pids
        assert server.stop() == 0
        assert load.exception() is not None or load.result().status != 200
        wait_until(lambda: not is_running(pid))


CALLS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            given = request.inputs()[0].as_numpy()
            if {condition}:
                one = [pb_utils.Tensor("IN", np.ones((1, 1), np.int32))]
                reply = pb_utils.InferenceRequest(model_name={callee!r}, requested_output_names=["OUT"], inputs=one).exec()
                print(f"called, {{reply.error().message() if reply.has_error() else 'and answered'}}")
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given)])
"""


@pytest.mark.parametrize("callee", ["warm", "between"])
def test_a_warm_up_whose_call_waits_for_its_own_end_is_told_so(tmp_path: Path, callee: str) -> None:
    """At the load the model that it calls says that it is not ready; behind a death it would wait for the new worker."""
    write_model(tmp_path, "between", CALLS.format(condition="True", callee="warm"), CONFIG.partition("model_warmup")[0])
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit", "--load-model=between")) as server:
        write_model(tmp_path, "warm", CALLS.format(condition="not given.any()", callee=callee), CONFIG)
        assert server.post("/v2/repository/models/warm/load").status == 200
        (pid,) = server.worker_pids("warm_0")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        assert server.infer("warm", [tensor("IN", "INT32", [1, 1], [1])]).json["outputs"][0]["data"] == [1]
        assert "the call waits for itself: warm_0 -> " in server.log
