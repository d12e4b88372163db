"""Models that come and go while the server runs: repository.md rows 13 to 47, model_api.md rows 43, 101, 102, 135 and 136."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.contract.life_kit import (
    ALL_VERSIONS,
    BROKEN,
    CONFIG,
    EXPLICIT,
    closed_gate,
    code,
    is_ready,
    load,
    must_load,
    rows_of,
    shape_a,
    unload,
    value_of,
    wait_unloaded,
    waits,
)
from tests.contract.scripted_model import answer, write_scripted_model
from tests.contract.wire_models import Traffic, grpc_channel, infer_message, wait_until, write_recording
from tests.harness import PROJECT, RunningServer, tensor, write_model

NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"
OVERRIDE = {"backend": "python", "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("life")


@pytest.fixture(scope="module")
def repository(folder: Path) -> Path:
    (folder / "models").mkdir()
    return folder / "models"


@pytest.fixture(scope="module")
def temporary(folder: Path) -> Path:
    """The server's directory for temporary files."""
    (folder / "temporary").mkdir()
    return folder / "temporary"


@pytest.fixture(scope="module")
def server(repository: Path, temporary: Path) -> Iterator[RunningServer]:
    """A server that begins with no model. Every test writes its own, and leaves none that keeps it from being ready."""
    with RunningServer(repository, flags=(EXPLICIT,), environ={"TMPDIR": str(temporary)}) as running:
        yield running


def client_of(server: RunningServer, protocol: str) -> Any:
    """The stock client; use it as a context manager."""
    if protocol == "http":
        return http_client.InferenceServerClient(server.http_url)
    return grpc_client.InferenceServerClient(server.grpc_url)


def as_file(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# ---------------------------------------------------------------------------------------------------- load and unload


def test_a_model_that_nobody_loaded_is_known_by_its_name_only(server: RunningServer, repository: Path) -> None:
    """Row 13 of repository.md."""
    write_model(repository, "nameonly", code(1), CONFIG)
    assert is_ready(server), server.post("/v2/repository/index").json
    assert {"name": "nameonly"} in server.post("/v2/repository/index").json
    reply = server.post("/v2/models/nameonly/infer", {"inputs": []})
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'nameonly' is not found")


def test_a_loaded_model_serves_until_it_is_unloaded(server: RunningServer, repository: Path, tmp_path: Path) -> None:
    """Rows 20 and 21 of repository.md, 43 of model_api.md, 4 and 101 of http.md: unloading does not wait for finalize."""
    with closed_gate(tmp_path) as gate:
        write_model(repository, "comes", code(7, finalize=waits(gate)), CONFIG)
        must_load(server, "comes")
        assert rows_of(server, "comes") == {"1": ("READY", "")}
        assert value_of(server, "comes") == 7
        pids = server.worker_pids("comes_0")
        must_load(server, "comes")
        assert server.worker_pids("comes_0") == pids, "nothing changed, so nothing was loaded"
        reply = unload(server, "comes")
        assert (reply.status, reply.body) == (200, b"")
        gate.wait_held(server)
        assert rows_of(server, "comes") == {"1": ("UNLOADING", "")}
        assert "successfully unloaded 'comes'" not in server.log
    wait_unloaded(server, "comes")
    server.wait_for_log("successfully unloaded 'comes' version 1")
    assert is_ready(server), server.post("/v2/repository/index").json
    reply = server.post("/v2/models/comes/infer", {"inputs": []})
    assert (reply.status, reply.error) == (404, "Request for unknown model: 'comes' has no available versions")
    assert unload(server, "comes").status == unload(server, "never_there").status == 200
    write_model(repository, "comes", code(8))
    must_load(server, "comes")
    assert value_of(server, "comes") == 8


def test_unloading_lets_requests_end_and_takes_no_more(server: RunningServer, repository: Path, tmp_path: Path) -> None:
    """Rows 26 and 27 of repository.md, 101 of model_api.md."""
    write_recording(repository, "busy", "")
    must_load(server, "busy")
    with Traffic(server, "busy", tmp_path) as traffic:
        held = traffic.block()
        queued = traffic.queue("queued")
        assert unload(server, "busy").status == 200
        assert rows_of(server, "busy") == {"1": ("UNLOADING", "")}
        assert not is_ready(server)
        assert not is_ready(server, "busy")
        for path, status, text in (
            ("busy", 404, "Request for unknown model: 'busy' has no available versions"),
            ("busy/versions/1", 503, "Request for unknown model: 'busy' version 1 is not at ready state"),
        ):
            reply = server.post(f"/v2/models/{path}/infer", {"inputs": [tensor("GATE", "BYTES", [1], [""])]})
            assert (reply.status, reply.error) == (status, text)
        traffic.open_gates()
        assert traffic.report(held)["ids"] == ["blocker"]
        assert traffic.report(queued)["ids"] == ["queued"]
    wait_unloaded(server, "busy")
    assert is_ready(server), server.post("/v2/repository/index").json


def test_a_sequence_that_waits_for_a_slot_gets_it_when_its_model_is_unloaded(
    server: RunningServer, repository: Path, tmp_path: Path
) -> None:
    """Nobody can go on with the one that has it: the slot would be its until it was silent for an hour."""
    hour = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
    write_recording(repository, "sequences", f"max_batch_size: 1 {hour}")
    must_load(server, "sequences")
    with Traffic(server, "sequences", tmp_path) as traffic:
        begun = traffic.send("begun", parameters={"sequence_id": 1, "sequence_start": True})
        assert traffic.report(begun)["ids"] == ["begun"]
        waiting = traffic.queue("waiting", parameters={"sequence_id": 2, "sequence_start": True})
        assert unload(server, "sequences").status == 200
        assert traffic.report(waiting)["ids"] == ["waiting"]
    wait_unloaded(server, "sequences")


def test_a_load_during_an_unload_starts_a_new_generation_beside_the_old_one(
    server: RunningServer, repository: Path, tmp_path: Path
) -> None:
    """model_api.md, section 3.7."""
    write_recording(repository, "twice", "")
    must_load(server, "twice")
    with Traffic(server, "twice", tmp_path) as traffic:
        held = traffic.block()
        (old,) = server.worker_pids("twice_0")
        assert unload(server, "twice").status == 200
        must_load(server, "twice")
        assert rows_of(server, "twice") == {"1": ("READY", "")}
        assert old in server.worker_pids("twice_0")
        assert traffic.report(traffic.send("new"))["ids"] == ["new"]
        assert not held.done()
        traffic.open_gates()
        assert traffic.report(held)["ids"] == ["blocker"]
    wait_until(lambda: old not in server.worker_pids("twice_0"))
    assert rows_of(server, "twice") == {"1": ("READY", "")}


def test_a_stream_that_is_open_gets_its_response_before_the_model_goes(
    server: RunningServer, repository: Path, tmp_path: Path
) -> None:
    """model_api.md row 102."""
    with closed_gate(tmp_path) as gate, grpc_channel(server) as channel:
        write_model(
            repository,
            "streams",
            f"""
            import threading
            import numpy as np
            import triton_python_backend_utils as pb_utils

            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        threading.Thread(target=self.answer, args=(request.get_response_sender(),)).start()

                def answer(self, sender):
                    {waits(gate)}
                    out = pb_utils.Tensor("OUT", np.array([5], np.int32))
                    sender.send(pb_utils.InferenceResponse([out]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            """,
            f"{CONFIG}\nmodel_transaction_policy {{ decoupled: true }}",
        )
        must_load(server, "streams")
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter([infer_message("streams")]), timeout=30)
        gate.wait_held(server)
        assert unload(server, "streams").status == 200
        assert rows_of(server, "streams") == {"1": ("UNLOADING", "")}
        gate.open()
        (only,) = answers
        assert only.error_message == "", server.log
        assert np.frombuffer(only.infer_response.raw_output_contents[0], np.int32).tolist() == [5]
    wait_unloaded(server, "streams")


