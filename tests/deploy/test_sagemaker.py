"""SageMaker's contract for containers, of one model and of many, as its documents and Triton 2.51 have it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.cloud_kit import ADD_SUB, CloudServer, binary_add_sub, binary_sum
from tests.harness import MODEL_REPOSITORY, PROJECT, Reply, write_model

MIME_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
FLAGS = ("--allow-sagemaker=true", "--sagemaker-port=0")

GREEDY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            raise pb_utils.TritonModelException("CUDA out of memory. Tried to allocate 2.00 GiB")
"""
TOO_LARGE = """
    class TritonPythonModel:
        def initialize(self, args):
            raise MemoryError("no room for the weights")

        def execute(self, requests):
            return []
"""
NO_TENSORS = 'backend: "python"\ninput { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }\n' + (
    'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }\n'
)
FOUR_TENSORS = NO_TENSORS.replace("INT32", "FP32").replace("[ 1 ]", "[ 4 ]")
ENSEMBLE = """
    platform: "ensemble"
    input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
    output { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }
    ensemble_scheduling {
        step {
            model_name: "add_sub" model_version: -1
            input_map { key: "INPUT0" value: "X" } input_map { key: "INPUT1" value: "X" }
            output_map { key: "%s" value: "%s" }
        }
        %s
    }
"""
LARGE_STEP = """step {
    model_name: "large" model_version: -1 input_map { key: "IN" value: "Y" } output_map { key: "OUT" value: "SUM" }
}"""
ONE = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}


def ask(server: CloudServer, method: str, path: str, body: object = None, **headers: str) -> Reply:
    return server.ask("Sagemaker", method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    repository = tmp_path_factory.mktemp("single")
    shutil.copytree(MODEL_REPOSITORY / "add_sub", repository / "add_sub")
    environ = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add_sub"}
    with CloudServer(repository, flags=FLAGS, environ=environ) as server:
        yield server


def test_a_container_answers_pings_and_invocations(single: CloudServer) -> None:
    assert ask(single, "GET", "/ping").status == 200
    reply = ask(single, "POST", "/invocations", ADD_SUB)
    assert reply.status == 200
    assert reply.json["model_name"] == "add_sub"
    assert reply.json["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]


def test_the_type_of_a_body_says_where_tensors_begin(single: CloudServer) -> None:
    body, size = binary_add_sub()
    for content_type in (f"{MIME_TYPE}{size}", f"{MIME_TYPE}{size}; charset=utf-8"):
        reply = ask(single, "POST", "/invocations", body, Content_Type=content_type)
        assert binary_sum(reply, MIME_TYPE) == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("content_type", "said"),
    [
        (f"{MIME_TYPE}99999", "99999"),
        (f"{MIME_TYPE}-1", "Unable to parse inference header size, got: -1"),
        (f"text/plain; {MIME_TYPE}3", "expect MIME type for binary data starts with"),
    ],
)
def test_a_wrong_type_is_refused(single: CloudServer, content_type: str, said: str) -> None:
    reply = ask(single, "POST", "/invocations", ADD_SUB, Content_Type=content_type)
    assert reply.status == 400
    assert said in reply.error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/ping", 405),
        ("GET", "/invocations", 405),
        ("GET", "/models/x", 404),
        ("DELETE", "/models/x", 404),
        ("POST", "/models/x/invoke", 404),
        ("PUT", "/models", 400),
        ("GET", "/v2", 400),
        ("GET", "/v2/health/ready", 400),
    ],
)
def test_other_routes_are_refused_as_by_triton(single: CloudServer, method: str, path: str, status: int) -> None:
    assert ask(single, method, path).status == status


def test_models_are_loaded_in_explicit_mode_alone(single: CloudServer) -> None:
    assert ask(single, "GET", "/models").json == {"models": []}
    reply = ask(single, "POST", "/models", {"model_name": "h", "url": "/tmp"})
    assert reply.status == 400
    assert reply.error == "repository registration is not allowed if model control mode is not EXPLICIT"


