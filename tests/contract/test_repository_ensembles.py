"""Ensembles and the models that they are made of, as they come and go: repository.md rows 50 to 61."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.life_kit import (
    ADDER_CONFIG,
    BROKEN,
    EXPLICIT,
    adder,
    closed_gate,
    ensemble,
    is_ready,
    load,
    must_load,
    rows_of,
    unload,
    value_of,
    wait_unloaded,
    waits,
)
from tests.contract.wire_models import metric, wait_pending, wait_until
from tests.harness import Reply, RunningServer, tensor, write_model

READY = {"1": ("READY", "")}
UNLOADED = {"1": ("UNAVAILABLE", "unloaded")}
NOT_LOADED: dict[str, tuple[str, str]] = {}
"""A name in the index, and nothing more."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models *a* and *b*, the ensemble *e* of both, *outer* of *e* and *b*, *begins* of *a* and *e*; some do not load."""
    repository = tmp_path_factory.mktemp("ensembles") / "models"
    write_model(repository, "a", adder(1), ADDER_CONFIG)
    write_model(repository, "b", adder(10), ADDER_CONFIG)
    write_model(repository, "bad", BROKEN, ADDER_CONFIG)
    write_model(repository, "e", config=ensemble("a", "b"))
    write_model(repository, "outer", config=ensemble("e", "b"))
    write_model(repository, "begins", config=ensemble("a", "e"))
    write_model(repository, "seventh", config=ensemble("a", version=7))
    write_model(repository, "below", config=ensemble("a", version=-2))
    write_model(repository, "incomplete", config=ensemble("nope", "a", "neither"))
    write_model(repository, "one", config=ensemble("two"))
    write_model(repository, "two", config=ensemble("one"))
    write_model(repository, "itself", config=ensemble("itself"))
    write_model(repository, "of_bad", config=ensemble("bad"))
    write_model(repository, "of_of_bad", config=ensemble("of_bad"))
    write_model(repository, "no_version", config=ensemble("a"))
    (repository / "no_version" / "1").rmdir()
    return repository


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository, flags=(EXPLICIT,)) as running:
        yield running


@pytest.fixture
def server(running: RunningServer, repository: Path) -> RunningServer:
    """The server without any model that serves."""
    for name in sorted(path.name for path in repository.iterdir()):
        assert unload(running, name).status == 200
    for name in ("a", "b", "e", "outer", "begins"):
        wait_unloaded(running, name)
    return running


def states(server: RunningServer, *names: str) -> list[str]:
    """Of their versions 1; ``-`` for a model of which the index has the name only."""
    found = [rows_of(server, name) for name in names]
    return [rows["1"][0] if rows else "-" for rows in found]


def test_an_ensemble_brings_all_its_models(server: RunningServer) -> None:
    """Row 50 of repository.md."""
    must_load(server, "outer")
    assert states(server, "a", "b", "e", "outer") == ["READY"] * 4
    assert value_of(server, "outer", IN=0) == 21
    assert is_ready(server)
    pids = server.worker_pids()
    must_load(server, "outer")
    assert server.worker_pids() == pids


def test_an_ensemble_goes_without_its_models(server: RunningServer) -> None:
    """Row 51 of repository.md."""
    must_load(server, "outer")
    assert unload(server, "outer").status == 200
    wait_unloaded(server, "outer")
    assert states(server, "a", "b", "e") == ["READY"] * 3
    assert value_of(server, "e", IN=0) == 11
    assert is_ready(server)


def test_an_ensemble_takes_its_models_with_it_if_asked_to(server: RunningServer) -> None:
    """Row 52 of repository.md."""
    must_load(server, "outer")
    assert unload(server, "outer", dependents=True).status == 200
    for name in ("a", "b", "e", "outer"):
        wait_unloaded(server, name)
        reply = server.post(f"/v2/models/{name}/infer", {"inputs": []})
        assert reply.error == f"Request for unknown model: '{name}' has no available versions"
    wait_until(lambda: is_ready(server))


@pytest.mark.parametrize("order", [("b", "outer"), ("outer", "b")], ids=["before", "after"])
def test_a_model_that_somebody_asked_for_stays(server: RunningServer, order: tuple[str, str]) -> None:
    """Row 53 of repository.md."""
    for name in order:
        must_load(server, name)
    assert unload(server, "outer", dependents=True).status == 200
    for name in ("a", "e", "outer"):
        wait_unloaded(server, name)
    assert value_of(server, "b", IN=0) == 10


def test_a_model_that_another_ensemble_needs_stays(server: RunningServer) -> None:
    """repository.md, section 5.2."""
    must_load(server, "outer")
    must_load(server, "e")
    assert unload(server, "outer", dependents=True).status == 200
    wait_unloaded(server, "outer")
    assert value_of(server, "e", IN=0) == 11