def test_concurrent_operations_on_one_model_take_turns(server: RunningServer, repository: Path) -> None:
    """Row 38 of repository.md."""
    write_model(repository, "turns", code(1), CONFIG)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda change: change(server, "turns"), [load, load, unload] * 3))
    assert [reply.status for reply in replies] == [200] * 9
    must_load(server, "turns")
    assert value_of(server, "turns") == 1
    wait_until(lambda: len(server.worker_pids("turns_0")) == 1)


def test_a_model_that_is_loading_is_not_ready(server: RunningServer, repository: Path, tmp_path: Path) -> None:
    """Row 37 of repository.md; http.md row 5. Another model loads and is asked meanwhile."""
    write_model(repository, "quick", code(4), CONFIG)
    with ThreadPoolExecutor(2) as pool, closed_gate(tmp_path) as gate:
        write_model(repository, "slow", code(3, initialize=waits(gate)), CONFIG)
        loading = pool.submit(load, server, "slow")
        gate.wait_held(server)
        again = pool.submit(load, server, "slow")
        must_load(server, "quick")
        assert value_of(server, "quick") == 4
        assert rows_of(server, "slow") == {"1": ("LOADING", "")}
        assert server.get("/v2/health/ready").status == server.get("/v2/models/slow/ready").status == 400
        reply = server.post("/v2/models/slow/infer", {"inputs": []})
        assert (reply.status, reply.error) == (404, "Request for unknown model: 'slow' has no available versions")
        assert not loading.done()
        assert not again.done()
        gate.open()
        assert loading.result(30).status == again.result(30).status == 200
    assert value_of(server, "slow") == 3
    assert is_ready(server), server.post("/v2/repository/index").json


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_a_load_goes_on_when_its_client_has_gone(tmp_path: Path, transport: str) -> None:
    """repository.md, section 4.2. Both transports of gRPC wait for a load."""
    repository = tmp_path / "models"
    write_model(repository, "broken", BROKEN, CONFIG)
    flags = (EXPLICIT, f"--grpc-transport={transport}")
    with (
        RunningServer(repository, flags=flags) as server,
        grpc_channel(server) as channel,
        closed_gate(tmp_path) as gate,
    ):
        write_model(repository, "slow", code(3, initialize=waits(gate)), CONFIG)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        slow = service_pb2.RepositoryModelLoadRequest(model_name="slow")
        call = stub.RepositoryModelLoad.future(slow)
        gate.wait_held(server)
        call.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name="broken"), timeout=30)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert rows_of(server, "slow") == {"1": ("LOADING", "")}
        gate.open()
        stub.RepositoryModelLoad(slow, timeout=30)
        assert value_of(server, "slow") == 3


# ---------------------------------------------------------------------------------------------------- reload


