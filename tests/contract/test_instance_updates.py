"""A load that changes a model's instances alone: those that serve go on, others come and go."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import RunningServer, tensor, write_model

CODE = """
    import os

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            self.events = os.path.join(args["model_repository"], "..", "..", "events_" + args["model_name"])
            self.note("initialize")
            if args["model_instance_kind"] == "MODEL":
                raise RuntimeError("no such kind")

        def note(self, what):
            with open(self.events, "a") as events:
                events.write(f"{what} {self.name}\\n")

        def execute(self, requests):
            shape = requests[0].inputs()[0].as_numpy().shape
            text = np.full(shape, self.name.encode(), np.object_)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]

        def finalize(self):
            self.note("finalize")
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("updates")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    (folder / "models").mkdir()
    with RunningServer(folder / "models", flags=("--model-control-mode=explicit",)) as running:
        yield running


class Model:
    """A model of one test, named after it."""

    def __init__(self, server: RunningServer, folder: Path, name: str, more: str = "") -> None:
        self.server = server
        self.name = name
        self._more = more
        self._folder = write_model(folder / "models", name, CODE)
        self._events = folder / f"events_{name}"

    def load(self, groups: str, status: int = 200) -> Any:
        """With these instance groups in config.pbtxt; what a refused load is told."""
        (self._folder / "config.pbtxt").write_text(CONFIG + self._more + groups)
        reply = self.server.post(f"/v2/repository/models/{self.name}/load")
        assert reply.status == status, reply.body
        return reply.error if status != 200 else None

    def infer(self, **parameters: Any) -> str:
        """The name of the instance that answers."""
        fields = {"parameters": parameters} if parameters else {}
        reply = self.server.infer(self.name, [tensor("IN", "INT32", [1], [0])], **fields)
        assert reply.status == 200, reply.body
        name: str = reply.json["outputs"][0]["data"][0]
        return name

    @property
    def events(self) -> list[str]:
        """What has happened so far, in the order of names."""
        return sorted(self._events.read_text().splitlines())

    def wait_events(self, *wanted: str) -> None:
        """Return when that, and no more, has happened."""
        wait_until(lambda: self.events == sorted(wanted))

    @property
    def count(self) -> int:
        """As the configuration that is served says."""
        (group,) = self.server.get(f"/v2/models/{self.name}/config").json["instance_group"]
        count: int = group["count"]
        return count


def initialized(name: str, *numbers: int) -> list[str]:
    return [f"initialize {name}_0_{number}" for number in numbers]


def finalized(name: str, *numbers: int) -> list[str]:
    return [f"finalize {name}_0_{number}" for number in numbers]


def test_more_instances_are_created_beside_the_one_that_serves(server: RunningServer, folder: Path) -> None:
    """repository.md row 33."""
    model = Model(server, folder, "more")
    model.load("instance_group { count: 1 }")
    model.infer()
    model.load("instance_group { count: 3 }")
    assert model.events == initialized("more", 0, 1, 2), "two were initialised, and none was finalised"
    assert model.count == 3
    assert {model.infer() for _ in range(6)} == {"more_0_0", "more_0_1", "more_0_2"}
    stats = server.get("/v2/models/more/stats").json["model_stats"][0]
    assert stats["inference_count"] == 7, "the version is the same"


def test_surplus_instances_are_finalised(server: RunningServer, folder: Path) -> None:
    """repository.md row 34."""
    model = Model(server, folder, "fewer")
    model.load("instance_group { count: 3 }")
    model.load("instance_group { count: 1 }")
    model.wait_events(*initialized("fewer", 0, 1, 2), *finalized("fewer", 1, 2))
    assert model.count == 1
    assert {model.infer() for _ in range(3)} == {"fewer_0_0"}


def test_a_surplus_instance_serves_its_sequences_to_their_end(server: RunningServer, folder: Path) -> None:
    """repository.md row 35 and scheduling.md row 90."""
    model = Model(server, folder, "sequences", SEQUENCES)
    model.load("instance_group { count: 2 }")
    where = {model.infer(sequence_id=at, sequence_start=True): at for at in (1, 2)}
    assert set(where) == {"sequences_0_0", "sequences_0_1"}
    model.load("instance_group { count: 1 }")
    for name, at in where.items():
        assert model.infer(sequence_id=at) == name
    assert model.infer(sequence_id=where["sequences_0_0"], sequence_end=True) == "sequences_0_0"
    new = {model.infer(sequence_id=at, sequence_start=True, sequence_end=True) for at in (3, 4, 5)}
    assert new == {"sequences_0_0"}, "the surplus instance takes no new ones"
    assert model.events == initialized("sequences", 0, 1)
    assert model.infer(sequence_id=where["sequences_0_1"], sequence_end=True) == "sequences_0_1"
    model.wait_events(*initialized("sequences", 0, 1), *finalized("sequences", 1))