def test_an_ensemble_goes_and_comes_back_with_a_model_of_its_own(server: RunningServer) -> None:
    """Row 54 of repository.md, through an ensemble in between."""
    must_load(server, "outer")
    assert unload(server, "a").status == 200
    wait_unloaded(server, "a")
    assert [rows_of(server, name) for name in ("e", "outer")] == [UNLOADED, UNLOADED]
    assert states(server, "b") == ["READY"]
    assert is_ready(server)
    missing = "ensemble e contains models that are not available or ambiguous: a"
    assert f'"Invalid argument: {missing}"' in server.log
    assert (
        f"\"Invalid argument: ensemble 'outer' depends on 'e' which is not valid. Model 'e' failed with error: {missing}\""
        in server.log
    )
    must_load(server, "a")
    assert value_of(server, "outer", IN=0) == 21
    # What was unloaded by name stays away.
    assert unload(server, "e").status == 200
    must_load(server, "a")
    assert states(server, "e", "outer") == ["UNAVAILABLE"] * 2
    must_load(server, "e")
    assert value_of(server, "outer", IN=0) == 21


def test_an_ensemble_serves_on_while_its_model_does_not_reload(server: RunningServer, repository: Path) -> None:
    """Row 55 of repository.md; and the next load of the ensemble takes the repaired model."""
    must_load(server, "outer")
    try:
        write_model(repository, "a", BROKEN)
        reply = load(server, "a")
        assert reply.status == 400
        assert reply.error.startswith("load failed for model 'a': version 1 is at UNAVAILABLE state: Internal: ")
        assert load(server, "outer").status == 200
        assert states(server, "a", "e", "outer") == ["READY"] * 3
        assert value_of(server, "outer", IN=0) == 21
        assert is_ready(server)
        write_model(repository, "a", adder(100))
        must_load(server, "outer")
        assert value_of(server, "outer", IN=0) == 120
    finally:
        write_model(repository, "a", adder(1))


def test_an_ensemble_is_checked_again_when_a_model_of_it_has_changed(server: RunningServer, repository: Path) -> None:
    """repository.md, section 6: what does not fit any more is unloaded, and comes back when it fits."""
    must_load(server, "outer")
    try:
        write_model(repository, "a", config=ADDER_CONFIG.replace("dims: [ 1 ]", "dims: [ 2 ]"))
        must_load(server, "a")
        assert [rows_of(server, name) for name in ("e", "outer")] == [UNLOADED, UNLOADED]
    finally:
        write_model(repository, "a", config=ADDER_CONFIG)
    must_load(server, "a")
    assert value_of(server, "outer", IN=0) == 21


BAD = "Model 'bad' loading failed with error: version 1 is at UNAVAILABLE state: Internal: RuntimeError: broken on purpose"


@pytest.mark.parametrize(
    ("name", "text", "has_ended"),
    [
        pytest.param("seventh", "ensemble 'seventh' depends on 'a' whose required version 7 is not loaded.", True,
                     id="row 56"),
        pytest.param("below", "ensemble 'below' depends on 'a' whose required version -2 is not loaded.", True,
                     id="-1 alone is the latest"),
        pytest.param("incomplete", "ensemble incomplete contains models that are not available or ambiguous: nope, neither",
                     True, id="row 57"),
        pytest.param("one", "circular dependency between ensembles: one -> ... -> two -> one", True, id="row 58"),
        pytest.param("itself", "circular dependency between ensembles: itself -> ... -> itself -> itself", True,
                     id="row 58, of one"),
        pytest.param("of_bad", f"ensemble 'of_bad' depends on 'bad' which has no loaded version. {BAD}", False,
                     id="row 59"),
        pytest.param("of_of_bad", "ensemble 'of_of_bad' depends on 'of_bad' which is not valid. Model 'of_bad' failed with "
                     f"error: ensemble 'of_bad' depends on 'bad' which has no loaded version. {BAD}", False,
                     id="row 59, further up"),
    ],
)  # fmt: skip
def test_an_ensemble_that_cannot_be_is_refused(server: RunningServer, name: str, text: str, has_ended: bool) -> None:
    """Rows 56 to 59 of repository.md: there is nothing to be seen of it then but the name."""
    reply = load(server, name)
    assert reply.status == 400
    wanted = f"load failed for model '{name}': {text}"
    assert reply.error == f"{wanted}\n" if has_ended else reply.error.startswith(wanted)
    assert rows_of(server, name) == NOT_LOADED
    reply = server.post(f"/v2/models/{name}/infer", {"inputs": []})
    assert (reply.status, reply.error) == (404, f"Request for unknown model: '{name}' is not found")