def test_every_request_during_a_reload_is_answered(server: RunningServer, repository: Path) -> None:
    """Row 22 of repository.md."""
    write_model(repository, "traffic", code(0), CONFIG)
    must_load(server, "traffic")
    is_over = threading.Event()

    def ask() -> list[int]:
        values = []
        while not is_over.is_set():
            values.append(value_of(server, "traffic"))
        return values

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for generation in (1, 2, 3):
                (repository / "traffic" / "1" / "model.py").write_text(code(generation))
                must_load(server, "traffic")
                assert value_of(server, "traffic") == generation
        finally:
            is_over.set()
        for values in asking:
            assert values.result(30) == sorted(values.result(30)), "old values never come after new ones"
    wait_until(lambda: len(server.worker_pids("traffic_0")) == 1)


@pytest.mark.parametrize(
    ("broken", "config", "status", "text"),
    [
        pytest.param(BROKEN, CONFIG, 400, "load failed for model 'keeps': version 1 is at UNAVAILABLE state: "
                     "Internal: RuntimeError: broken on purpose\n\nAt:\n", id="rows 23 and 24"),
        pytest.param(code(2), "max_batch_size: many", 500, shape_a("keeps"), id="row 25"),
        pytest.param(code(2), f"instance_group {{ profile: 'x' }} {CONFIG}", 400, "load failed for model 'keeps': ",
                     id="no such instance group"),
    ],
)  # fmt: skip
def test_a_reload_that_fails_leaves_the_old_generation_serving(
    server: RunningServer, repository: Path, broken: str, config: str, status: int, text: str
) -> None:
    """Rows 23 to 25 of repository.md: and it is tried again, and repaired by the next load that can."""
    write_model(repository, "keeps", code(1), CONFIG)
    must_load(server, "keeps")
    (pid,) = server.worker_pids("keeps_0")
    write_model(repository, "keeps", broken, config)
    for _ in range(2):
        reply = load(server, "keeps")
        assert (reply.status, reply.error[: len(text)]) == (status, text)
        if status == 400:
            assert reply.error.endswith(";\n")
        assert value_of(server, "keeps") == 1
        assert rows_of(server, "keeps") == {"1": ("READY", "")}
        assert is_ready(server), server.post("/v2/repository/index").json
    wait_until(lambda: server.worker_pids("keeps_0") == [pid])
    write_model(repository, "keeps", code(2), CONFIG)
    must_load(server, "keeps")
    assert value_of(server, "keeps") == 2
    assert unload(server, "keeps").status == 200
    wait_unloaded(server, "keeps")


def test_a_failed_model_keeps_the_server_from_being_ready_until_it_loads(
    server: RunningServer, repository: Path
) -> None:
    """Row 14 of repository.md: an unload does not clear the failure."""
    write_model(repository, "fails", BROKEN, CONFIG)
    assert load(server, "fails").status == 400
    assert unload(server, "fails").status == 200
    assert rows_of(server, "fails") == {"1": ("UNAVAILABLE", "Internal: RuntimeError: broken on purpose")}
    assert not is_ready(server)
    write_model(repository, "fails", code(1), CONFIG)
    must_load(server, "fails")
    assert is_ready(server), server.post("/v2/repository/index").json


def test_a_configuration_that_says_the_same_reloads_nothing(server: RunningServer, repository: Path) -> None:
    """Section 3.1: what is compared of config.pbtxt is what it says. A file beside it is another matter."""
    model = write_model(repository, "touched", code(1), CONFIG)
    must_load(server, "touched")
    (pid,) = server.worker_pids("touched_0")
    (model / "config.pbtxt").write_text(f"# a comment\n{CONFIG}")
    must_load(server, "touched")
    assert server.worker_pids("touched_0") == [pid]
    (model / "notes.txt").write_text("every version may read me")
    must_load(server, "touched")
    wait_until(lambda: pid not in server.worker_pids("touched_0"))


def test_the_newest_version_takes_over(server: RunningServer, repository: Path) -> None:
    """Row 28 of repository.md."""
    write_model(repository, "newest", code(1), CONFIG)
    must_load(server, "newest")
    write_model(repository, "newest", code(3), version=3)
    must_load(server, "newest")
    wait_until(lambda: rows_of(server, "newest") == {"1": ("UNAVAILABLE", "unloaded"), "3": ("READY", "")})
    assert value_of(server, "newest") == 3
    reply = server.post("/v2/models/newest/versions/1/infer", {"inputs": []})
    assert (reply.status, reply.error) == (503, "Request for unknown model: 'newest' version 1 is not at ready state")
    assert is_ready(server), server.post("/v2/repository/index").json


def test_versions_that_stay_are_not_initialized_again(server: RunningServer, repository: Path) -> None:
    """Rows 30 and 31 of repository.md."""
    for version in (1, 3, 5):
        write_model(repository, "many", code(version), ALL_VERSIONS, version=version)
    must_load(server, "many")
    pids = server.worker_pids("many_0")
    assert len(pids) == 3
    (repository / "many" / "config.pbtxt").write_text(
        f"version_policy {{ specific {{ versions: [ 1, 3 ] }} }} {CONFIG}"
    )
    must_load(server, "many")
    wait_until(lambda: rows_of(server, "many")["5"] == ("UNAVAILABLE", "unloaded"))
    assert value_of(server, "many") == 3
    left = server.worker_pids("many_0")
    assert len(left) == 2
    assert set(left) < set(pids)
    config = server.get("/v2/models/many/config").json
    assert config["version_policy"] == {"specific": {"versions": [1, 3]}}
    (repository / "many" / "1" / "model.py").unlink()
    (repository / "many" / "1").rmdir()
    must_load(server, "many")
    wait_until(lambda: rows_of(server, "many")["1"] == ("UNAVAILABLE", "unloaded"))
    assert value_of(server, "many") == 3
    wait_until(lambda: set(server.worker_pids("many_0")) < set(left))


