"""INSTANCE_SHARING: instances whose model is initialised once, forks of one process or threads of it (docs/instances.md)."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.contract.scripted_model import CONFIG, DECOUPLED, SCRIPT_CODE, Gate, Stream, outputs_of, run, value_of
from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer, is_running, one_process, process_name_and_parent, write_model

BOTH = pytest.mark.parametrize("sharing", ["fork", "threads"])

EVENTS = """
    def initialize(self, args):
        self.args = args
        self.events = os.path.join(args["model_repository"], "..", "..", "events_" + args["model_name"])
        self.note("initialize", args["model_instance_name"])
        self.shared = {}
        self.weights = np.ones(4_000_000)  # 32 MB
        self.family = pb_utils.MetricFamily("executed_" + args["model_name"], "Executions.", pb_utils.MetricFamily.COUNTER)
        self.executed = self.family.Metric({})
        MORE

    def note(self, *words):
        with open(self.events, "a") as events:
            events.write(" ".join(words) + "\\n")

    def finalize(self):
        self.note("finalize", "in the process of initialize" if MADE_BY == os.getpid() else "elsewhere")
"""

COUNTED = CONFIG.replace("kind: KIND_CPU", "count: COUNT kind: KIND_CPU")


def code_of(more: str = "pass") -> str:
    own = EVENTS.replace("MORE", more)
    code = re.sub(r"    def initialize.*?(?=    def execute)", lambda _: own.lstrip("\n"), SCRIPT_CODE, flags=re.DOTALL)
    return code.replace("FINAL = ", "MADE_BY = os.getpid()\nFINAL = ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharing")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    (folder / "models").mkdir()
    with RunningServer(folder / "models", flags=("--model-control-mode=explicit",)) as running:
        yield running


class Model:
    """A model of one test, loaded."""

    def __init__(
        self, server: RunningServer, name: str, folder: Path, sharing: str, *, count: int = 3, **options: str
    ) -> None:
        self.server = server
        self.name = name
        self._events = folder / f"events_{name}"
        self._folder = folder / "models"
        self._sharing = sharing
        self._config = options.pop("config", COUNTED)
        self._code = code_of(options.pop("initialize", "pass"))
        self.load(count, **options)

    def write(self, count: int, more: str = "") -> None:
        parameter = f'parameters {{ key: "INSTANCE_SHARING" value {{ string_value: "{self._sharing}" }} }}\n'
        code, self._code = self._code, ""  # written anew it would be another version
        write_model(self._folder, self.name, code, self._config.replace("COUNT", str(count)) + parameter + more)

    def load(self, count: int, *, more: str = "", status: str = "200") -> str:
        """The reason where it is refused."""
        self.write(count, more)
        reply = self.server.post(f"/v2/repository/models/{self.name}/load")
        assert reply.status == int(status), reply.body
        self.reason = reply.error if reply.status != 200 else ""
        return self.reason

    def unload(self) -> None:
        assert self.server.post(f"/v2/repository/models/{self.name}/unload").status == 200
        wait_until(lambda: not self.pids)

    def value(self, code: str, **fields: Any) -> Any:
        return value_of(run(self.server, code, model=self.name, **fields))

    @contextmanager
    def everybody(self, count: int, code: str = "") -> Iterator[list[Any]]:
        """What *code* says in each of *count* instances, all of which are executing at this moment."""
        with ExitStack() as stack, ThreadPoolExecutor(count) as threads:
            gates = [stack.enter_context(Gate()) for _ in range(count)]
            body = f"gate(PORT)\nreturn [response([os.getpid(), threading.get_native_id(), {code or None}])]"
            replies = [
                threads.submit(run, self.server, body.replace("PORT", str(gate.port)), model=self.name)
                for gate in gates
            ]
            for gate in gates:
                gate.wait()
            found: list[Any] = []
            yield found
            for gate in gates:
                gate.open()
            found += [reply.result() for reply in replies]

    def instances(self, count: int, code: str = "") -> list[tuple[int, int, Any]]:
        """(pid, thread, what *code* says) of *count* different instances."""
        with self.everybody(count, code) as replies:
            pass
        return [tuple(value_of(reply)) for reply in replies]

    @property
    def events(self) -> list[str]:
        return sorted(self._events.read_text().splitlines()) if self._events.exists() else []

    @property
    def pids(self) -> list[int]:
        return self.server.worker_pids(self.name)

    @property
    def shared_pid(self) -> int:
        (pid,) = self.server.worker_pids(f"{self.name}_shared")
        return pid

    @property
    def executed(self) -> float:
        page = self.server.get(self.server.metrics_url).body.decode()
        found = re.search(rf"^executed_{self.name}(?:{{}})? ([0-9.e+]+)$", page, re.MULTILINE)
        assert found is not None, page
        return float(found[1])

    def wait_back(self, *instances: int) -> None:
        """Return when these *instances* have been replaced."""
        for number in instances:
            self.server.wait_for_log(rf"instance '{self.name}_0_{number}' is back")


def test_the_forks_of_one_process_share_what_initialize_made(server: RunningServer, folder: Path) -> None:
    model = Model(server, "forks", folder, "fork")
    private = (
        "[int(line.split()[1]) for line in open('/proc/self/smaps_rollup') if line.startswith('Private_Dirty')][0], "
        "float(model.weights.sum())"
    )
    found = model.instances(3, f"({private})")
    assert model.events == ["initialize forks_shared"]
    assert len({pid for pid, _, _ in found}) == 3
    assert model.shared_pid not in {pid for pid, _, _ in found}, "what initialised the model executes nothing"
    for pid, _, (private_kb, total) in found:
        assert process_name_and_parent(pid)[1] == process_name_and_parent(model.shared_pid)[1], "the fork server's"
        assert total == 4_000_000
        assert private_kb < 16_000, "half of the weights would be as many"


def test_threads_of_one_process_execute_one_model_at_a_time(server: RunningServer, folder: Path) -> None:
    model = Model(server, "threaded", folder, "threads")
    found = model.instances(3, "id(model)")
    assert model.events == ["initialize threaded_shared"]
    assert {pid for pid, _, _ in found} == {model.shared_pid} == set(model.pids)
    assert len({thread for _, thread, _ in found}) == 3
    assert len({identity for _, _, identity in found}) == 1


@BOTH
def test_initialize_is_told_that_it_serves_all_instances(server: RunningServer, folder: Path, sharing: str) -> None:
    model = Model(server, f"told_{sharing}", folder, sharing)
    args = model.value("return [response({k: v for k, v in model.args.items() if k != 'model_config'})]")
    assert args["model_instance_name"] == f"told_{sharing}_shared"
    assert (args["model_instance_kind"], args["model_instance_device_id"]) == ("CPU", "0")


@BOTH
def test_lines_are_those_of_the_instance_that_writes_them(server: RunningServer, folder: Path, sharing: str) -> None:
    model = Model(server, f"lines_{sharing}", folder, sharing, count=2, initialize="print('from initialize')")
    code = "print(f'printed {unit}') or sys.stderr.write(f'written {unit}\\n') and pb_utils.Logger.log_info(f'logged {unit}')"
    code = code.replace("{unit}", "{threading.get_native_id()}")
    threads = [thread for _, thread, _ in model.instances(2, code.replace("sys.", "__import__('sys').", 1))]
    server.wait_for_log(rf"from initialize.*\[lines_{sharing}:1 lines_{sharing}_shared\]")
    for word in ("printed", "written", "logged"):
        names = {server.wait_for_log(rf"{word} {thread}\" \[lines_{sharing}:1 (\w+)").group(1) for thread in threads}
        assert names == {f"lines_{sharing}_0_0", f"lines_{sharing}_0_1"}, word


@BOTH
@pytest.mark.parametrize(
    "stream",
    ["io.TextIOWrapper(sys.stdout.detach())", "sys.stdout.close() or open(1, 'w', closefd=False)"],
    ids=["detached", "closed"],
)
def test_a_model_may_take_another_stream_in_the_place_of_stdout(
    server: RunningServer, folder: Path, sharing: str, stream: str
) -> None:
    name = f"replaced_{sharing}_{stream.partition('.')[0]}"
    model = Model(
        server, name, folder, sharing, initialize=f"import io, sys; sys.stdout = {stream}; print('said by', '{name}')"
    )
    assert len(model.instances(3)) == 3
    model.unload()
    server.wait_for_log(f"successfully unloaded '{name}'")
    assert server.log.count(f"said by {name}") == 1, "what lay in its buffer is not each fork's"


@BOTH
def test_printed_lines_have_the_ids_of_their_requests(server: RunningServer, folder: Path, sharing: str) -> None:
    model = Model(server, f"ids_{sharing}", folder, sharing, count=2, initialize="self.out = __import__('sys').stdout")
    model.value("print('says', file=model.out)\nreturn [response(1)]", id=f"number-{sharing}")
    server.wait_for_log(rf"says\" \[ids_{sharing}:1 ids_{sharing}_0_\d request number-{sharing}\]")


@BOTH
def test_metrics_that_initialize_made_count_in_all_instances(server: RunningServer, folder: Path, sharing: str) -> None:
    model = Model(server, f"metrics_{sharing}", folder, sharing)
    model.instances(3, "model.executed.increment(1)")
    assert model.value("return [response(model.executed.value())]") == 3.0
    assert model.executed == 3.0
    own = "model.own = pb_utils.MetricFamily('own_NAME', '', pb_utils.MetricFamily.GAUGE)".replace("NAME", sharing)
    model.value(f"{own}\nmodel.own.Metric({{}}).set(5)\nreturn [response(1)]")
    assert f"own_{sharing} 5" in server.get(server.metrics_url).body.decode()
    model.unload()
    wait_until(lambda: f"executed_metrics_{sharing} " not in server.get(server.metrics_url).body.decode())


def test_a_fork_that_is_killed_is_replaced_by_another_without_initialize(server: RunningServer, folder: Path) -> None:
    model = Model(server, "killed", folder, "fork")
    with model.everybody(3) as replies:
        victim = next(pid for pid in model.pids if pid != model.shared_pid)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(model.pids) == 4 and victim not in model.pids)
    assert sorted(reply.status for reply in replies) == [200, 200, 503], "what the others execute is not disturbed"
    assert victim not in {pid for pid, _, _ in model.instances(3)}
    assert model.events == ["initialize killed_shared"]


def test_forks_serve_on_when_the_process_that_loaded_the_model_is_killed(server: RunningServer, folder: Path) -> None:
    model = Model(server, "orphans", folder, "fork")
    before = {pid for pid, _, _ in model.instances(3, "model.executed.increment(1)")}
    os.kill(model.shared_pid, signal.SIGKILL)
    server.wait_for_log(r"that has loaded the model for 3 instances was killed by signal 9: they serve on")
    assert {pid for pid, _, _ in model.instances(3, "model.executed.increment(1)")} == before
    assert model.executed == 6.0, "nothing of what initialize asked for is gone"
    os.kill(min(before), signal.SIGKILL)
    server.wait_for_log(r"instance 'orphans_0_\d' is back")
    after = {pid for pid, _, _ in model.instances(3)}
    assert after > before - {min(before)}
    assert model.events == ["initialize orphans_shared"] * 2
    model.unload()
    assert not any(map(is_running, before | after))


def test_threads_end_with_their_process_and_every_request_once(server: RunningServer, folder: Path) -> None:
    model = Model(server, "crashed", folder, "threads")
    with model.everybody(3) as replies:
        os.kill(model.shared_pid, signal.SIGKILL)
        server.wait_for_log(r"that has loaded the model for 3 instances was killed by signal 9: they end with it")
    assert [reply.status for reply in replies] == [503] * 3
    assert all("crashed_0_" in reply.error and "is not healthy" in reply.error for reply in replies)
    model.wait_back(0, 1, 2)
    assert {pid for pid, _, _ in model.instances(3)} == {model.shared_pid}
    assert model.events == ["initialize crashed_shared"] * 2


def test_a_thread_that_hangs_is_shown_and_ends_with_its_process(server: RunningServer, folder: Path) -> None:
    limit = 'parameters { key: "EXECUTION_TIMEOUT_SECONDS" value { string_value: "0.3" } }\n'
    model = Model(server, "hangs", folder, "threads", count=2, more=limit)
    reply = run(server, "def oversleep():\n    time.sleep(1e9)\noversleep()", model="hangs")
    assert reply.status == 504
    server.wait_for_log(r"in oversleep.*\[hangs:1 hangs_shared\]")
    model.wait_back(0, 1)
    serving = set()

    def all_serve() -> bool:  # one after the other, and again where a busy machine has let the limit pass
        reply = run(server, "return [response(threading.get_native_id())]", model="hangs")
        serving.update([value_of(reply)] if reply.status == 200 else [])
        return len(serving) == 2

    wait_until(all_serve)


@BOTH
def test_instances_come_and_go_without_another_initialize(server: RunningServer, folder: Path, sharing: str) -> None:
    name = f"regrouped_{sharing}"
    model = Model(server, name, folder, sharing, count=1)
    model.load(3)
    assert len({thread for _, thread, _ in model.instances(3)}) == 3
    model.load(1)
    forks = ["finalize elsewhere"] if sharing == "fork" else []
    wait_until(lambda: model.events == [*forks * 2, f"initialize {name}_shared"])
    model.load(2)
    assert len({thread for _, thread, _ in model.instances(2)}) == 2
    model.unload()
    ends = forks * 4 or ["finalize in the process of initialize"]
    assert model.events == [*ends, f"initialize {name}_shared"], "a fork finalizes its model, threads have one"


@BOTH
def test_a_reload_initialises_anew_and_leaves_nothing_of_the_old(
    server: RunningServer, folder: Path, sharing: str
) -> None:
    model = Model(server, f"anew_{sharing}", folder, sharing, count=2)
    before = model.pids
    model.load(2, more='parameters { key: "other" value { string_value: "value" } }')
    wait_until(lambda: not set(before) & set(model.pids))
    assert len(model.instances(2)) == 2
    assert model.events.count(f"initialize anew_{sharing}_shared") == 2


@BOTH
def test_a_failed_initialize_is_the_reason_of_the_load(server: RunningServer, folder: Path, sharing: str) -> None:
    model = Model(
        server, f"raises_{sharing}", folder, sharing, initialize="raise RuntimeError('no weights here')", status="400"
    )
    assert "RuntimeError: no weights here" in model.reason
    assert len(model.events) == 1, "one process has tried, for all instances"
    wait_until(lambda: not model.pids)


@BOTH
def test_a_warm_up_runs_in_each_instance(server: RunningServer, folder: Path, sharing: str) -> None:
    warm = """
        model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value {
            data_type: TYPE_STRING dims: [ 1 ] input_data_file: "code" } } }
    """
    name = f"warm_{sharing}"
    code = b"model.note('warm', threading.current_thread().name)\nreturn [response(1)]"
    (folder / "models" / name / "warmup").mkdir(parents=True)
    (folder / "models" / name / "warmup" / "code").write_bytes(len(code).to_bytes(4, "little") + code)
    model = Model(server, name, folder, sharing, more=warm)
    assert sum(event.startswith("warm") for event in model.events) == 3


@BOTH
def test_calls_of_other_models_are_those_of_the_instance(server: RunningServer, folder: Path, sharing: str) -> None:
    Model(server, f"callee_{sharing}", folder, "threads", count=1)
    model = Model(server, f"caller_{sharing}", folder, sharing, count=2)
    call = f"""
        code = np.array(["return [response(os.getpid())]"], object)
        request = pb_utils.InferenceRequest(
            model_name="callee_{sharing}", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", code)]
        )
        def call():
            answer = request.exec()
            assert not answer.has_error(), answer.error().message()
            called.append(json.loads(answer.output_tensors()[0].as_numpy()[0]))
        called = []
    """
    assert model.value(call + "\n        call()\n        return [response(called)]") == server.worker_pids(
        f"callee_{sharing}"
    )
    in_a_thread = call + "\n        thread(call).join()\n        return [response(called)]"
    assert model.value(in_a_thread) == server.worker_pids(f"callee_{sharing}")


def call_of(callee: str, code: str = "return [response(7)]") -> str:
    """An expression: a call of *callee*, which executes *code*."""
    tensor = f'pb_utils.Tensor("IN", np.array([{code!r}], object))'
    return f'pb_utils.InferenceRequest(model_name="{callee}", requested_output_names=["OUT"], inputs=[{tensor}])'


def test_a_thread_of_initialize_is_refused_its_calls_until_an_instance_serves(
    server: RunningServer, folder: Path
) -> None:
    Model(server, "called_early", folder, "threads", count=1)
    poll = f"""
        import sys
        self.refusals, self.answers = set(), []
        sys.setswitchinterval(0.00001)  # so that it calls at any moment
        def poll():
            while not self.answers:
                try:
                    self.answers.append(json.loads({call_of("called_early")}.exec().output_tensors()[0].as_numpy()[0]))
                except pb_utils.TritonModelException as error:
                    self.refusals.add(str(error))
        self.polling = thread(poll)
    """
    model = Model(server, "calls_early", folder, "threads", count=1, initialize=poll.strip())
    code = "model.polling.join()\nreturn [response([model.answers, list(model.refusals)])]"
    assert model.value(code) == [[7], ["BLS is only supported during the 'execute' function."]]


def test_a_thread_that_calls_on_and_on_does_not_keep_its_model_from_finalize(
    server: RunningServer, folder: Path
) -> None:
    Model(server, "called_late", folder, "threads", count=1)
    model = Model(server, "calls_late", folder, "threads", count=2)
    model.value(f"""
        def call():
            while True:
                try:
                    {call_of("called_late")}.exec()
                except Exception:
                    pass
        thread(call)
        return [response(0)]
    """)
    model.unload()
    assert model.events[0] == "finalize in the process of initialize"


def test_a_thread_that_has_outlived_its_instance_logs_and_counts_for_the_process(
    server: RunningServer, folder: Path
) -> None:
    """It was given the context, as docs/logging.md has it."""
    model = Model(server, "outlived", folder, "threads", count=2, initialize="self.go_on = threading.Event()")
    late = "lambda: (model.go_on.wait(), pb_utils.Logger.log_info('it goes on'), model.executed.increment(1))"
    model.instances(2, f"threading.Thread(target=__import__('contextvars').copy_context().run, args=({late},)).start()")
    model.load(1)
    living = "return [response(sum(each.name.startswith('instance ') for each in threading.enumerate()))]"
    wait_until(lambda: model.value(living) == 1)
    model.value("model.go_on.set()\nreturn [response(0)]")
    wait_until(lambda: model.executed == 2)
    server.wait_for_log(r'"it goes on" \[outlived:1 outlived_shared\]')
    server.wait_for_log(r'"it goes on" \[outlived:1 outlived_0_\d\]')


@pytest.mark.parametrize("name", ["blocks", "awaits"])
def test_a_call_that_is_not_answered_before_its_instance_ends_raises_what_models_know(
    server: RunningServer, folder: Path, name: str
) -> None:
    Model(server, f"callee_of_{name}", folder, "threads", count=1)
    model = Model(server, name, folder, "threads", count=1)
    with Gate() as callee, Gate() as caller:
        model.value(f"""
            request = {call_of(f"callee_of_{name}", f"gate({callee.port})")}
            async def awaits():
                await request.async_exec()
            def blocks():
                request.exec()
            call = blocks if "{name}" == "blocks" else lambda: asyncio.run(awaits())
            threading.Thread(target=lambda: tell({caller.port}, refusal(call))).start()
            return [response(0)]
        """)
        callee.wait()
        model.unload()
        assert caller.told() == "TritonModelException: the call was not answered: the instance that made it has ended"


def test_a_tensor_that_one_thread_was_given_is_the_same_where_another_returns_it(
    server: RunningServer, folder: Path
) -> None:
    """Both have one by the same number: to the engine the numbers are those of the instance that says them."""
    Model(server, "gives", folder, "threads", count=1)
    model = Model(server, "keeps", folder, "threads", count=2)
    call = """pb_utils.InferenceRequest(
        model_name="gives",
        requested_output_names=["OUT"],
        inputs=[pb_utils.Tensor("IN", np.array(["return [response('%d' * 9000)]" % threading.get_native_id()], object))],
    ).exec().output_tensors()[0]"""
    kept = model.instances(2, f"model.shared.update({{threading.get_native_id(): {call}}})")
    threads = {thread for _, thread, _ in kept}
    code = """
        (other,) = model.shared.keys() - {threading.get_native_id()}
        return [Response([model.shared[other], pb_utils.Tensor("Y", np.array([other], np.float32))])]
    """
    for _ in range(4):
        reply = run(server, code, model="keeps")
        other = int(outputs_of(reply)["Y"]["data"][0])
        assert (other in threads, value_of(reply)) == (True, str(other) * 9000)


@one_process("it maps memory of each")
def test_threads_that_end_leave_nothing_in_their_process(server: RunningServer, folder: Path) -> None:
    model = Model(server, "leaves", folder, "threads", count=1)
    code = "async def later():\n    return [response(threading.get_native_id())]\nreturn later()\n"
    code += "#" * 10_000  # which comes through shared memory

    def held() -> tuple[int, int]:
        """Descriptors, and memory files that are mapped."""
        process = Path(f"/proc/{model.shared_pid}")
        return len(list((process / "fd").iterdir())), (process / "maps").read_text().count("/memfd:")

    model.value("gc.disable()\nreturn [response(0)]")  # nothing is there for a collection to find
    model.value(code)
    before = held()
    for _ in range(3):
        model.load(4)
        model.instances(4)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: model.value(code), range(16)))
        model.load(1)
    wait_until(lambda: held() == before)


@BOTH
def test_decoupled_answers_come_from_all_instances(server: RunningServer, folder: Path, sharing: str) -> None:
    config = DECOUPLED.replace("kind: KIND_CPU", "count: COUNT kind: KIND_CPU")
    Model(server, f"stream_{sharing}", folder, sharing, count=2, config=config)
    code = """
        sender = request.get_response_sender()
        for number in range(3):
            sender.send(response(number))
        sender.send(flags=FINAL)
    """
    with Stream(server) as stream:
        for number in range(8):
            stream.send(f"stream_{sharing}", code, request_id=str(number))
        found = [(message.id, message.value) for message in stream.rest()]
    assert sorted(found) == [(str(number), value) for number in range(8) for value in range(3)]


@BOTH
def test_a_timeout_that_initialize_gives_all_sockets_is_not_that_of_the_channel(
    server: RunningServer, folder: Path, sharing: str
) -> None:
    config = DECOUPLED.replace("kind: KIND_CPU", "count: COUNT kind: KIND_CPU")
    initialize = "__import__('socket').setdefaulttimeout(0.2)"
    Model(server, f"patient_{sharing}", folder, sharing, count=1, config=config, initialize=initialize)
    code = """
        sender = request.get_response_sender()
        for number in range(200):
            sender.send(response(number))
        sender.send(flags=FINAL)
    """
    with Stream(server) as stream:
        stream.send(f"patient_{sharing}", code)
        assert [message.value for message in stream.rest()] == list(range(200))


def test_coroutines_of_threads_have_the_instance_of_their_execute(server: RunningServer, folder: Path) -> None:
    Model(server, "called_coroutine", folder, "threads", count=1)
    model = Model(server, "coroutines", folder, "threads", count=2)
    code = """
        async def answer():
            code = np.array(["return [response(7)]"], object)
            request = pb_utils.InferenceRequest(
                model_name="called_coroutine", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", code)]
            )
            answer = await request.async_exec()
            print("in a coroutine")
            return [response(json.loads(answer.output_tensors()[0].as_numpy()[0]))]
        return answer()
    """
    assert model.value(code) == 7
    server.wait_for_log(r"in a coroutine\" \[coroutines:1 coroutines_0_\d\]")


def test_sequences_of_forks_have_their_own_instance(server: RunningServer, folder: Path) -> None:
    config = COUNTED + "sequence_batching { max_sequence_idle_microseconds: 3600000000 }\n"
    model = Model(server, "sequences", folder, "fork", count=2, config=config)
    code = "model.shared[0] = model.shared.get(0, 0) + 1\nreturn [response([os.getpid(), model.shared[0]])]"
    found: dict[int, list[Any]] = {5: [], 6: []}
    for step in range(3):
        for sequence in found:
            parameters = {"sequence_id": sequence, "sequence_start": step == 0, "sequence_end": step == 2}
            found[sequence].append(model.value(code, parameters=parameters))
    assert [count for _, count in found[5]] == [count for _, count in found[6]] == [1, 2, 3]
    assert len({pid for pid, _ in (*found[5], *found[6])}) == 2


def test_nothing_is_left_when_the_fork_server_or_the_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with RunningServer(tmp_path / "models", flags=("--model-control-mode=explicit",)) as server:
        forks = Model(server, "forked", tmp_path, "fork", count=2)
        other = Model(server, "other", tmp_path, "threads", count=2)
        before = server.worker_pids()
        os.kill(process_name_and_parent(before[0])[1], signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, before)))
        forks.wait_back(0, 1)
        other.wait_back(0, 1)
        assert len(forks.instances(2)) == 2
        assert forks.events == ["initialize forked_shared"] * 2
        os.kill(forks.shared_pid, signal.SIGKILL)
        pids = server.worker_pids()
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, pids)))
    assert len(pids) >= 3


# ---------------------------------------------------------------------------------------------- refusals


def test_a_fork_is_refused_where_threads_run_after_initialize(server: RunningServer, folder: Path) -> None:
    start = "threading.Thread(target=time.sleep, args=(1e9,), name='refreshes tokens', daemon=True).start()"
    model = Model(server, "busy", folder, "fork", initialize=start, status="400")
    assert model.reason == (
        "load failed for model 'busy': version 1 is at UNAVAILABLE state: Unsupported: INSTANCE_SHARING 'fork' of model "
        "'busy': threads are running after initialize, which processes that are forked afterwards lack: 'refreshes tokens'. "
        "End them in initialize and start them in execute, or use 'threads';\n"
    )


def test_a_fork_is_refused_where_a_library_has_threads(server: RunningServer, folder: Path) -> None:
    start = """import ctypes
        c = ctypes.CDLL(None)
        c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(c.pause, ctypes.c_void_p), None)
    """
    model = Model(server, "native", folder, "fork", initialize=start, status="400")
    assert "lack: 'native_shared' (of a library)." in model.reason


def test_threads_that_see_to_forks_themselves_are_no_obstacle(server: RunningServer, folder: Path) -> None:
    product = "self.product = self.weights[:1000000].reshape(1000, 1000) @ self.weights[:1000000].reshape(1000, 1000)"
    model = Model(server, "multiplies", folder, "fork", initialize=product)
    again = "float((model.product @ model.product).sum())"
    assert {total for _, _, total in model.instances(3, again)} == {1e15 * 1.0}


def test_a_fork_is_refused_where_cuda_is_initialised(server: RunningServer, folder: Path) -> None:
    pretend = (
        "import sys, types; sys.modules['torch'] = torch = types.ModuleType('torch'); torch.cuda = types.ModuleType('cuda'); "
        "torch.cuda.is_initialized = lambda: True"
    )
    model = Model(server, "cuda", folder, "fork", initialize=pretend, status="400")
    assert "CUDA was initialised by initialize (torch.cuda), and does not work in processes" in model.reason


@pytest.mark.parametrize(
    ("sharing", "more", "reason"),
    [
        ("processes", "", "Incorrect value for INSTANCE_SHARING: expected 'fork' or 'threads', got 'processes'"),
        (
            "threads",
            "sequence_batching { }",
            "INSTANCE_SHARING 'threads' of model 'refused': each instance of a model with sequence_batching keeps the "
            "states of its own sequences, and threads would have one model object for all of them; use 'fork'",
        ),
        (
            "fork",
            "instance_group { kind: KIND_MODEL }",
            "INSTANCE_SHARING 'fork' of model 'refused': initialize runs once, for one kind of instance and one device, and "
            "the instance groups have KIND_CPU 0, KIND_MODEL 0",
        ),
    ],
    ids=["unknown", "sequences", "kinds"],
)
def test_what_cannot_be_shared_is_refused(
    server: RunningServer, folder: Path, sharing: str, more: str, reason: str
) -> None:
    model = Model(server, "refused", folder, sharing, more=more, status="400")
    assert reason in model.reason


def test_instances_of_another_kind_do_not_join_those_that_share(server: RunningServer, folder: Path) -> None:
    model = Model(server, "kinds", folder, "threads", count=2)
    model._config = COUNTED.replace("KIND_CPU", "KIND_MODEL")
    reason = model.load(2, status="400")
    assert (
        "initialize has run for instances of kind CPU on device 0, not MODEL on device 0; unload the model first"
        in reason
    )
    assert len(model.instances(2)) == 2


def test_the_configuration_shows_the_parameter(server: RunningServer, folder: Path) -> None:
    Model(server, "shown", folder, "fork", count=1)
    shown: Reply = server.get("/v2/models/shown/config")
    assert json.loads(shown.body)["parameters"]["INSTANCE_SHARING"] == {"string_value": "fork"}
