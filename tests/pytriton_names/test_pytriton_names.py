"""PyTriton's names over this server: programs as PyTriton's examples write them, asked by clients over sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from pytriton_lite.pytriton import (
    DynamicBatcher,
    ModelConfig,
    PyTritonBadParameterError,
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
    RemoteTriton,
    Request,
    Tensor,
    Triton,
    TritonConfig,
    TritonSecurityConfig,
)
from pytriton_lite.pytriton.decorators import (
    batch,
    convert_output,
    get_inference_request_batch_size,
    get_model_config,
    triton_context,
)
from pytriton_lite.pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton_lite.pytriton.proxy.types import Response
from tests.harness import PROJECT, free_ports, is_running, until

ANY_PORTS = {
    "http_address": "127.0.0.1",
    "grpc_address": "127.0.0.1",
    "http_port": 0,
    "grpc_port": 0,
    "metrics_port": 0,
}


@batch
def add_sub(**inputs: np.ndarray) -> Any:
    a, b = inputs.values()
    return {"add": a + b, "sub": a - b}


def scaled(requests: list[Request]) -> Any:
    answers = []
    for request in requests:
        with request.traced_span("scale"):
            (a,) = request.values()
        factor = float(request.parameters["header_factor"]) * float(request.parameters["parameter_factor"])
        answers.append(Response({"OUTPUT_1": (a * factor).astype(np.float32)}))
    return answers


class Counting:
    """State that two models share, as PyTriton's example of online learning has it."""

    def __init__(self) -> None:
        self.seen = 0

    @batch
    def see(self, x: Any) -> Any:
        self.seen += len(x)
        return [np.full((len(x), 1), self.seen)]

    def tell(self, requests: list[Request]) -> Any:
        assert get_model_config().model_name == "Tell"
        return [{"OUTPUT_1": np.full((get_inference_request_batch_size(one), 1), self.seen)} for one in requests]


@batch
@triton_context
def count_up(limit: Any, triton_context: Any) -> Any:
    assert triton_context.model_config.max_batch_size == 1
    for number in range(int(limit[0, 0])):
        yield convert_output([np.array([[number]])], model_config=triton_context.model_config)


@pytest.fixture(scope="module")
def triton() -> Iterator[Triton]:
    config = TritonConfig(**ANY_PORTS, http_header_forward_pattern="header.*", cache_config=["local,size=1000000"])
    numbers = Tensor(dtype=np.int64, shape=(1,))
    counting = Counting()
    with Triton(config=config) as running:
        running.bind(
            model_name="AddSub",
            infer_func=add_sub,
            inputs=[Tensor(dtype=np.float32, shape=(-1,)), Tensor(dtype=np.float32, shape=(-1,))],
            outputs=[
                Tensor(name="add", dtype=np.float32, shape=(-1,)),
                Tensor(name="sub", dtype=np.float32, shape=(-1,)),
            ],
            config=ModelConfig(
                max_batch_size=128,
                batcher=DynamicBatcher(max_queue_delay_microseconds=100, preferred_batch_size=[64]),
                response_cache=True,
                model_warmup=[
                    ModelWarmup(
                        "first",
                        2,
                        {name: WarmupInput(np.float32, (3,), zero_data=True) for name in ("INPUT_1", "INPUT_2")},
                        1,
                    )
                ],
            ),
            strict=True,
        )
        running.bind("Scaled", scaled, [Tensor((-1,), np.float32)], [Tensor((-1,), np.float32)])
        running.bind("See", counting.see, [Tensor((1,), np.float32, "x")], [numbers])
        running.bind("Tell", counting.tell, [Tensor((1,), np.float32, "x")], [numbers], model_version=3)
        sums = [Tensor((1,), np.float32, "add"), Tensor((1,), np.float32, "sub")]  # not what comes, and not strict
        running.bind("Forked", add_sub, [numbers, numbers], sums, in_process=False)
        running.bind(
            "Count",
            count_up,
            [Tensor((1,), np.int64, "limit")],
            [numbers],
            config=ModelConfig(max_batch_size=1, decoupled=True),
        )
        yield running


def ask(triton: Triton, model: str, **arrays: Any) -> dict[str, Any]:
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.server.http_port}")
    inputs = []
    for name, rows in arrays.items():
        inputs.append(
            tritonclient.http.InferInput(name, list(rows.shape), "INT64" if rows.dtype == np.int64 else "FP32")
        )
        inputs[-1].set_data_from_numpy(rows)
    found = client.infer(model, inputs, headers={"header_factor": "2"}, parameters={"parameter_factor": 3})
    client.close()
    return {output["name"]: found.as_numpy(output["name"]).tolist() for output in found.get_response()["outputs"]}


def test_the_first_example(triton: Triton) -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    assert ask(triton, "AddSub", INPUT_1=rows, INPUT_2=rows) == {"add": (2 * rows).tolist(), "sub": (0 * rows).tolist()}
    assert triton.is_alive() and triton.is_connected()
    config = triton.server.config("AddSub")
    assert config["max_batch_size"] == 128 and config["response_cache"] == {"enable": True}
    assert config["dynamic_batching"]["preferred_batch_size"] == [64]


