"""Ensembles beside operations on their models, where a client cannot see or cause it (repository.md, sections 4.2 and 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.server import Server
from tests.engine.store_scenarios import (
    ADDER_CONFIG,
    CONFIG,
    Gate,
    adder,
    ask,
    code,
    ensemble,
    refusal_of,
    run,
    until,
)
from tests.harness import write_model


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The models *a* and *b*, and the ensembles *e* of both and *outer* of *e* and *a*."""
    repository = tmp_path / "models"
    write_model(repository, "a", adder(1), ADDER_CONFIG)
    write_model(repository, "b", adder(10), ADDER_CONFIG)
    write_model(repository, "e", config=ensemble("a", "b"))
    write_model(repository, "outer", config=ensemble("e", "a"))
    return repository


async def load(server: Server, name: str, *, asked_by: str = "") -> None:
    await server.load_model(name, None, {}, asked_by=asked_by)


def test_one_place_to_load_is_enough_for_ensembles_in_ensembles(repository: Path) -> None:
    """``--model-load-thread-count=1``: nobody has it while waiting for another model."""

    async def scenario(server: Server) -> None:
        await asyncio.gather(load(server, "outer"), load(server, "e"), load(server, "a"), load(server, "outer"))
        assert await ask(server, "outer", IN=0) == 12

    run(repository, scenario, load_threads=1)


def test_an_unload_waits_for_the_load_of_an_ensemble_that_needs_the_model(tmp_path: Path, repository: Path) -> None:
    """So both have their effect, as if they had come one after the other."""
    gate = Gate(tmp_path)
    write_model(repository, "b", adder(10, initialize=gate.statement))

    async def scenario(server: Server) -> None:
        await load(server, "a")
        loading = asyncio.ensure_future(load(server, "e"))
        await gate.wait_held()
        unloading = asyncio.ensure_future(server.unload_model("a", unload_dependents=False))
        await asyncio.sleep(0)
        assert await server.is_model_ready("a", None)
        gate.open()
        await loading
        await unloading
        assert server.find("b", None).state is VersionState.READY
        for name in ("a", "e"):
            with pytest.raises(
                InferenceError, match=rf"^Request for unknown model: '{name}' has no available versions$"
            ):
                server.find(name, None)

    run(repository, scenario)
    gate.close()


def test_an_unload_that_waits_for_the_load_of_an_ensemble_does_not_disturb_the_next_one(
    tmp_path: Path, repository: Path
) -> None:
    gates = {name: Gate(tmp_path, name) for name in "bc"}
    for name, gate in gates.items():
        write_model(repository, name, adder(10, initialize=gate.statement), ADDER_CONFIG)
    write_model(repository, "other", config=ensemble("a", "c"))

    async def scenario(server: Server) -> None:
        first = asyncio.ensure_future(load(server, "e"))
        await gates["b"].wait_held()
        unloading = asyncio.ensure_future(server.unload_model("a", unload_dependents=False))
        second = asyncio.ensure_future(load(server, "other"))
        await gates["c"].wait_held()
        gates["b"].open()
        await first
        gates["c"].open()
        await second
        await unloading
        assert server.served_names() == ["b", "c"]

    run(repository, scenario)
    for gate in gates.values():
        gate.close()


def test_ensembles_move_in_the_same_moment_as_their_model(repository: Path) -> None:
    """Whoever finds an ensemble finds one that was made with the models that serve."""

    async def scenario(server: Server) -> None:
        await load(server, "outer")
        write_model(repository, "a", adder(2))
        loading = asyncio.ensure_future(load(server, "a"))
        before = (server.find("a", None), server.find("e", None), server.find("outer", None))
        while not loading.done():
            now = (server.find("a", None), server.find("e", None), server.find("outer", None))
            assert len({this is old for this, old in zip(now, before)}) == 1
            await asyncio.sleep(0)
        await loading
        assert server.find("outer", None) is not before[2]
        assert await ask(server, "outer", IN=0) == 14

    run(repository, scenario)


def test_a_load_of_an_ensemble_whose_model_has_changed_reaches_those_that_it_is_in(repository: Path) -> None:
    """*outer* is no part of the load of *e*, and *e* itself is as it was on disk."""
    write_model(repository, "outer", config=ensemble("e"))

    async def scenario(server: Server) -> None:
        await load(server, "outer")
        write_model(repository, "a", config=ADDER_CONFIG + "model_transaction_policy { decoupled: true }")
        await load(server, "e")
        assert server.find("outer", None).config.decoupled
        assert await server.is_model_ready("outer", None)

    run(repository, scenario)


def test_what_does_not_change_for_an_ensemble_leaves_it_alone(repository: Path) -> None:
    async def scenario(server: Server) -> None:
        await load(server, "outer")
        await load(server, "b")
        before = (server.find("e", None), server.find("outer", None))
        await load(server, "outer")
        write_model(repository, "other", code(1), CONFIG)
        await load(server, "other")
        assert (server.find("e", None), server.find("outer", None)) == before

    run(repository, scenario)


def test_an_ensemble_that_gets_a_wrong_configuration_serves_on(repository: Path) -> None:
    """repository.md, section 3: a reload that fails leaves what serves. Triton unloads it."""

    async def scenario(server: Server) -> None:
        await load(server, "outer")
        for config, text in (
            (ensemble("a", "nope"), "ensemble e contains models that are not available or ambiguous: nope"),
            (ensemble("a", "b").replace('key: "IN"', 'key: "X"'), "is mapping to non-existing input X in model a"),
            (ensemble("a", "outer"), "circular dependency between ensembles: e -> ... -> outer -> e"),
        ):
            write_model(repository, "e", config=config)
            assert text in await refusal_of(load(server, "e"))
            assert await ask(server, "outer", IN=0) == 12
        # It is the old configuration that goes on when its models change.
        write_model(repository, "a", adder(2))
        await load(server, "a")
        assert await ask(server, "outer", IN=0) == 14

    run(repository, scenario)