def test_an_override_of_the_instances_alone_is_an_update_in_place(server: RunningServer, folder: Path) -> None:
    """repository.md row 40."""
    model = Model(server, folder, "override")
    model.load("instance_group { count: 1 }")
    config = server.get("/v2/models/override/config").json
    config["instance_group"] = [{"count": 2}]
    body = {"parameters": {"config": json.dumps(config)}}
    assert server.post("/v2/repository/models/override/load", body).status == 200
    assert (model.events, model.count) == (initialized("override", 0, 1), 2)


def test_requests_are_answered_while_instances_come_and_go(server: RunningServer, folder: Path) -> None:
    model = Model(server, folder, "busy")
    model.load("instance_group { count: 2 }")
    names: list[str] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            names.append(model.infer())

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for count in (1, 4, 2, 3):
            model.load(f"instance_group {{ count: {count} }}")
    finally:
        is_over.set()
        for client in clients:
            client.join(60)
    assert names
    stats = server.get("/v2/models/busy/stats").json["model_stats"][0]["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (len(names), 0)


def test_an_instance_that_one_version_cannot_create_leaves_the_others_as_they_were(
    server: RunningServer, folder: Path
) -> None:
    """All versions of a load change, or none does."""
    model = Model(server, folder, "versions", "version_policy { all { } }")
    dying = CODE.replace('== "MODEL"', '== "CPU" and self.name == "versions_0_1"')
    write_model(folder / "models", "versions", dying, version=2)
    model.load("instance_group { count: 1 kind: KIND_CPU }")
    text = model.load("instance_group { count: 2 kind: KIND_CPU }", status=400)
    assert text.startswith("load failed for model 'versions': version 2 is at UNAVAILABLE state: ")
    wait_until(lambda: "finalize versions_0_1" in model.events)
    counts = [
        server.get(f"/v2/models/versions/versions/{version}/config").json["instance_group"][0]["count"]
        for version in (1, 2)
    ]
    assert counts == [1, 1]
    wait_until(lambda: len(server.worker_pids("versions_")) == 2)


def test_an_instance_that_cannot_be_created_leaves_everything_as_it_was(server: RunningServer, folder: Path) -> None:
    model = Model(server, folder, "refused")
    model.load("instance_group { count: 1 }")
    text = model.load("instance_group [ { count: 2 }, { kind: KIND_MODEL } ]", status=400)
    assert text.startswith("load failed for model 'refused': version 1 is at ")
    assert "RuntimeError: no such kind" in text
    assert (model.count, model.infer()) == (1, "refused_0_0")
    assert server.get("/v2/models/refused/ready").status == 200
    wait_until(lambda: "finalize refused_0_1" in model.events)
    text = model.load("instance_group { kind: KIND_CPU gpus: [ 0 ] }", status=400)
    assert "instance group refused_0 of model refused has kind KIND_CPU but specifies one or more GPUs" in text
    assert (model.count, model.infer()) == (1, "refused_0_0")
    text = model.load("instance_group [ { count: 4000 }, { count: 97 } ]", status=400)
    assert "instance groups of model refused ask for 4097 instances together, expected at most 4096" in text
    assert (model.count, model.infer()) == (1, "refused_0_0")
    model.load("instance_group { count: 2 }")
    assert model.count == 2


def test_an_unload_takes_the_instances_that_came_later_along(server: RunningServer, folder: Path) -> None:
    model = Model(server, folder, "unloaded")
    model.load("instance_group { count: 1 }")
    model.load("instance_group { count: 2 }")
    assert server.post("/v2/repository/models/unloaded/unload").status == 200
    model.wait_events(*initialized("unloaded", 0, 1), *finalized("unloaded", 0, 1))
    wait_until(lambda: server.worker_pids("unloaded_") == [])


LOADS_OTHERS = """
    def initialize(self, args):
        import triton_python_backend_utils as pb_utils
        if args["model_instance_name"].endswith("_1"):
            pb_utils.load_model({model!r})
"""


def test_a_new_instance_loads_other_models_and_not_its_own(tmp_path: Path) -> None:
    """The version serves, but the load of the new instance waits: for one slot, and for itself, it would wait for ever."""
    models = {name: write_model(tmp_path, name, CODE, CONFIG) for name in ("helper", "helped", "selfish")}
    for name, loaded in (("helped", "helper"), ("selfish", "selfish")):
        (models[name] / "1" / "model.py").write_text(f"class TritonPythonModel:{LOADS_OTHERS.format(model=loaded)}")
    flags = ("--model-control-mode=explicit", "--model-load-thread-count=1")
    with RunningServer(tmp_path, flags=flags) as server:
        replies = {}
        for count in (1, 2):
            for name in ("helped", "selfish"):
                (models[name] / "config.pbtxt").write_text(f"{CONFIG} instance_group {{ count: {count} }}")
                replies[name] = server.post(f"/v2/repository/models/{name}/load")
        assert replies["helped"].status == 200, replies["helped"].body
        assert server.get("/v2/models/helper/ready").status == 200
        assert replies["selfish"].status == 400
        assert "a model that is loading cannot wait for itself: 'selfish' -> 'selfish'" in replies["selfish"].error
        assert server.get("/v2/models/selfish/ready").status == 200