def test_parameters_and_headers(triton: Triton) -> None:
    assert ask(triton, "Scaled", INPUT_1=np.ones((1, 2), np.float32)) == {"OUTPUT_1": [[6, 6]]}


def test_functions_run_in_the_program_and_share_its_state(triton: Triton) -> None:
    one = np.ones((2, 1), np.float32)
    assert ask(triton, "See", x=one) == {"OUTPUT_1": [[2], [2]]}
    assert ask(triton, "Tell", x=one) == {"OUTPUT_1": [[2], [2]]}
    assert triton.server.metadata("Tell").versions == (3,)


def test_workers_may_be_forked(triton: Triton) -> None:
    rows = np.array([[5]])
    assert ask(triton, "Forked", INPUT_1=rows, INPUT_2=rows) == {"add": [[10]], "sub": [[0]]}


def test_generators_stream(triton: Triton) -> None:
    assert [answer["OUTPUT_1"].tolist() for answer in triton.server.stream("Count", {"limit": [[3]]})] == [
        [[number]] for number in range(3)
    ]


def test_what_is_restricted_wants_the_token(triton: Triton) -> None:
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.server.http_port}")
    with pytest.raises(Exception, match="triton-access-token"):
        client.get_inference_statistics()
    token = triton.get_access_token()
    assert client.get_inference_statistics(headers={"triton-access-token": token})["model_stats"]
    client.close()
    grpc = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{triton.server.grpc_port}")
    with pytest.raises(Exception, match="triton-access-token"):
        grpc.get_log_settings()
    grpc.close()


def test_what_the_configuration_restricts_itself_opens_nothing_else() -> None:
    config = TritonConfig(**ANY_PORTS, http_restricted_api="inference,logging:own-key=secret")
    with Triton(config=config, security_config=TritonSecurityConfig(access_token="known")) as triton:
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.server.http_port}")
        with pytest.raises(Exception, match="triton-access-token"):
            client.get_inference_statistics()
        assert client.get_inference_statistics(headers={"triton-access-token": "known"}) == {"model_stats": []}
        with pytest.raises(Exception, match="own-key"):
            client.get_log_settings(headers={"triton-access-token": "known"})
        assert client.get_log_settings(headers={"own-key": "secret"})
        client.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_name": ""}, "Model name cannot be empty"),
        ({"model_name": "a b"}, "can only contain alphanumeric characters"),
        ({"model_name": "AddSub"}, "there is a model 'AddSub' already"),
        ({"infer_func": 5}, "a model is a function, a class or a callable object, not int"),
        ({"inputs": ["x"]}, r"inputs of model 'New' are Tensor\(…\)s"),
        ({"config": ModelConfig(max_batch_size=-1)}, "max_batch_size of model 'New'"),
    ],
)
def test_what_cannot_be_bound_is_refused(triton: Triton, changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"model_name": "New", "infer_func": add_sub, "inputs": [], "outputs": [Tensor((1,), int)]}
    with pytest.raises(PyTritonValidationError, match=text):
        triton.bind(**{**given, **changes})


def test_a_model_that_does_not_load_is_no_model(triton: Triton) -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def __call__(self, requests: Any) -> Any: ...

    with pytest.raises(PyTritonRuntimeError, match="no weights here"):
        triton.bind("Broken", Broken, [], [Tensor((1,), int)])


def test_who_was_interrupted_in_the_start_may_try_again() -> None:
    main, is_over = threading.get_ident(), threading.Event()

    class Interrupted:
        def __init__(self) -> None:
            signal.pthread_kill(main, signal.SIGINT)
            is_over.wait()

        def __call__(self, requests: Any) -> Any: ...

    triton = Triton(config=TritonConfig(**ANY_PORTS))
    triton.bind("Interrupted", Interrupted, [], [Tensor((1,), int)])
    with pytest.raises(KeyboardInterrupt):
        triton.run()
    is_over.set()
    assert not triton.is_connected()
    triton.bind("Again", add_sub, [Tensor((1,), np.float32)] * 2, [Tensor((1,), np.float32, "add")])
    with triton:
        assert triton.server.models() == ["Again"]