# Many models ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories as SageMaker unpacks them: ``<hash>/model``, with the model in it or in a directory of it."""
    root = tmp_path_factory.mktemp("models")
    for key in ("one", "two", "other"):
        shutil.copytree(MODEL_REPOSITORY / "add_sub", root / key / "model" / "whatever")
    shutil.copytree(MODEL_REPOSITORY / "add_sub", root / "bare" / "model")
    write_model(root / "greedy" / "model", "m", GREEDY, NO_TENSORS)
    write_model(root / "large" / "model", "m", TOO_LARGE, NO_TENSORS)
    (root / "empty" / "model").mkdir(parents=True)
    for name in ("a", "b"):
        write_model(root / "several" / "model", name, GREEDY, NO_TENSORS)
    for key, output in (("ensemble", "OUTPUT0"), ("differences", "OUTPUT1"), ("sums again", "OUTPUT0")):
        shutil.copytree(MODEL_REPOSITORY / "add_sub", root / key / "model" / "add_sub")
        write_model(root / key / "model", "whole", config=ENSEMBLE % (output, "SUM", ""))
    shutil.copytree(MODEL_REPOSITORY / "add_sub", root / "halved" / "model" / "add_sub")
    write_model(root / "halved" / "model", "large", TOO_LARGE, FOUR_TENSORS)
    write_model(root / "halved" / "model", "whole", config=ENSEMBLE % ("OUTPUT0", "Y", LARGE_STEP))
    return root


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    flags = (*FLAGS, "--model-control-mode=explicit")
    with CloudServer(tmp_path_factory.mktemp("empty"), flags=flags) as server:
        yield server


def load(server: CloudServer, archives: Path, key: str, target: str = "") -> Reply:
    headers = {"X_Amzn_SageMaker_Target_Model": target} if target else {}
    return ask(server, "POST", "/models", {"model_name": key, "url": str(archives / key / "model")}, **headers)


def test_a_model_is_loaded_asked_and_unloaded(many: CloudServer, archives: Path) -> None:
    assert load(many, archives, "one", "adder.tar.gz").status == 200
    url = str(archives / "one" / "model")
    assert ask(many, "GET", "/models").json == {"models": [{"modelName": "one", "modelUrl": url}]}
    assert ask(many, "GET", "/models/one").json == {"modelName": "one", "modelUrl": url}
    reply = ask(many, "POST", "/models/one/invoke", ADD_SUB)
    assert (reply.status, reply.json["model_name"]) == (200, "adder.tar.gz")
    body, size = binary_add_sub()
    binary = ask(many, "POST", "/models/one/invoke", body, Content_Type=f"{MIME_TYPE}{size}")
    assert binary_sum(binary, MIME_TYPE) == [2.0, 4.0, 6.0, 8.0]

    again = load(many, archives, "one", "adder.tar.gz")
    assert (again.status, again.error) == (409, f"model repository '{url}' has already been registered")

    assert ask(many, "DELETE", "/models/one").status == 200
    assert ask(many, "DELETE", "/models/one").status == 404
    assert ask(many, "POST", "/models/one/invoke", ADD_SUB).status == 404
    assert many.worker_pids("adder") == []
    assert load(many, archives, "one").status == 200
    assert ask(many, "POST", "/models/one/invoke", ADD_SUB).json["model_name"] == "one"
    assert ask(many, "DELETE", "/models/one").status == 200


def test_two_archives_of_one_name_are_two_models(many: CloudServer, archives: Path) -> None:
    # A directory in a bucket is part of the target's name, and of no model's.
    assert load(many, archives, "two", "same").status == 200
    assert load(many, archives, "other", "same").status == 200
    assert load(many, archives, "bare", "folder/of/models.tar.gz").status == 200
    names = [ask(many, "POST", f"/models/{key}/invoke", ADD_SUB).json["model_name"] for key in ("two", "other", "bare")]
    assert names == ["same", "other", "bare"]
    assert [ask(many, "DELETE", f"/models/{key}").status for key in ("two", "other", "bare")] == [200, 200, 200]


def test_an_ensemble_comes_with_what_it_is_made_of(many: CloudServer, archives: Path) -> None:
    assert load(many, archives, "ensemble").status == 200
    request = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]}]}
    reply = ask(many, "POST", "/models/ensemble/invoke", request)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    assert ask(many, "DELETE", "/models/ensemble").status == 200
    assert many.worker_pids("add_sub") == []


def test_of_an_ensemble_that_does_not_load_nothing_is_left(many: CloudServer, archives: Path) -> None:
    # What is made room for would be held by those of its models that did load.
    reply = load(many, archives, "halved")
    assert (reply.status, "no room for the weights" in reply.error) == (507, True)
    assert many.worker_pids("add_sub") == []