def test_of_the_versions_of_a_load_all_become_ready_or_none(server: RunningServer, repository: Path) -> None:
    """Row 32 of repository.md."""
    write_model(repository, "half", code(1), ALL_VERSIONS)
    must_load(server, "half")
    for version, text in ((2, code(2)), (3, BROKEN), (4, BROKEN)):
        write_model(repository, "half", text, version=version)
    reply = load(server, "half")
    assert reply.status == 400
    parts = reply.error.removeprefix("load failed for model 'half': ").split(";")
    assert [part.partition("Internal: ")[0] for part in parts] == [
        "version 3 is at UNAVAILABLE state: ",
        "version 4 is at UNAVAILABLE state: ",
        "\n",
    ]
    broken = ("UNAVAILABLE", "Internal: RuntimeError: broken on purpose")
    expected = {"1": ("READY", ""), "2": ("UNAVAILABLE", "unloaded"), "3": broken, "4": broken}
    wait_until(lambda: rows_of(server, "half") == expected)
    assert value_of(server, "half") == 1
    assert not is_ready(server)
    for version in (3, 4):
        write_model(repository, "half", code(version), version=version)
    must_load(server, "half")
    assert value_of(server, "half") == 4
    assert is_ready(server), server.post("/v2/repository/index").json


def test_a_model_whose_folder_is_gone_serves_on(server: RunningServer, repository: Path) -> None:
    """Row 36 of repository.md."""
    model = write_model(repository, "gone", code(1), CONFIG)
    must_load(server, "gone")
    for path in (model / "1" / "model.py", model / "config.pbtxt"):
        path.unlink()
    (model / "1").rmdir()
    model.rmdir()
    reply = load(server, "gone")
    assert (reply.status, reply.error) == (500, shape_a("gone"))
    assert value_of(server, "gone") == 1
    assert rows_of(server, "gone") == {}
    assert unload(server, "gone").status == 200


def test_a_model_without_versions_does_not_load(server: RunningServer, repository: Path) -> None:
    """http.md, section 13: no version directory matches."""
    model = write_model(repository, "empty", code(1), CONFIG)
    (model / "1").rename(model / "one")
    reply = load(server, "empty")
    text = "at least one version must be available under the version policy of model 'empty'"
    assert (reply.status, reply.error) == (400, f"load failed for model 'empty': {text}\n")
    assert not is_ready(server), "row 8: it is known, and has nothing that is ready"
    (model / "one").rename(model / "1")
    must_load(server, "empty")
    assert is_ready(server), server.post("/v2/repository/index").json


# ---------------------------------------------------------------------------------------------------- overrides


def test_a_configuration_in_the_request_replaces_the_file_for_one_load(server: RunningServer, repository: Path) -> None:
    """Row 39 of repository.md; http.md row 98.

    Both spellings of names, integers as strings, enum names in any case (model_config.md, section 2.1).
    """
    write_model(repository, "over", code(1), CONFIG)
    override = {
        "backend": "python",
        "maxBatchSize": "8",
        "output": [{"name": "OUT", "dataType": "type_int32", "dims": ["1"]}],
        "parameters": {"a": {"string_value": "b"}},
    }
    must_load(server, "over", config=json.dumps(override))
    config = server.get("/v2/models/over/config").json
    assert (config["max_batch_size"], config["parameters"]) == (8, {"a": {"string_value": "b"}})
    must_load(server, "over")
    config = server.get("/v2/models/over/config").json
    assert (config["max_batch_size"], config["parameters"]) == (0, {})


def max_batch_size_of(server: RunningServer, model: str) -> int:
    found: int = server.get(f"/v2/models/{model}/config").json["max_batch_size"]
    return found


def test_a_configuration_that_came_with_a_load_is_kept_by_plain_ones_until_the_disk_changes(
    server: RunningServer, repository: Path
) -> None:
    """Asked of Triton 2.51. A model whose first load brought one goes back with the next (above)."""
    folder = write_model(repository, "kept", code(1), CONFIG)
    override = {**OVERRIDE, "max_batch_size": 7}

    def max_batch_size() -> int:
        return max_batch_size_of(server, "kept")

    must_load(server, "kept")
    must_load(server, "kept", config=json.dumps(override))
    must_load(server, "kept")
    assert max_batch_size() == 7
    must_load(server, "kept", config=json.dumps({**override, "max_batch_size": 8}))
    must_load(server, "kept")
    assert max_batch_size() == 8
    (folder / "notes.txt").write_text("a file of the model")
    must_load(server, "kept")
    assert max_batch_size() == 0
    must_load(server, "kept", config=json.dumps(override))
    assert server.post("/v2/repository/models/kept/unload").status == 200
    must_load(server, "kept")
    assert max_batch_size() == 0