def test_an_ensemble_becomes_an_ordinary_model_and_an_ensemble_again(repository: Path) -> None:
    async def scenario(server: Server) -> None:
        await load(server, "outer")
        write_model(repository, "e", adder(5), ADDER_CONFIG)
        await load(server, "e")
        assert await ask(server, "outer", IN=0) == 6
        await server.unload_model("b", unload_dependents=False)
        assert await ask(server, "outer", IN=0) == 6
        write_model(repository, "e", config=ensemble("b"))
        await load(server, "e")
        assert await ask(server, "outer", IN=0) == 11

    run(repository, scenario)


def test_models_of_an_ensemble_may_load_each_other_and_not_wait_in_a_circle(tmp_path: Path, repository: Path) -> None:
    """They are loaded side by side, so one may wait for the other; the ensemble would have to wait for itself."""
    gates = {name: Gate(tmp_path, name) for name in "ab"}
    for name, gate in gates.items():
        write_model(repository, name, adder(1, initialize=gate.statement))

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(load(server, "e"))
        for gate in gates.values():
            await gate.wait_held()
        asked = asyncio.ensure_future(load(server, "b", asked_by="a"))
        await until(lambda: any(asking.awaits for asking in server._store._asking))
        text = "a model that is loading cannot wait for itself"
        assert await refusal_of(load(server, "e", asked_by="a")) == f"{text}: 'a' -> 'a'"
        assert await refusal_of(load(server, "outer", asked_by="b")) == f"{text}: 'b' -> 'a' -> 'b'"
        gates["b"].open()
        await asked
        gates["a"].open()
        await loading
        assert await ask(server, "e", IN=0) == 2

    run(repository, scenario, load_threads=2)
    for gate in gates.values():
        gate.close()


def test_a_model_may_load_an_ensemble_while_it_is_loaded_itself(tmp_path: Path, repository: Path) -> None:
    gate = Gate(tmp_path)
    write_model(repository, "asks", code(1, initialize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(load(server, "asks"))
        await gate.wait_held()
        others = [asyncio.ensure_future(load(server, name)) for name in ("outer", "b")]
        await load(server, "outer", asked_by="asks")
        assert await ask(server, "outer", IN=0) == 12
        await server.unload_model("outer", unload_dependents=True, asked_by="asks")
        gate.open()
        await asyncio.gather(loading, *others)

    run(repository, scenario, load_threads=1)
    gate.close()


def test_loads_and_unloads_of_everything_at_once_come_to_an_end(repository: Path) -> None:
    """And leave ensembles that serve with models that serve."""

    async def scenario(server: Server) -> None:
        operations = []
        for at in range(24):
            name = ("a", "outer", "b", "e")[at % 4]
            unloads = at % 7 == 3
            if unloads:
                operations.append(server.unload_model(name, unload_dependents=at % 2 == 0))
            else:
                operations.append(load(server, name))
        outcomes = await asyncio.gather(*operations, return_exceptions=True)
        assert all(isinstance(outcome, InferenceError | None) for outcome in outcomes), outcomes
        await load(server, "outer")
        assert await ask(server, "outer", IN=0) == 12

    run(repository, scenario, load_threads=2)


def test_the_end_of_the_server_ends_the_load_of_an_ensemble(tmp_path: Path, repository: Path) -> None:
    gate = Gate(tmp_path)
    write_model(repository, "b", adder(10, initialize=gate.statement))

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(load(server, "outer"))
        await gate.wait_held()
        unloading = asyncio.ensure_future(server.unload_model("a", unload_dependents=False))
        await asyncio.sleep(0)
        server.begin_exit()
        for operation, name in ((loading, "outer"), (unloading, "a")):
            assert await refusal_of(operation) == f"Server is stopping, nothing is done with model '{name}'"

    run(repository, scenario)
    gate.open()
    gate.close()


@pytest.mark.parametrize("retries", [0, 2])
def test_a_version_that_does_not_load_is_tried_again_so_often(
    repository: Path, caplog: pytest.LogCaptureFixture, retries: int
) -> None:
    """repository.md row 73; the versions beside it are not."""
    tries = repository.parent / "tries"
    counts = (
        f"open({str(tries)!r}, 'a').write(args['model_version']); assert args['model_version'] != '2', 'not this one'"
    )
    for version in (1, 2):
        write_model(
            repository,
            "m",
            code(version, initialize=counts),
            f"version_policy {{ all {{ }} }}\n{CONFIG}",
            version=version,
        )

    async def scenario(server: Server) -> None:
        assert "version 2 is at UNAVAILABLE state: Internal: AssertionError: not this one" in await refusal_of(
            load(server, "m")
        )
        assert sorted(tries.read_text()) == ["1", *"2" * (1 + retries)]
        assert caplog.text.count("failed to load 'm' version 2: Internal: AssertionError") == 1 + retries

    run(repository, scenario, load_retries=retries)


def test_a_version_that_loads_at_the_second_attempt_serves(repository: Path) -> None:
    """repository.md, section 3, step 4; its files that came with the request are still there."""
    once = repository.parent / "once"
    code_ = code(7, initialize=f"open({str(once)!r}, 'a').write('x'); assert os.path.getsize({str(once)!r}) > 1")
    config = '{"backend": "python", "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}'

    async def scenario(server: Server) -> None:
        await server.load_model("made", config, {"1/model.py": code_.encode()})
        assert await ask(server, "made") == 7

    run(repository, scenario, load_retries=1)