def test_ensembles_may_be_made_of_models_of_one_name(many: CloudServer, archives: Path) -> None:
    # The last of them has its target's name for a part, too.
    request = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]}]}
    targets = {"ensemble": "sums", "differences": "differences", "sums again": "add_sub"}
    for key, target in targets.items():
        assert load(many, archives, key, target).status == 200
    assert "model 'add_sub' of the archive 'differences' is served as 'differences.add_sub'" in many.log
    answers = [ask(many, "POST", f"/models/{key.replace(' ', '%20')}/invoke", request).json for key in targets]
    assert [answer["outputs"][0]["data"] for answer in answers] == [
        [2.0, 4.0, 6.0, 8.0],
        [0.0, 0.0, 0.0, 0.0],
        [2.0, 4.0, 6.0, 8.0],
    ]
    assert ask(many, "DELETE", "/models/ensemble").status == 200
    assert ask(many, "POST", "/models/differences/invoke", request).json == answers[1]
    assert ask(many, "DELETE", "/models/differences").status == 200
    assert ask(many, "DELETE", "/models/sums%20again").status == 200
    assert many.worker_pids() == []


def test_an_archive_leaves_a_model_of_the_repository_alone(tmp_path: Path, archives: Path) -> None:
    shutil.copytree(MODEL_REPOSITORY / "add_sub", tmp_path / "add_sub")
    flags = (*FLAGS, "--model-control-mode=explicit", "--load-model=add_sub")
    with CloudServer(tmp_path, flags=flags, environ={"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add_sub"}) as server:
        assert load(server, archives, "one", "add_sub").status == 200
        assert ask(server, "POST", "/models/one/invoke", ADD_SUB).json["model_name"] == "one"
        assert load(server, archives, "halved").status == 507
        assert ask(server, "POST", "/invocations", ADD_SUB).json["model_name"] == "add_sub"


def test_a_model_whose_memory_is_short_is_507(many: CloudServer, archives: Path) -> None:
    assert load(many, archives, "large").status == 507
    assert ask(many, "GET", "/ping").status == 200  # the others serve
    assert ask(many, "POST", "/models/large/invoke", ONE).status == 404
    assert load(many, archives, "greedy").status == 200
    reply = ask(many, "POST", "/models/greedy/invoke", ONE)
    assert (reply.status, "CUDA out of memory" in reply.error) == (507, True)
    assert ask(many, "DELETE", "/models/greedy").status == 200


@pytest.mark.parametrize(
    "failure",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",  # as the kernel does
        "mmap.mmap(-1, 1 << 46)",
        """raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes")""",
    ],
)
def test_memory_that_is_short_has_many_words(many: CloudServer, tmp_path: Path, failure: str) -> None:
    code = f"""
        import mmap, os, signal

        class TritonPythonModel:
            def initialize(self, args):
                {failure}

            def execute(self, requests):
                return []
    """
    write_model(tmp_path, "m", code, NO_TENSORS)
    reply = ask(many, "POST", "/models", {"model_name": "short", "url": str(tmp_path)})
    assert reply.status == 507, reply.error


def test_an_archive_may_have_directories_that_are_no_models(many: CloudServer, tmp_path: Path) -> None:
    shutil.copytree(MODEL_REPOSITORY / "add_sub", tmp_path / "whatever")
    (tmp_path / "__MACOSX" / "whatever").mkdir(parents=True)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "helpers.py").touch()
    reply = ask(many, "POST", "/models", {"model_name": "mixed", "url": str(tmp_path)})
    assert reply.status == 200, reply.error
    assert ask(many, "POST", "/models/mixed/invoke", ADD_SUB).status == 200
    assert ask(many, "DELETE", "/models/mixed").status == 200