def test_what_changed_in_the_configuration_on_disk_before_another_came_is_no_change_after_it(
    server: RunningServer, repository: Path
) -> None:
    """Asked of Triton 2.51. A change of other files is one."""
    folder = write_model(repository, "replaced", code(1), CONFIG)
    must_load(server, "replaced")
    for on_disk, brought in ((4, 7), (5, 8)):
        (folder / "config.pbtxt").write_text(f"{CONFIG}\nmax_batch_size: {on_disk}")
        must_load(server, "replaced", config=json.dumps({**OVERRIDE, "max_batch_size": brought}))
        must_load(server, "replaced")
        assert max_batch_size_of(server, "replaced") == brought
    (folder / "1" / "model.py").write_text(code(2))
    must_load(server, "replaced", config=json.dumps({**OVERRIDE, "max_batch_size": 9}))
    must_load(server, "replaced")
    assert max_batch_size_of(server, "replaced") == 5


def test_the_second_of_two_configurations_that_came_with_loads_is_kept(server: RunningServer, repository: Path) -> None:
    """Asked of Triton 2.51. The second load finds the files as the first has left them, as it would after a plain one."""
    write_model(repository, "twice", code(1), CONFIG)
    for brought in (7, 8):
        must_load(server, "twice", config=json.dumps({**OVERRIDE, "max_batch_size": brought}))
    must_load(server, "twice")
    assert max_batch_size_of(server, "twice") == 8


def test_files_in_the_request_are_the_whole_model_for_one_load(
    server: RunningServer, repository: Path, temporary: Path
) -> None:
    """Row 44 of repository.md: and the directory on disk comes back with the next plain load."""
    write_model(repository, "files", code(1), CONFIG)
    must_load(server, "files")
    must_load(server, "files", **{"config": json.dumps(OVERRIDE), "file:3/model.py": as_file(code(33))})
    wait_until(lambda: rows_of(server, "files") == {"1": ("UNAVAILABLE", "unloaded"), "3": ("READY", "")})
    assert value_of(server, "files") == 33
    assert len(list(temporary.glob("pytriton_lite_*"))) == 1
    must_load(server, "files")
    wait_until(lambda: rows_of(server, "files") == {"1": ("READY", ""), "3": ("UNAVAILABLE", "unloaded")})
    assert value_of(server, "files") == 1
    wait_until(lambda: list(temporary.glob("pytriton_lite_*")) == [])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_files_in_the_request_can_be_a_model_that_is_not_on_disk(
    server: RunningServer, temporary: Path, protocol: str
) -> None:
    """Row 45 of repository.md; http.md row 99; grpc.md row 78. Its files are there for as long as it is."""
    text = code(0).replace("np.array([0]", "np.array([int(open(pb_utils.get_model_dir() + '/word').read())]")
    files = {"file:1/model.py": text.encode(), "file:1/word": b"21"}
    with client_of(server, protocol) as client:
        client.load_model("nowhere", config=json.dumps(OVERRIDE), files=files)
        assert value_of(server, "nowhere") == 21
        assert "nowhere" not in [row["name"] for row in server.post("/v2/repository/index").json]
        client.load_model("nowhere", config=json.dumps(OVERRIDE), files={**files, "file:1/word": b"22"})
        assert value_of(server, "nowhere") == 22
        client.unload_model("nowhere")
    wait_until(lambda: list(temporary.glob("pytriton_lite_*")) == [])
    reply = load(server, "nowhere")
    assert (reply.status, reply.error) == (500, shape_a("nowhere"))


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        pytest.param({"file:../x.py": ""}, "Invalid file parameter 'file:../x.py' with normalized path '", id="row 46"),
        pytest.param({"file:": ""}, "Invalid file parameter 'file:' with normalized path '", id="no path"),
        pytest.param({"file:1": "", "file:1/model.py": ""}, "the files of the load request cannot be written: ",
                     id="a file that is a directory"),
        pytest.param({"file:1/\0": ""}, "the files of the load request cannot be written: ", id="NUL"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_written_are_refused(
    server: RunningServer, temporary: Path, files: dict[str, str], detail: str
) -> None:
    """Row 46 of repository.md."""
    reply = load(server, "anywhere", config=json.dumps(OVERRIDE), **files)
    assert (reply.status, reply.error) == (500, shape_a("anywhere"))
    server.wait_for_log(re.escape(f"Poll failed for model directory 'anywhere': {detail}"))
    assert list(temporary.glob("pytriton_lite_*")) == []


def test_files_that_make_no_model_leave_nothing_behind(server: RunningServer, temporary: Path) -> None:
    config = json.dumps(OVERRIDE)
    assert load(server, "nomodel", config=config, **{"file:1/model.py": as_file(BROKEN)}).status == 400
    assert load(server, "nomodel", config=config, **{"file:one/model.py": as_file(code(1))}).status == 400
    wait_until(lambda: list(temporary.glob("pytriton_lite_*")) == [])
    must_load(server, "nomodel", config=config, **{"file:1/model.py": as_file(code(1))})
    assert unload(server, "nomodel").status == 200


@pytest.mark.parametrize(
    ("parameters", "detail"),
    [
        pytest.param({"file:1/model.py": ""}, "Load parameter 'config' must be specified for model file override",
                     id="row 43"),
        pytest.param({"config": "{"}, "Invalid config override: ", id="bad JSON"),
        pytest.param({"config": "[]"}, "Invalid config override: ", id="no object"),
        pytest.param({"config": '{"foo": 1}'}, "Invalid config override: foo: Cannot find field.", id="unknown field"),
        pytest.param({"config": '{"input": [{"foo": 1}]}'}, "Invalid config override: (input[0]) foo: Cannot find field.",
                     id="unknown field within"),
        pytest.param({"config": '{"backend": "python", "max_batch_size": "many"}'}, "Invalid config override: ",
                     id="wrong type"),
        pytest.param({"config": '{"backend": "python", "name": "other"}'}, "unexpected directory name 'poll' for model "
                     "'other', directory name must equal model name", id="another name"),
    ],
)  # fmt: skip
def test_an_override_that_cannot_be_read_is_refused(
    server: RunningServer, repository: Path, parameters: dict[str, str], detail: str
) -> None:
    """Row 43 of repository.md; model_config.md row 95; http.md row 100."""
    write_model(repository, "poll", code(1), CONFIG)
    reply = load(server, "poll", **parameters)
    assert (reply.status, reply.error) == (500, shape_a("poll"))
    server.wait_for_log(re.escape(f"Poll failed for model directory 'poll': {detail}"))


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        pytest.param(b'{"parameters":{"config":5}}', 500, "attempt to access JSON non-string as string", id="row 41"),
        pytest.param(b'{"parameters":{"foo":"x"}}', 500, "unexpected error on creating Triton parameter", id="row 42"),
        pytest.param(b'{"parameters":{"foo":1}}', 500, "attempt to access JSON non-string as string", id="both"),
        pytest.param(b'{"parameters":[]}', 500, "attempt to get members for non-object", id="array"),
        pytest.param(b'{"parameters":null}', 500, "attempt to get members for non-object", id="null"),
        pytest.param(b"{", 500, "failed to parse the request JSON buffer: ", id="bad JSON"),
        pytest.param(b"[]", 500, shape_a("zzz"), id="row 19: no object has no options"),
    ],
)
def test_a_load_request_that_cannot_be_read_is_refused(
    server: RunningServer, body: bytes, status: int, text: str
) -> None:
    """Rows 19, 41 and 42 of repository.md; http.md row 97."""
    reply = server.post("/v2/repository/models/zzz/load", body)
    assert (reply.status, reply.error[: len(text)]) == (status, text)


