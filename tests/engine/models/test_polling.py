"""What a look at the repositories does, called by the test and by nobody's clock: repository.md, section 4.1, rows 64 to 69."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.server import Server
from pytriton_lite.repository import reader
from pytriton_lite.repository.index import Listing, ModelDirectory, list_models
from pytriton_lite.repository.refreshed import Refreshed
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

ALL_VERSIONS = f"version_policy {{ all {{ }} }}\n{CONFIG}"
BROKEN = "raise RuntimeError('broken on purpose')"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def rows(server: Server, model: str = "m") -> dict[int, VersionState]:
    """The states that can be seen of *model*'s versions."""
    return {version: served.state for version, served in server._models.by_name[model].versions.items()}


async def index(server: Server) -> list[str]:
    """Names and states, as clients see them."""
    found = await server.repository_index()
    return [f"{row.name} {row.state.value if row.state else '-'}" for row in found]


def touch(path: Path) -> None:
    """Make it newer than it was, whatever the clock of the file system."""
    later = path.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))


def test_nothing_is_done_where_nothing_has_changed(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        assert await ask(server) == 1  # which leaves bytecode in the model's directory
        before = server.find("m", None)
        caplog.clear()
        await server.poll()
        assert server.find("m", None) is before
        assert caplog.text == ""

    with caplog.at_level("INFO"):
        run(repository, scenario, is_explicit=False)


def test_a_configuration_that_was_touched_reloads_nothing(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Row 64."""
    model = write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        before = server.find("m", None)
        touch(model / "config.pbtxt")
        caplog.clear()
        await server.poll()
        assert server.find("m", None) is before
        assert caplog.messages == ["loading: m:1", "successfully loaded 'm'"]

    with caplog.at_level("INFO"):
        run(repository, scenario, is_explicit=False)


def test_a_file_beside_the_configuration_reloads_every_version(repository: Path) -> None:
    """Row 65."""
    for version in (1, 2):
        model = write_model(repository, "m", code(version), ALL_VERSIONS, version=version)

    async def scenario(server: Server) -> None:
        before = [server.find("m", version) for version in (1, 2)]
        (model / "notes.txt").write_text("every version may read me")
        touch(model / "notes.txt")
        await server.poll()
        assert [server.find("m", version) is old for version, old in zip((1, 2), before)] == [False, False]
        assert await ask(server) == 2

    run(repository, scenario, is_explicit=False)


def test_a_new_version_is_loaded_alone(repository: Path) -> None:
    """Row 66."""
    write_model(repository, "m", code(1), ALL_VERSIONS)

    async def scenario(server: Server) -> None:
        before = server.find("m", 1)
        write_model(repository, "m", code(2), version=2)
        await server.poll()
        assert server.find("m", 1) is before
        assert await ask(server) == 2

    run(repository, scenario, is_explicit=False)


def test_a_broken_configuration_is_told_at_each_look_and_changes_nothing(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 67."""
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        before = server.find("m", None)
        write_model(repository, "m", config="max_batch_size: many")
        touch(repository / "m" / "config.pbtxt")
        for looks in (1, 2):
            await server.poll()
            assert caplog.text.count("Poll failed for model directory 'm': ") == looks
        assert server.find("m", None) is before
        assert server.is_ready()
        write_model(repository, "m", code(2), CONFIG)
        await server.poll()
        assert await ask(server) == 2

    run(repository, scenario, is_explicit=False)


def test_a_broken_model_is_tried_at_each_look_while_the_old_one_serves(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 68."""
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        before = server.find("m", None)
        write_model(repository, "m", BROKEN)
        for looks in (1, 2):
            await server.poll()
            assert caplog.text.count("failed to load 'm' version 1: Internal: RuntimeError: broken on purpose") == looks
        assert server.find("m", None) is before
        assert server.is_ready()
        write_model(repository, "m", code(2))
        await server.poll()
        assert await ask(server) == 2

    run(repository, scenario, is_explicit=False)


def test_models_come_and_go_with_their_directories(repository: Path) -> None:
    """Row 69."""
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        write_model(repository, "new", code(2), CONFIG)
        await server.poll()
        assert await ask(server, "new") == 2
        shutil.rmtree(repository / "new")
        await server.poll()
        assert await index(server) == ["m READY"]
        assert await refusal_of(ask(server, "new")) == "Request for unknown model: 'new' has no available versions"
        write_model(repository, "new", code(3), CONFIG)
        await server.poll()
        assert await ask(server, "new") == 3

    run(repository, scenario, is_explicit=False)


def test_a_name_that_comes_into_two_repositories_is_unloaded_until_it_is_unique(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """repository.md, sections 1.2 and 4.1."""
    other = tmp_path / "other"
    other.mkdir()
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        write_model(other, "m", code(2), CONFIG)
        await server.poll()
        assert caplog.text.count("failed to poll model 'm': not unique across all model repositories") == 1
        assert await index(server) == ["m UNAVAILABLE"]
        assert await refusal_of(ask(server)) == "Request for unknown model: 'm' has no available versions"
        shutil.rmtree(repository / "m")
        await server.poll()
        assert await ask(server) == 2

    run(repository, scenario, is_explicit=False, more_repositories=(other,))


def test_a_model_that_moves_to_another_repository_is_loaded_from_there(tmp_path: Path, repository: Path) -> None:
    """It is as old as before, and a worker that is started again would not find its files."""
    other = tmp_path / "other"
    other.mkdir()
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        before = server.find("m", None)
        (repository / "m").rename(other / "m")
        await server.poll()
        assert server.find("m", None) is not before
        moved = server.find("m", None)
        await server.poll()
        assert server.find("m", None) is moved

    run(repository, scenario, is_explicit=False, more_repositories=(other,))


def test_models_of_a_repository_that_cannot_be_read_are_left_as_they_are(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """repository.md, section 4.1, step 1: those of the other repositories are followed."""
    other = tmp_path / "other"
    write_model(other, "there", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        before = server.find("there", None)
        other.rename(tmp_path / "away")
        write_model(repository, "m", code(2), CONFIG)
        await server.poll()
        text = f"failed to poll model repository '{other}': failed to open directory {other}"
        assert caplog.messages.count(text) == 1
        assert server.find("there", None) is before
        assert await ask(server) == 2
        assert await refusal_of(server.repository_index()) == f"failed to open directory {other}"
        (tmp_path / "away").rename(other)
        await server.poll()
        assert server.find("there", None) is before

    run(repository, scenario, is_explicit=False, more_repositories=(other,))


class FarAway:
    """A repository that answers while ``answers`` is set, and says of one model each time that it cannot be copied."""

    def __init__(self, root: Path) -> None:
        self.names = {root: "far://models"}
        self.answers = threading.Event()
        self.answers.set()

    def show(self) -> list[str]:
        return []

    def refresh(self, roots: Collection[Path] | None = None) -> Refreshed:
        self.answers.wait()
        return Refreshed() if roots is None else Refreshed(models={"other": "cannot copy model 'other'"})

    def refresh_model(self, name: str) -> None: ...

    def pin(self, directory: ModelDirectory) -> None: ...

    def is_copied(self, directory: ModelDirectory) -> bool:
        return True

    def stop(self) -> None:
        self.answers.set()


def test_what_a_look_has_seen_that_took_long_is_followed_at_the_next_one(
    repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at that repository takes longer than others wait for it."""
    monkeypatch.setattr("pytriton_lite.engine.models.store._POLL_WAIT_S", 0)
    write_model(repository, "m", code(1), CONFIG)
    far = FarAway(repository)

    async def scenario(server: Server) -> None:
        write_model(repository, "m", code(2))
        far.answers.clear()
        await server.poll()
        late = "failed to poll model repository 'far://models': it is not done with what it was asked before"
        assert caplog.messages == [late]
        far.answers.set()
        await until(lambda: not server._store._looks)
        far.answers.clear()
        await server.poll()
        assert caplog.messages == [late, "cannot copy model 'other'"]
        await until(lambda: not server._store._looks)
        assert await ask(server) == 2

    with caplog.at_level("WARNING"):
        run(repository, scenario, is_explicit=False, remote=far)


def test_a_name_of_two_repositories_is_served_by_neither_while_one_of_them_is_not_done(
    tmp_path: Path, repository: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would serve for as long as the other repository loads something else, say."""
    monkeypatch.setattr("pytriton_lite.engine.models.store._POLL_WAIT_S", 0.1)
    gate = Gate(tmp_path)
    other = tmp_path / "other"
    for root in (repository, other):
        write_model(root, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        write_model(other, "slow", code(1, initialize=gate.statement), CONFIG)
        held = asyncio.ensure_future(gate.wait_held())
        while not held.done():
            await server.poll()
        write_model(repository, "n", code(1), CONFIG)
        while "n READY" not in await index(server):
            await server.poll()
        assert f"failed to poll model repository '{other}': it is not done with what it was asked before" in caplog.text
        assert await index(server) == ["m UNAVAILABLE", "n READY", "slow LOADING"]
        assert await refusal_of(ask(server)) == "Request for unknown model: 'm' is not found"
        shutil.rmtree(other / "m")
        gate.open()
        while "m READY" not in await index(server):
            await server.poll()

    run(repository, scenario, is_explicit=False, loads_all=False, more_repositories=(other,))
    gate.close()


def test_a_name_of_two_repositories_is_served_by_neither_while_one_of_them_is_away(
    tmp_path: Path, repository: Path
) -> None:
    other = tmp_path / "other"
    for root in (repository, other):
        write_model(root, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        other.rename(tmp_path / "away")
        await server.poll()
        await server.poll()
        assert await refusal_of(ask(server)) == "Request for unknown model: 'm' is not found"
        other.mkdir()
        await server.poll()
        assert await ask(server) == 1

    run(repository, scenario, is_explicit=False, loads_all=False, more_repositories=(other,))


def test_a_directory_that_goes_while_its_model_loads_ends_it_at_the_next_look(tmp_path: Path, repository: Path) -> None:
    gate = Gate(tmp_path)

    async def scenario(server: Server) -> None:
        write_model(repository, "m", code(1, initialize=gate.statement), CONFIG)
        look = asyncio.ensure_future(server.poll())
        await gate.wait_held()
        shutil.rmtree(repository / "m")
        gate.open()
        await look
        assert await ask(server) == 1
        await server.poll()
        assert rows(server)[1] is not VersionState.READY

    run(repository, scenario, is_explicit=False)
    gate.close()


def test_a_look_that_finds_files_gone_while_it_reads_does_what_it_can(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository changes while it is read: the directory is listed, and then it is not there."""
    write_model(repository, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        write_model(repository, "gone", code(2), CONFIG)
        write_model(repository, "here", code(3), CONFIG)
        changed = server._store._reader.changed

        def remove_first(*arguments: object) -> object:
            found = changed(*arguments)  # type: ignore[arg-type]
            shutil.rmtree(repository / "gone")
            return found

        monkeypatch.setattr(server._store._reader, "changed", remove_first)
        await server.poll()
        assert await ask(server, "here") == 3
        assert await ask(server) == 1
        assert "gone READY" not in await index(server)

    run(repository, scenario, is_explicit=False)


def test_ensembles_go_and_come_back_with_their_models(repository: Path, tmp_path: Path) -> None:
    """repository.md, section 6; the directory comes back as old as it was."""
    write_model(repository, "a", adder(1), ADDER_CONFIG)
    write_model(repository, "e", config=ensemble("a"))
    write_model(repository, "outer", config=ensemble("e", "a"))

    async def scenario(server: Server) -> None:
        assert await ask(server, "outer", IN=1) == 3
        (repository / "a").rename(tmp_path / "away")
        await server.poll()
        assert await refusal_of(ask(server, "outer", IN=1)) == (
            "Request for unknown model: 'outer' has no available versions"
        )
        assert server.is_ready() or rows(server, "a")[1] is VersionState.UNLOADING
        (tmp_path / "away").rename(repository / "a")
        await server.poll()
        assert await ask(server, "outer", IN=1) == 3

    run(repository, scenario, is_explicit=False)


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_an_ensemble_and_its_model_change_together(repository: Path) -> None:
    """Neither of them fits the other's old state, and the ensemble serves on all the time."""
    write_model(repository, "a", adder(1), ADDER_CONFIG)
    write_model(repository, "e", config=ensemble("a"))

    async def scenario(server: Server) -> None:
        before = server.find("e", None)
        renamed = ADDER_CONFIG.replace('"IN"', '"X"')
        write_model(repository, "a", adder(10), renamed)
        write_model(repository, "e", config=ensemble("a").replace('key: "IN"', 'key: "X"'))
        touch(repository / "e" / "config.pbtxt")
        states = []
        move = type(before)._move

        def watch(served: object, target: VersionState, reason: str = "") -> None:
            states.append((served is before, target))
            move(served, target, reason)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(before), "_move", watch)
            await server.poll()
        assert await ask(server, "e", IN=1) == 11
        new_ready = states.index((False, VersionState.READY))
        assert new_ready < states.index((True, VersionState.UNLOADING))

    run(repository, scenario, is_explicit=False)


def test_a_look_ends_with_the_server(tmp_path: Path, repository: Path) -> None:
    gate = Gate(tmp_path)

    async def scenario(server: Server) -> None:
        write_model(repository, "m", code(1, initialize=gate.statement), CONFIG)
        look = asyncio.ensure_future(server.poll())
        await gate.wait_held()
        server.begin_exit()
        assert await refusal_of(look) == "Server is stopping, the model repositories are not followed"

    run(repository, scenario, is_explicit=False)
    gate.open()
    gate.close()


def test_many_who_ask_for_the_index_at_once_are_answered_by_one_thread(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that list compute, and every one more takes the interpreter from the loop."""
    write_model(repository, "m", code(1), CONFIG)
    meeting = threading.Barrier(2)

    def list_and_wait_for_another(roots: Sequence[Path], *, namespaces: Mapping[Path, str] | None = None) -> Listing:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.2)
            raise AssertionError("two threads list at the same time")
        return list_models(roots, namespaces=namespaces)

    async def scenario(server: Server) -> None:
        monkeypatch.setattr(reader, "list_models", list_and_wait_for_another)
        assert await asyncio.gather(*(index(server) for _ in range(20))) == [["m READY"]] * 20

    run(repository, scenario, is_explicit=False)
