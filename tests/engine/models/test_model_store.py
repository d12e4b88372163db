"""What becomes of generations and of who waits for them, where a client over a socket cannot see it or cannot cause it."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import weakref
from pathlib import Path

import pytest

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.model_operations import answer_model_operation
from pytriton_lite.engine.server import Server
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.workers.backends import Backends
from pytriton_lite.frontends.pending_answer import PendingAnswer
from tests.engine.store_scenarios import (
    ADDER_CONFIG,
    CONFIG,
    Gate,
    adder,
    ask,
    code,
    refusal_of,
    request,
    run,
    until,
    value_of,
)
from tests.engine.version_kit import wait_until
from tests.harness import write_model


@pytest.mark.parametrize("version", [1, 2], ids=["the same version", "another version"])
def test_a_request_whose_model_was_replaced_while_its_body_came_is_served(tmp_path: Path, version: int) -> None:
    """repository.md row 22: a front end finds the version before it has the body."""
    write_model(tmp_path, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        found = server.find("m", None)
        write_model(tmp_path, "m", code(2), version=version)
        await server.load_model("m", None, {})
        assert found.state is not VersionState.READY
        assert await value_of(PendingAnswer.to(server, found, request())) == 2

    run(tmp_path, scenario)


def test_a_request_whose_model_was_unloaded_while_its_body_came_is_refused(tmp_path: Path) -> None:
    """repository.md row 27."""
    write_model(tmp_path, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        found = server.find("m", None)
        await server.unload_model("m", unload_dependents=False)
        with pytest.raises(InferenceError, match=r"^Request for unknown model: 'm' has no available versions$"):
            PendingAnswer.to(server, found, request())

    run(tmp_path, scenario)


def test_a_replaced_generation_serves_what_is_inside_it(tmp_path: Path) -> None:
    """repository.md, section 3, step 6: queued requests too."""
    gate = Gate(tmp_path)
    write_model(tmp_path / "models", "m", code(1, execute=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        old = [PendingAnswer.to(server, server.find("m", None), request()) for _ in range(3)]
        await gate.wait_held()
        write_model(tmp_path / "models", "m", code(2))
        await server.load_model("m", None, {})
        assert await value_of(PendingAnswer.to(server, server.find("m", None), request())) == 2
        assert not any(answer.done() for answer in old)
        gate.open()
        assert [await value_of(answer) for answer in old] == [1, 1, 1]

    run(tmp_path / "models", scenario)
    gate.close()


def test_requests_of_an_unloading_model_whose_worker_does_not_come_back_all_end(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    died = str(tmp_path / "died")
    dies = f"{gate.statement}; open({died!r}, 'w').close(); os._exit(1)"
    text = code(1, initialize=f"assert not os.path.exists({died!r})", execute=dies)
    write_model(tmp_path / "models", "m", text, CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        served = server.find("m", None)
        answers = [PendingAnswer.to(server, served, request()) for _ in range(8)]
        await gate.wait_held()
        await server.unload_model("m", unload_dependents=False)
        gate.open()
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert all(isinstance(outcome, InferenceError) for outcome in outcomes)

    run(tmp_path / "models", scenario)
    gate.close()


@pytest.mark.parametrize("unloads_first", [False, True], ids=["load", "unload and load"])
def test_a_load_repairs_a_model_whose_worker_does_not_come_back(tmp_path: Path, unloads_first: bool) -> None:
    """model_api.md, section 3.6; nothing on disk has changed."""
    died = tmp_path / "died"
    dies = f"open({str(died)!r}, 'x').close(); os._exit(1)"
    text = code(1, initialize=f"assert not os.path.exists({str(died)!r})", execute=dies)
    write_model(tmp_path / "models", "m", text, CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        served = server.find("m", None)
        while served.state is VersionState.READY:
            with pytest.raises(InferenceError):
                await PendingAnswer.to(server, served, request())
        died.unlink()
        if unloads_first:
            await server.unload_model("m", unload_dependents=False)
        await server.load_model("m", None, {})
        assert server.find("m", None) is not served
        assert await server.is_model_ready("m", 1)

    run(tmp_path / "models", scenario)


def test_the_end_of_the_server_does_not_wait_longer_than_it_may_for_an_unload(tmp_path: Path) -> None:
    """An unload has no limit of its own; the end of the server has."""
    gate = Gate(tmp_path)
    write_model(tmp_path / "models", "m", code(1, finalize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        await server.unload_model("m", unload_dependents=False)
        await gate.wait_held()
        assert not await server.stop(0.0)
        server.stop = no_second_stop  # type: ignore[method-assign]

    run(tmp_path / "models", scenario)
    gate.open()
    gate.close()


def test_the_end_of_the_server_ends_loads_and_what_waits_for_its_turn(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    write_model(tmp_path / "models", "m", code(1, initialize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(server.load_model("m", None, {}))
        await gate.wait_held()
        waiting = [
            asyncio.ensure_future(server.load_model("m", None, {})),
            asyncio.ensure_future(server.unload_model("m", unload_dependents=False)),
        ]
        await asyncio.sleep(0)  # they begin
        server.begin_exit()
        for task in (loading, *waiting):
            with pytest.raises(InferenceError, match=r"^Server is stopping, ") as refused:
                await task
            assert refused.value.code is ErrorCode.UNAVAILABLE
        with pytest.raises(InferenceError, match=r"^Server not ready$"):
            await server.load_model("m", None, {})

    run(tmp_path / "models", scenario)
    gate.open()
    gate.close()


def test_a_load_that_the_end_of_the_server_cuts_off_is_not_told_as_an_unload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gate = Gate(tmp_path)
    write_model(tmp_path / "models", "m", code(1, initialize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(server.load_model("m", None, {}))
        await gate.wait_held()
        await server.stop(10)
        assert "gave up loading 'm' version 1" in caplog.messages
        assert "successfully unloaded 'm' version 1" not in caplog.messages
        assert "nothing is done with model 'm'" in await refusal_of(loading)
        server.stop = no_second_stop  # type: ignore[method-assign]

    run(tmp_path / "models", scenario)
    gate.open()
    gate.close()


async def no_second_stop(timeout_s: float) -> bool:
    return True


def test_the_log_counts_what_the_end_of_the_server_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """repository.md, section 9, steps 4 and 5, in Triton's words, once a second."""
    caplog.set_level(logging.INFO, "pytriton_lite.engine.models.generations")
    gate, end = Gate(tmp_path), Gate(tmp_path, "end")
    held = code(1, execute=f"{gate.statement} if os.path.exists({str(tmp_path / 'gate_begun')!r}) else None")
    write_model(tmp_path / "models", "m", held, CONFIG)
    write_model(tmp_path / "models", "n", code(1, finalize=end.statement), CONFIG)

    inferences = "model versions that have in-flight inferences"
    live = "live models and 0 in-flight non-inference requests"

    async def told(text: str, times: int) -> None:
        await wait_until(lambda: sum(message.endswith(text) for message in caplog.messages) >= times)

    async def scenario(server: Server) -> None:
        for name in "mn":
            await server.load_model(name, None, {})
        answers = [PendingAnswer.to(server, server.find("m", None), request()) for _ in range(3)]
        await gate.wait_held()
        stopping = asyncio.ensure_future(server.stop(20))
        await told(f"Found 1 {inferences}", 2)
        (tmp_path / "gate_begun").unlink()
        gate.open()
        await asyncio.gather(*answers)
        await told("successfully unloaded 'm' version 1", 1)
        await told(f"Found 1 {live}", 1)
        end.open()
        assert await stopping
        server.stop = no_second_stop  # type: ignore[method-assign]

    run(tmp_path / "models", scenario)
    lines = [text for text in caplog.messages if text.startswith(("Timeout", "Model", "All"))]
    seconds = [int(text.split(":")[0].removeprefix("Timeout ")) for text in lines if text.startswith("Timeout")]
    assert (seconds[0], sorted(seconds, reverse=True)) == (20, seconds)
    said = list(dict.fromkeys(text.partition(": ")[2] or text for text in lines))
    # What a second that ends while those inside are answered, or while 'm' goes, has besides.
    between = {"Model 'm' (version 1) has 1 in-flight inferences", f"Found 2 {live}"}
    assert [text for text in said if text not in between] == [
        f"Found 1 {inferences}",
        "Model 'm' (version 1) has 2 in-flight inferences",
        f"Found 0 {inferences}",
        "All models are stopped, unloading models",
        f"Found 1 {live}",
        f"Found 0 {live}",
    ]
    gate.close()
    end.close()