@pytest.mark.parametrize("body", [b'{"parameters":{"unload_dependents":"x"}}', b'{"parameters":5}', b"{", b"[]"])
def test_an_unload_request_that_cannot_be_read_has_no_options(server: RunningServer, body: bytes) -> None:
    """As Triton 2.51 answers."""
    assert server.post("/v2/repository/models/zzz/unload", body).status == 200


def test_base64_is_read_as_triton_reads_it(server: RunningServer) -> None:
    """http.md, section 13: characters of no meaning are skipped; padding need not be there."""
    sloppy = as_file(code(6)).rstrip("=")
    sloppy = "\n".join([sloppy[:10], "!?" + sloppy[10:]])
    must_load(server, "sloppy", **{"config": json.dumps(OVERRIDE), "file:1/model.py": sloppy})
    assert value_of(server, "sloppy") == 6


def test_over_grpc_the_parameters_have_types(server: RunningServer, repository: Path) -> None:
    """Rows 19, 47, 85 and 86 of repository.md, 76, 77, 79 and 80 of grpc.md."""
    parameter = service_pb2.ModelRepositoryParameter
    load_request, unload_request = service_pb2.RepositoryModelLoadRequest, service_pb2.RepositoryModelUnloadRequest
    status = grpc.StatusCode
    with grpc_channel(server) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for message, code_expected, text in (
            (load_request(model_name="zzz"), status.INTERNAL, shape_a("zzz")),
            (load_request(model_name="zzz", repository_name="x"), status.UNIMPLEMENTED,
             "'repository_name' specification is not supported"),
            (load_request(model_name="zzz", parameters={"config": parameter(int64_param=1)}), status.INVALID_ARGUMENT,
             "invalid value type for load parameter 'config', expected string_param."),
            (load_request(model_name="zzz", parameters={"file:x": parameter(string_param="")}), status.INVALID_ARGUMENT,
             "invalid value type for load parameter 'file:x', expected bytes_param."),
            (load_request(model_name="zzz", parameters={"foo": parameter(string_param="")}), status.INVALID_ARGUMENT,
             "unrecognized load parameter 'foo'."),
            (load_request(model_name=" "), status.INVALID_ARGUMENT,
             "Model name cannot be empty. Please enter a valid name to deploy."),
            (load_request(model_name=".."), status.INVALID_ARGUMENT,
             "invalid model name '..', model name must not contain path traversal characters"),
            (load_request(model_name="a/b"), status.INVALID_ARGUMENT,
             "invalid model name 'a/b', model name must not contain path traversal characters"),
            (unload_request(model_name="zzz", parameters={"unload_dependents": parameter(string_param="")}),
             status.INVALID_ARGUMENT, "invalid value type for 'unload_dependents' parameter, expected bool_param."),
        ):  # fmt: skip
            call = stub.RepositoryModelLoad if type(message) is load_request else stub.RepositoryModelUnload
            with pytest.raises(grpc.RpcError) as caught:
                call(message, timeout=30)
            assert (caught.value.code(), caught.value.details()) == (code_expected, text)
    write_model(repository, "over_grpc", BROKEN, CONFIG)
    with grpc_client.InferenceServerClient(server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match="load failed for model 'over_grpc': version 1 is at"):
            client.load_model("over_grpc")
        write_model(repository, "over_grpc", code(1), CONFIG)
        client.load_model("over_grpc")
        assert client.is_model_ready("over_grpc")
        client.load_model("over_grpc", config=json.dumps({**OVERRIDE, "max_batch_size": 3}))
        assert client.get_model_config("over_grpc").config.max_batch_size == 3
        client.unload_model("over_grpc", unload_dependents=True)
        wait_unloaded(server, "over_grpc")
        client.unload_model("never_there")