def test_an_archive_is_about_the_outermost_ensemble(many: CloudServer, archives: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(archives / "ensemble" / "model", model)
    write_model(
        model,
        "all",
        config="""
            platform: "ensemble"
            input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
            output { name: "SUM" data_type: TYPE_FP32 dims: [ 4 ] }
            ensemble_scheduling { step {
                model_name: "whole" model_version: -1
                input_map { key: "X" value: "X" } output_map { key: "SUM" value: "SUM" }
            } }
        """,
    )
    reply = ask(many, "POST", "/models", {"model_name": "outer", "url": str(model)})
    assert reply.status == 200, reply.error
    request = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [4], "data": [1.0, 2.0, 3.0, 4.0]}]}
    answer = ask(many, "POST", "/models/outer/invoke", request).json
    assert (answer["model_name"], answer["outputs"][0]["data"]) == ("outer", [2.0, 4.0, 6.0, 8.0])
    assert ask(many, "DELETE", "/models/outer").status == 200


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("nowhere", "repository not found"),
        ("empty", "has 0 models"),
        ("several", "has 2 models (a, b), 0 of which are ensembles"),
    ],
)
def test_what_is_no_model_is_refused(many: CloudServer, archives: Path, key: str, said: str) -> None:
    reply = load(many, archives, key)
    assert reply.status == 400
    assert said in reply.error


@pytest.mark.parametrize("body", [b"x", b"[]", b'{"url": 3}', b'{"model_name": "a/b", "url": "/tmp"}', b"{" * 70_000])
def test_a_load_that_cannot_be_read_harms_nobody(many: CloudServer, body: bytes) -> None:
    # Triton 2.51 ends at the first of them.
    assert ask(many, "POST", "/models", body).status == 400
    assert ask(many, "GET", "/ping").status == 200


@pytest.mark.parametrize("key", [".", "..", "a\0b", "x" * 300], ids=repr)
def test_a_hash_that_can_be_no_directory_is_refused(many: CloudServer, archives: Path, key: str) -> None:
    reply = ask(many, "POST", "/models", {"model_name": key, "url": str(archives / "one" / "model")})
    assert reply.status == 400
    assert key in reply.error


def test_a_directory_that_can_be_none_is_refused(many: CloudServer) -> None:
    for url in ("/tmp/a\0b", "/" + "x" * 5000):
        reply = ask(many, "POST", "/models", {"model_name": "nowhere", "url": url})
        assert (reply.status, url in reply.error) == (400, True)