class WatchedBackends(Backends):
    """Backends that are looked for in a folder whose disk might hang."""

    def folders(self) -> dict[str, Path]:
        assert threading.current_thread() is not threading.main_thread(), "the loop would wait for the disk"
        return super().folders()


def test_no_disk_is_asked_for_backends_in_the_event_loop(tmp_path: Path) -> None:
    backends = tmp_path / "backends"
    (backends / "mine").mkdir(parents=True)
    (backends / "mine" / "model.py").write_text(code(3))
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(CONFIG.replace('"python"', '"mine"'))

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        assert await ask(server) == 3

    run(tmp_path / "models", scenario, backends=WatchedBackends(backends))


def test_so_many_versions_load_at_a_time_also_of_one_model(tmp_path: Path) -> None:
    """repository.md, section 3, step 4, as in Triton (asked of 2.51)."""
    gates = [Gate(tmp_path, str(version)) for version in range(3)]
    config = CONFIG + "version_policy { all { } }"
    for version, gate in enumerate(gates):
        write_model(tmp_path / "models", "m", code(1, initialize=gate.statement), config, version=version)

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(server.load_model("m", None, {}))
        for gate in gates[:2]:
            await gate.wait_held()
        seen = server._models.by_name["m"].versions
        assert sorted(seen) == [0, 1]
        gates[1].open()
        await gates[2].wait_held()
        gates[0].open()
        gates[2].open()
        await loading
        assert [served.version for served in server._models.by_name["m"].ready] == [0, 1, 2]

    run(tmp_path / "models", scenario, load_threads=2)
    for gate in gates:
        gate.close()