def test_a_repository_name_is_refused(server: RunningServer) -> None:
    """Row 47 of repository.md."""
    for action in ("load", "unload"):
        reply = server.post(f"/v2/repository/xx/models/m/{action}")
        assert (reply.status, reply.error) == (501, "'repository_name' specification is not supported")


# ---------------------------------------------------------------------------------------------------- start and end


def test_an_explicit_server_begins_with_what_it_is_told(tmp_path: Path) -> None:
    """Row 15 of repository.md."""
    write_model(tmp_path, "good", code(1), CONFIG)
    write_model(tmp_path, "other", code(1), CONFIG)
    flags = (EXPLICIT, "--load-model=good", "--load-model=zzz", "--exit-on-error=false")
    with RunningServer(tmp_path, flags=flags) as server:
        assert "failed to poll model 'zzz': model not found in any model repository." in server.log
        assert server.post("/v2/repository/index").json == [
            {"name": "good", "version": "1", "state": "READY"},
            {"name": "other"},
        ]
        assert is_ready(server), server.post("/v2/repository/index").json


def test_an_explicit_server_begins_with_everything_for_a_star(tmp_path: Path) -> None:
    """Row 16 of repository.md; and what is loading when the server stops does not keep it from stopping."""
    repository = tmp_path / "models"
    for name in ("one", "two"):
        write_model(repository, name, code(1), CONFIG)
    with (
        RunningServer(repository, flags=(EXPLICIT, "--load-model=*")) as server,
        ThreadPoolExecutor(1) as pool,
        closed_gate(tmp_path) as gate,
    ):
        assert rows_of(server, "one") == rows_of(server, "two") == {"1": ("READY", "")}
        write_model(repository, "slow", code(1, initialize=waits(gate)), CONFIG)
        loading = pool.submit(load, server, "slow")
        gate.wait_held(server)
        assert server.stop() == 0
        assert loading.result(30).status == 503


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(("--load-model=*", "--load-model=good"), "error: creating server: Invalid argument - Wildcard model "
                     "name '*' must be the ONLY startup model if specified at all.", id="row 17"),
        pytest.param(("--load-model=zzz",), "error: creating server: Internal - failed to load all models",
                     id="a model that is not there"),
    ],
)  # fmt: skip
def test_a_start_that_cannot_load_what_it_is_told_ends(tmp_path: Path, flags: tuple[str, ...], text: str) -> None:
    """Row 17 of repository.md, and its section 8."""
    write_model(tmp_path, "good", code(1), CONFIG)
    ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), *ports, EXPLICIT, *flags]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert text in ended.stdout + ended.stderr


# ---------------------------------------------------------------------------------------------------- asked by a model

ATTEMPT = """
    def attempt(call, *arguments, **keywords):
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
"""
UTIL = "Failed to process the request for model 'scripted_0_0', message: "


@pytest.fixture(scope="module")
def scripted(server: RunningServer, repository: Path) -> RunningServer:
    """The explicit server with the scripted model, whose requests bring the code that asks."""
    write_scripted_model(repository)
    must_load(server, "scripted")
    return server


def test_a_model_loads_another_asks_for_it_and_unloads_it(scripted: RunningServer, repository: Path) -> None:
    """model_api.md row 135."""
    write_model(repository, "asked", code(11), CONFIG)
    told = answer(
        scripted,
        """
        ready = pb_utils.is_model_ready
        told = [ready("asked"), pb_utils.load_model("asked"), ready("asked"), ready("asked", "1"), ready("asked", "2")]
        told += [pb_utils.unload_model("asked"), ready("asked"), pb_utils.unload_model("never_there")]
        answer(told)
        """,
    )
    assert told == [False, None, True, True, False, None, False, None]
    wait_unloaded(scripted, "asked")


def test_a_model_loads_another_from_files_of_its_own(scripted: RunningServer) -> None:
    """model_api.md row 135: an override with config and file is ready under a new name."""
    told = answer(
        scripted,
        f"""
        files = {{"file:1/model.py": {code(12)!r}.encode()}}
        pb_utils.load_model("made", config={json.dumps(OVERRIDE)!r}, files=files)
        answer(pb_utils.is_model_ready("made"))
        """,
    )
    assert told is True
    assert value_of(scripted, "made") == 12


def test_a_model_hears_why_another_does_not_load(scripted: RunningServer, repository: Path) -> None:
    """model_api.md, section 4.8."""
    write_model(repository, "asked_in_vain", BROKEN, CONFIG)
    told = answer(
        scripted,
        ATTEMPT
        + """
    answer([
        attempt(pb_utils.load_model, "zzz"),
        attempt(pb_utils.load_model, "asked_in_vain"),
        attempt(pb_utils.load_model, "zzz", files=[1]),
        attempt(pb_utils.load_model, "zzz", files={"file:1/model.py": "text"}),
        attempt(pb_utils.load_model, "zzz", config="{}", files={"1/model.py": b""}),
        attempt(pb_utils.is_model_ready, "scripted", "x"),
        attempt(pb_utils.is_model_ready, "scripted", "-1"),
    ])
    """,
    )
    failed = f"TritonModelException: Failed to load model: {UTIL}"
    unreadable = f"TritonModelException: Failed to check model readiness: {UTIL}failed to get model version from "
    assert told[0] == failed + shape_a("zzz")
    assert told[1].startswith(f"{failed}load failed for model 'asked_in_vain': version 1 is at UNAVAILABLE state: ")
    assert told[2:] == [
        "TritonModelException: failed to load model 'zzz', files should be a dictionary of file paths and file contents",
        "TypeError: Object of type 'str' is not an instance of 'bytes'",
        f"{failed}unrecognized load parameter '1/model.py'.",
        f"{unreadable}specified version string 'x' (details: stol), version should be an integral value > 0",
        f"{unreadable}specified version string '-1', version should be an integral value > 0",
    ]
    write_model(repository, "asked_in_vain", code(1), CONFIG)
    must_load(scripted, "asked_in_vain")