@pytest.mark.parametrize("last", ["start", "models"])
def test_who_was_stopped_at_the_end_of_the_start_is_not_connected(last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `stop` of another thread, between the moment in which the server serves and the one in which `connect` returns."""
    triton = Triton(config=TritonConfig(**ANY_PORTS))
    server = triton.server
    stopping = threading.Thread(target=triton.stop)
    step = getattr(server, last)

    def be_stopped_behind_it() -> Any:
        done = step()
        stopping.start()
        server.wait()
        return done

    monkeypatch.setattr(server, last, be_stopped_behind_it)
    refused = pytest.raises(PyTritonRuntimeError, match="has been stopped")
    with refused if last == "start" else contextlib.nullcontext():
        triton.connect()
    stopping.join()
    assert not triton.is_connected()
    with triton:  # another server, which starts
        assert triton.is_alive() and triton.is_connected()


def test_a_file_cannot_warm_a_function_up(triton: Triton) -> None:
    for given in (WarmupInput(np.float32, (1,), input_data_file="x.npy"), WarmupInput(np.float32, (1,))):
        config = ModelConfig(model_warmup=[ModelWarmup("w", 1, {"x": given}, 1)])
        with pytest.raises(PyTritonBadParameterError, match="say zero_data or random_data"):
            triton.bind("Warm", add_sub, [Tensor((1,), np.float32, "x")], [Tensor((1,), int)], config=config)


def give_up(requests: Any) -> Any:
    raise PyTritonUnrecoverableError("the device is gone")


async def give_up_later(requests: Any) -> Any:
    give_up(requests)


@pytest.mark.parametrize("give_up", [give_up, give_up_later])
def test_what_was_bound_before_is_there_at_the_start_and_an_unrecoverable_error_stops_the_server(
    give_up: Callable[[Any], Any],
) -> None:
    triton = Triton(config=TritonConfig(**ANY_PORTS), security_config=TritonSecurityConfig(restricted_endpoints=[]))
    triton.bind("Gone", give_up, [Tensor((1,), np.float32, "x")], [Tensor((1,), np.float32)])
    assert not triton.is_connected() and not triton.is_alive()
    triton.run()
    assert triton.is_alive()
    with pytest.raises(Exception, match="the device is gone"):
        triton.server.infer("Gone", {"x": [[1]]})
    until(lambda: not triton.server.is_running)
    assert triton.stop() is False
    triton.bind("Again", add_sub, [Tensor((1,), np.float32)] * 2, [Tensor((1,), np.float32, "add")] * 1)
    triton.run()  # anew, as a notebook does
    assert triton.server.models() == ["Again"]
    assert triton.stop() is True
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "Gone in process"])


def test_variables_of_the_environment_are_options(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in (("HTTP_PORT", "8123"), ("CACHE_CONFIG_0", "local,size=5"), ("NOT_THERE", "1")):
        monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_{name}", value)
    config = TritonConfig.from_env()
    assert (config.http_port, config.cache_config) == ("8123", ["local,size=5"])
    assert "Ignoring not_there=1" in caplog.text
    assert Triton(config=TritonConfig(http_port=0, buffer_manager_thread_count=1)).stop() is False
    with pytest.raises(PyTritonValidationError, match="out of bound"):
        Triton(config=TritonConfig(http_port=70_000))


def test_refusals_before_anything_starts() -> None:
    with pytest.raises(PyTritonValidationError, match="busy_pol"):
        Triton(server_options={"busy_pol": 1})
    with pytest.raises(PyTritonValidationError, match="The `http` or `grpc` endpoint has to be allowed"):
        TritonConfig(allow_http=False, allow_grpc=False)
    with pytest.raises(PyTritonValidationError, match="Invalid endpoint names: everything"):
        TritonSecurityConfig(restricted_endpoints=["everything"])
    with pytest.raises(PyTritonInvalidOperationError, match="cannot be served by the server at localhost"):
        RemoteTriton("localhost")


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_program_stays_as_it_is_below_one_line() -> None:
    http, grpc, metrics = free_ports(3)
    program = textwrap.dedent(f"""
        import pytriton_lite.pytriton.stand_in
        import numpy as np
        from pytriton.decorators import batch
        from pytriton.exceptions import PyTritonError
        from pytriton.model_config import ModelConfig, Tensor
        from pytriton.model_config.common import QueuePolicy
        from pytriton.proxy.types import Request
        from pytriton.triton import Triton, TritonConfig

        @batch
        def double(x):
            return [2 * x]

        with Triton(config=TritonConfig(http_port={http}, grpc_port={grpc}, metrics_port={metrics})) as triton:
            triton.bind(model_name="Double", infer_func=double, inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
                        outputs=[Tensor(name="y", dtype=np.float32, shape=(1,))], config=ModelConfig(max_batch_size=8))
            print("serving", flush=True)
            triton.serve()
        print("stopped", flush=True)
    """)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{http}")
        tensor = tritonclient.http.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        assert client.infer("Double", [tensor]).as_numpy("y").tolist() == [[2]]
        client.close()
        until(lambda: catches(process.pid, signal.SIGTERM))  # `serve` does, which has perhaps not begun
        for number in (signal.SIGTERM, signal.SIGINT):  # one wish, as it often comes
            process.send_signal(number)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait() == 0
    assert not is_running(process.pid) and os.getpid() != process.pid


def test_a_stand_in_does_not_take_the_place_of_what_is_there() -> None:
    code = "import sys, types\nsys.modules['pytriton'] = types.ModuleType('pytriton')\nimport pytriton_lite.pytriton.stand_in"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 1 and "pytriton has been imported already" in done.stderr