def test_a_load_goes_on_when_nobody_waits_for_it(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    write_model(tmp_path / "models", "m", code(1, initialize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        loading = asyncio.ensure_future(server.load_model("m", None, {}))
        await gate.wait_held()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        gate.open()
        await server.load_model("m", None, {})
        assert await server.is_model_ready("m", 1)

    run(tmp_path / "models", scenario)
    gate.close()


def test_loads_that_wait_for_each_other_through_others_are_refused(tmp_path: Path) -> None:
    """model_api.md, section 4.8; *a* waits for *b*, *b* for *c*, and *c* would wait for *a*."""
    gates = {name: Gate(tmp_path, name) for name in "abc"}
    for name, gate in gates.items():
        write_model(tmp_path / "models", name, code(1, initialize=gate.statement), CONFIG)

    async def scenario(server: Server) -> None:
        loads = []
        for name, asked_by in (("a", ""), ("b", "a"), ("c", "b")):
            loads.append(asyncio.ensure_future(server.load_model(name, None, {}, asked_by=asked_by)))
            await gates[name].wait_held()
        text = r"^a model that is loading cannot wait for itself: 'c' -> 'a' -> 'b' -> 'c'$"
        with pytest.raises(InferenceError, match=text):
            await server.load_model("a", None, {}, asked_by="c")
        with pytest.raises(InferenceError, match=r"^a model that is loading cannot wait for itself: 'c' -> 'c'$"):
            await server.unload_model("c", unload_dependents=False, asked_by="c")
        with pytest.raises(InferenceError, match=r"^a model that is loading cannot wait for itself: 'b' -> 'b'$"):
            await server.load_model("b", None, {}, asked_by="b")
        for gate in gates.values():
            gate.open()
        await asyncio.gather(*loads)
        await server.load_model("a", None, {}, asked_by="c")

    run(tmp_path / "models", scenario)
    for gate in gates.values():
        gate.close()


def test_a_load_that_another_waits_for_needs_no_place_of_its_own(tmp_path: Path) -> None:
    """``--model-load-thread-count=1``: the load that is waiting has the only one."""
    gates = {name: Gate(tmp_path, name) for name in "ab"}
    for name, gate in gates.items():
        write_model(tmp_path / "models", name, code(1, initialize=gate.statement), CONFIG)
    write_model(tmp_path / "models", "c", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        outer = asyncio.ensure_future(server.load_model("a", None, {}))
        await gates["a"].wait_held()
        others = [asyncio.ensure_future(server.load_model(name, None, {})) for name in "bc"]
        inner = asyncio.ensure_future(server.load_model("b", None, {}, asked_by="a"))
        await gates["b"].wait_held()
        assert not any(other.done() for other in others)
        assert not await server.is_model_ready("c", None)
        gates["b"].open()
        await inner
        gates["a"].open()
        await asyncio.gather(outer, *others)

    run(tmp_path / "models", scenario, load_threads=1)
    for gate in gates.values():
        gate.close()


def test_an_operation_that_nobody_knows_is_a_bug(tmp_path: Path) -> None:
    write_model(tmp_path, "m", code(1), CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        with pytest.raises(BugError, match=r"'model\.rename'"):
            await answer_model_operation(server, "model.rename", {"model_name": "x"}, caller=server.find("m", None))

    run(tmp_path, scenario)


class _Files(dict[str, bytes]):
    """Files of a load request, of which can be seen whether they are still there."""


UNLABELLED = json.dumps(
    {
        "platform": "ensemble",
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1], "label_filename": "labels.txt"}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": "part", "model_version": -1, "input_map": {"IN": "IN"}, "output_map": {"OUT": "OUT"}}
            ]
        },
    }
)


@pytest.mark.parametrize(
    ("config", "content"),
    [("{", ""), ('{"backend": "python"}', "raise ValueError(1)"), ('{"backend": "none"}', ""), (UNLABELLED, "")],
    ids=["no configuration", "a broken module", "no backend", "an ensemble without its labels"],
)
def test_a_load_that_fails_leaves_nothing_of_its_files(tmp_path: Path, config: str, content: str) -> None:
    write_model(tmp_path, "part", adder(1), ADDER_CONFIG)

    async def scenario(server: Server) -> None:
        await server.load_model("part", None, {})
        files = _Files({"1/model.py": content.encode()})
        kept = weakref.ref(files)
        gc.collect()
        gc.disable()
        try:
            assert await refusal_of(server.load_model("m", config, files))
            del files
            await until(lambda: kept() is None)
        finally:
            gc.enable()

    run(tmp_path, scenario)


def test_the_files_of_a_load_that_nobody_waits_for_any_more_count_until_it_has_ended(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    files = {"1/model.py": code(1, initialize=gate.statement).encode()}
    config = '{"backend": "python", "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]}'

    async def scenario(server: Server) -> None:
        load = asyncio.ensure_future(server.load_model("m", config, files))
        await gate.wait_held()
        load.cancel()
        await asyncio.wait({load})
        assert load.cancelled()
        assert server.receive_budget.taken == len(files["1/model.py"])
        gate.open()
        await until(lambda: server.receive_budget.taken == 0)
        assert await ask(server) == 1

    run(tmp_path / "models", scenario)
    gate.close()


def generations() -> list[ServedVersion]:
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, ServedVersion)]


def test_of_a_version_that_ended_nothing_stays_but_what_the_index_tells(tmp_path: Path) -> None:
    """A model that is trained anew each hour gets a new version number, and its labels may be a megabyte."""
    config = CONFIG.replace("dims: [ 1 ]", 'dims: [ 1 ] label_filename: "labels.txt"')
    directory = write_model(tmp_path, "m", code(1), config)
    (directory / "labels.txt").write_text("some\nlabels\n")

    async def scenario(server: Server) -> None:
        await server.load_model("m", None, {})
        (directory / "1").rename(directory / "2")
        await server.load_model("m", None, {})
        await until(lambda: server.load_table()[0][2] == "UNAVAILABLE: unloaded")
        (directory / "2").rename(directory / "3")
        (directory / "3" / "model.py").write_text(code(3, initialize="raise ValueError('no')"))
        assert "ValueError: no" in await refusal_of(server.load_model("m", None, {}))
        states = [(version, status.partition(": V")[0]) for _, version, status in server.load_table()]
        assert states == [("1", "UNAVAILABLE: unloaded"), ("2", "READY"), ("3", "UNAVAILABLE: Internal")]
        await until(lambda: {served.version for served in generations() if served.labels} == {2})

    run(tmp_path, scenario)