def test_a_model_can_unload_itself(server: RunningServer, repository: Path) -> None:
    """model_api.md, section 4.8: the request that does it is answered, because it was inside already."""
    write_scripted_model(repository, "suicidal")
    must_load(server, "suicidal")
    assert answer(server, "answer(pb_utils.unload_model('suicidal'))", model="suicidal") is None
    wait_unloaded(server, "suicidal")


def test_a_model_can_load_itself_anew(server: RunningServer, repository: Path) -> None:
    """Traffic moves to the new generation while the old one is still in the request that asked for it."""
    model = write_scripted_model(repository, "renews")
    must_load(server, "renews")
    (old,) = server.worker_pids("renews_0")
    (model / "notes.txt").write_text("changed")
    assert answer(server, "answer(pb_utils.load_model('renews'))", model="renews") is None
    wait_until(lambda: old not in server.worker_pids("renews_0"))
    assert answer(server, "answer(pb_utils.is_model_ready('renews'))", model="renews") is True


def loads(name: str, unload: bool = False) -> str:
    """What a model does in ``initialize`` to load or unload *name*."""
    return f"pb_utils.{'un' if unload else ''}load_model({name!r})"


def test_a_model_may_load_another_while_it_is_loaded_itself(server: RunningServer, repository: Path) -> None:
    """model_api.md, section 4.8: initialize may."""
    write_model(repository, "outer", code(1, initialize=loads("inner")), CONFIG)
    write_model(repository, "inner", code(2), CONFIG)
    must_load(server, "outer")
    assert value_of(server, "inner") == 2


@pytest.mark.parametrize("unload_instead", [False, True], ids=["load", "unload"])
def test_a_model_that_is_loading_cannot_wait_for_itself(
    server: RunningServer, repository: Path, unload_instead: bool
) -> None:
    """Triton hangs."""
    write_model(repository, "selfish", code(1, initialize=loads("selfish", unload_instead)), CONFIG)
    reply = load(server, "selfish")
    assert reply.status == 400
    assert "a model that is loading cannot wait for itself: 'selfish' -> 'selfish'" in reply.error
    write_model(repository, "selfish", code(1), CONFIG)
    must_load(server, "selfish")


def test_models_that_are_loading_cannot_wait_for_each_other(server: RunningServer, repository: Path) -> None:
    """Triton hangs."""
    write_model(repository, "hen", code(1, initialize=loads("egg")), CONFIG)
    write_model(repository, "egg", code(1, initialize=loads("hen")), CONFIG)
    reply = load(server, "hen")
    assert reply.status == 400
    assert "a model that is loading cannot wait for itself: 'egg' -> 'hen' -> 'egg'" in reply.error
    for name in ("egg", "hen"):
        write_model(repository, name, code(1), CONFIG)
        must_load(server, name)


def test_a_model_cannot_load_another_while_the_server_starts(tmp_path: Path) -> None:
    """model_api.md, section 4.8: on Triton a deadlock."""
    write_model(tmp_path, "early", code(1, initialize=loads("other")), CONFIG)
    write_model(tmp_path, "other", code(1), CONFIG)
    flags = (EXPLICIT, "--load-model=early", "--exit-on-error=false")
    with RunningServer(tmp_path, flags=flags) as server:
        ((state, reason),) = rows_of(server, "early").values()
        assert state == "UNAVAILABLE"
        assert reason.startswith("Internal: TritonModelException: Failed to load model: ")
        assert reason.endswith("the server is starting, models are loaded and unloaded on request when it serves")


@pytest.mark.parametrize("call", ["load_model", "unload_model", "is_model_ready"])
def test_models_are_not_loaded_in_finalize(server: RunningServer, repository: Path, call: str) -> None:
    """model_api.md, section 4.8: on Triton a deadlock."""
    write_model(repository, "lastly", code(1, finalize=f"pb_utils.{call}('scripted')"), CONFIG)
    must_load(server, "lastly")
    assert unload(server, "lastly").status == 200
    wait_unloaded(server, "lastly")
    server.wait_for_log("asked whether they are ready, in initialize and execute, not in finalize")


def test_without_explicit_control_models_ask_and_do_not_load(tmp_path: Path) -> None:
    """model_api.md row 136; repository.md row 2."""
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path) as server:
        told = answer(
            server,
            ATTEMPT
            + """
    answer([
        attempt(pb_utils.load_model, "scripted"),
        attempt(pb_utils.unload_model, "scripted"),
        pb_utils.is_model_ready("scripted"),
        pb_utils.is_model_ready("zzz"),
    ])
    """,
        )
        assert told == [
            f"TritonModelException: Failed to load model: {UTIL}{NOT_ALLOWED}",
            f"TritonModelException: Failed to unload model: {UTIL}{NOT_ALLOWED}",
            True,
            False,
        ]