def test_an_ensemble_that_was_refused_comes_with_the_last_of_its_models(
    server: RunningServer, repository: Path
) -> None:
    """As in Triton: it is known, and waits."""
    assert load(server, "incomplete").status == 400
    try:
        for name, value in (("nope", 100), ("neither", 1000)):
            assert rows_of(server, "incomplete") == NOT_LOADED
            write_model(repository, name, adder(value), ADDER_CONFIG)
            must_load(server, name)
        assert value_of(server, "incomplete", IN=0) == 1101
    finally:
        for name in ("nope", "neither"):
            assert unload(server, name).status == 200
            shutil.rmtree(repository / name)


def test_an_ensemble_without_a_version_is_refused_and_keeps_the_server_from_being_ready(repository: Path) -> None:
    """Row 60 of repository.md, and row 8: with a server of its own, which stays as it is then."""
    with RunningServer(repository, flags=(EXPLICIT,)) as server:
        reply = load(server, "no_version")
        text = "at least one version must be available under the version policy of model 'no_version'"
        assert (reply.status, reply.error) == (400, f"load failed for model 'no_version': {text}\n")
        assert rows_of(server, "no_version") == NOT_LOADED
        assert not is_ready(server)


@pytest.mark.parametrize(("name", "value"), [("e", 11), ("begins", 12)], ids=["ensemble", "ensemble in an ensemble"])
@pytest.mark.parametrize("leave", [unload, load], ids=["unload", "reload"])
def test_a_request_of_an_ensemble_ends_with_the_models_that_it_began_with(
    server: RunningServer,
    repository: Path,
    tmp_path: Path,
    leave: Callable[[RunningServer, str], object],
    name: str,
    value: int,
) -> None:
    """Row 61 of repository.md: the first step holds the request, the last model goes meanwhile."""
    try:
        with closed_gate(tmp_path) as gate, ThreadPoolExecutor(1) as pool:
            write_model(repository, "a", adder(1, execute=waits(gate)))
            must_load(server, name)
            answer = pool.submit(value_of, server, name, IN=0)
            gate.wait_held(server)
            write_model(repository, "b", adder(1000))
            leave(server, "b")
            assert states(server, name) == ["UNLOADING" if leave is unload else "READY"]
            gate.open()
            assert answer.result(30) == value
    finally:
        write_model(repository, "a", adder(1))
        write_model(repository, "b", adder(10))


@pytest.mark.parametrize("name", ["around", "around_around"])
@pytest.mark.parametrize("leave", [unload, load], ids=["unload", "reload"])
def test_a_request_of_an_ensemble_waits_for_no_silent_sequence_of_a_model_that_goes(
    tmp_path: Path, leave: Callable[[RunningServer, str], object], name: str
) -> None:
    """As a request that the model itself has got: nobody can go on with that sequence any more, which has the only slot."""
    sequences = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
    write_model(tmp_path, "kept", adder(1), ADDER_CONFIG + sequences)
    write_model(tmp_path, "around", config=ensemble("kept"))
    write_model(tmp_path, "around_around", config=ensemble("around"))
    with (
        RunningServer(tmp_path, flags=(EXPLICIT, "--load-model=around_around")) as server,
        ThreadPoolExecutor(1) as pool,
    ):

        def ask(model: str, sequence: int) -> Reply:
            flags = {"sequence_id": sequence, "sequence_start": True}
            return server.infer(model, [tensor("IN", "INT32", [1], [1])], parameters=flags)

        assert ask("kept", 1).status == 200
        answer = pool.submit(ask, name, 2)
        wait_pending(server, "kept", 1, unless=answer)
        write_model(tmp_path, "kept", adder(1000))
        leave(server, "kept")
        assert answer.result(30).json["outputs"][0]["data"] == [2]


def test_what_is_counted_of_an_ensemble_begins_anew_with_it(server: RunningServer) -> None:
    """It is another generation, as after any reload."""
    must_load(server, "e")
    assert value_of(server, "e", IN=0) == 11
    assert metric(server, "nv_inference_request_success", "e") == 1
    assert unload(server, "b").status == 200
    must_load(server, "b")
    assert metric(server, "nv_inference_request_success", "e") == 0
    assert metric(server, "nv_inference_request_success", "a") == 1


def test_at_the_start_ensembles_come_after_their_models_and_those_that_cannot_be_fail_it(repository: Path) -> None:
    """repository.md, sections 6 and 8; a failure keeps no other model from being loaded."""
    with RunningServer(repository, flags=("--exit-on-error=false", "--model-load-thread-count=1")) as server:
        assert value_of(server, "outer", IN=0) == 21
        assert states(server, "a", "b", "e", "outer", "one", "of_bad", "bad") == [
            *["READY"] * 4, "-", "-", "UNAVAILABLE",
        ]  # fmt: skip
        assert server.log.index("successfully loaded 'e'") < server.log.index("successfully loaded 'outer'")
        assert "| Not loaded: circular dependency between ensembles: one -> ... -> two -> one" in server.log