def test_a_configuration_that_is_no_utf_8_is_refused_but_for_its_comments(
    many: CloudServer, archives: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(archives / "bare" / "model", model)
    config = (model / "config.pbtxt").read_bytes()
    (model / "config.pbtxt").write_bytes(b"# M\xfcller's\n" + config)
    reply = ask(many, "POST", "/models", {"model_name": "latin", "url": str(model)})
    assert reply.status == 200, reply.error
    assert ask(many, "POST", "/models/latin/invoke", ADD_SUB).status == 200
    assert ask(many, "DELETE", "/models/latin").status == 200
    (model / "config.pbtxt").write_bytes(config.replace(b'"INPUT0"', b'"M\xfcller"'))
    reply = ask(many, "POST", "/models", {"model_name": "latin", "url": str(model)})
    assert (reply.status, reply.error) == (400, "failed to load 'latin', failed to poll from model repository")
    assert load(many, archives, "one").status == 200  # nothing is left of those that were refused
    assert ask(many, "DELETE", "/models/one").status == 200


def test_a_configuration_is_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    model = tmp_path / "archive" / "model"
    shutil.copytree(MODEL_REPOSITORY / "add_sub", model)
    config = (model / "config.pbtxt").read_text("utf-8")
    (model / "config.pbtxt").write_text(f"# Müller's\n{config}", "utf-8")
    (tmp_path / "empty").mkdir()
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    flags = (*FLAGS, "--model-control-mode=explicit")
    with CloudServer(tmp_path / "empty", flags=flags, environ=ascii_locale) as server:
        reply = ask(server, "POST", "/models", {"model_name": "h", "url": str(model)})
        assert reply.status == 200, reply.error
        assert ask(server, "POST", "/models/h/invoke", ADD_SUB).json["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]


def test_a_configuration_that_is_no_file_is_refused(many: CloudServer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.pbtxt")  # to read it would take for ever
    (tmp_path / "1").mkdir()
    reply = ask(many, "POST", "/models", {"model_name": "pipe", "url": str(tmp_path)})
    assert (reply.status, "it is no regular file" in reply.error) == (400, True), reply.error


def test_nothing_is_loaded_from_the_kernels_directories(many: CloudServer) -> None:
    reply = ask(many, "POST", "/models", {"model_name": "p", "url": "/proc/self"})
    assert reply.status == 400
    assert "no model is loaded from /dev, /proc, /sys" in reply.error


def test_a_model_without_a_name_is_asked_for(many: CloudServer) -> None:
    reply = ask(many, "POST", "/invocations", ADD_SUB)
    assert reply.status == 404
    assert "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in reply.error


def test_a_key_restricts_loads(tmp_path: Path, archives: Path) -> None:
    flags = (*FLAGS, "--model-control-mode=explicit", "--http-restricted-api=model-repository:secret=one")
    environ = {"SAGEMAKER_TRITON_PING_MODE": "live"}
    with CloudServer(tmp_path, flags=flags, environ=environ) as server:
        assert load(server, archives, "one").status == 403
        body = {"model_name": "one", "url": str(archives / "one" / "model")}
        assert ask(server, "POST", "/models", body, secret="one").status == 200
        assert ask(server, "POST", "/models/one/invoke", ADD_SUB).status == 200
        assert ask(server, "GET", "/ping").status == 200


@pytest.mark.parametrize(("variable", "value"), [("PING_MODE", "often"), ("INFERENCE_TYPE", "guess")])
def test_a_wrong_environment_ends_the_start(tmp_path: Path, variable: str, value: str) -> None:
    server = CloudServer(tmp_path, flags=FLAGS, environ={f"SAGEMAKER_TRITON_{variable}": value})
    with pytest.raises(Exception, match=f"got '{value}'"), server:
        pass


# What SageMaker starts -------------------------------------------------------------------------------------------------


class ServedBySageMaker(CloudServer):
    """A server that ``deploy/sagemaker/serve`` has started."""

    def start_process(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        environ = {
            **self.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTRITON_LITE_HTTP_ADDRESS": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": "0",
        }
        command = [str(PROJECT / "deploy" / "sagemaker" / "serve")]
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)

    def wait_until_it_serves(self, timeout_s: float) -> None:
        self.wait_for_log("To stop: Ctrl-C", timeout_s=timeout_s)  # users' servers tell it nowhere else


def test_the_script_serves_one_model(tmp_path: Path) -> None:
    shutil.copytree(MODEL_REPOSITORY / "add_sub", tmp_path / "add_sub")
    write_model(tmp_path, "other", TOO_LARGE, NO_TENSORS)  # which would not load
    environ = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "add_sub", "SAGEMAKER_MODEL_REPOSITORY": str(tmp_path)}
    with ServedBySageMaker(environ=environ) as server:
        assert re.findall(r"Started (\w+)", server.log) == ["Sagemaker"]  # a second container has the other ports
        assert ask(server, "GET", "/ping").status == 200
        assert ask(server, "POST", "/invocations", ADD_SUB).status == 200
    assert server.exit_code == 0


def test_the_script_serves_many_models(archives: Path) -> None:
    with ServedBySageMaker(environ={"SAGEMAKER_MULTI_MODEL": "true"}) as server:
        assert ask(server, "GET", "/ping").status == 200
        assert load(server, archives, "one").status == 200
        assert ask(server, "POST", "/models/one/invoke", ADD_SUB).status == 200
    assert server.exit_code == 0


def test_the_script_heeds_the_variables_of_tritons_image() -> None:
    environ = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SAGEMAKER_TRITON_ALLOW_GRPC": "true",
        "SAGEMAKER_TRITON_GRPC_PORT": "1",
        "PYTRITON_LITE_GRPC_PORT": "0",  # ranks higher
        "SAGEMAKER_TRITON_ALLOW_METRICS": "true",
        "SAGEMAKER_TRITON_METRICS_PORT": "0",
        "SAGEMAKER_TRITON_LOG_VERBOSE": "true",
        "SAGEMAKER_TRITON_OVERRIDE_PING_MODE": "live",
        "SAGEMAKER_TRITON_PING_MODE": "often",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--id=one --allow-http=true --http-port=0",
    }
    with ServedBySageMaker(environ=environ) as server:
        found = re.search(r"Started HTTPService at (\S+:\d+)", server.log)
        assert found is not None
        assert server.request("GET", f"http://{found[1]}/v2").json["name"] == "one"
        assert server.request("GET", f"http://{found[1]}/v2/logging").json["log_verbose_level"] == 1
        assert ask(server, "GET", "/ping").status == 200
        started = set(re.findall(r"Started (\w+)", server.log))
        assert started == {"HTTPService", "Sagemaker", "GRPCInferenceService", "Metrics"}
    assert server.exit_code == 0
