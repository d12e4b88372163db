"""Models that a real server gets from elsewhere: an S3 by moto, and a web server with TLS."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Certificates
from tests.contract.wire_models import wait_until
from tests.harness import PROJECT, RunningServer, tensor
from tests.remote_servers import ACCESS, S3, running_s3, running_web_server

TENSORS = """
input [{ name: "IN" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }]
"""
MIB = 1 << 20
CONFIG = f'backend: "python"\n{TENSORS}'
ENSEMBLE = f"""
platform: "ensemble"
{TENSORS}
ensemble_scheduling {{
  step [{{
    model_name: "m" model_version: -1
    input_map {{ key: "IN" value: "IN" }}
    output_map {{ key: "OUT" value: "OUT" }}
  }}]
}}
"""
CODE = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.file = os.path.join(args["model_repository"], args["model_version"], "weights.txt")

    def execute(self, requests):
        with open(self.file) as file:
            out = np.array([file.read().encode()], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]
"""
"""A model that opens its file as late as it can."""


def put_model(s3: S3, place: str, weights: str, *, version: int = 1) -> None:
    s3.put(f"{place}/config.pbtxt", CONFIG)
    s3.put(f"{place}/{version}/weights.txt", weights)
    s3.put(f"{place}/{version}/model.py", CODE)


def answer(server: RunningServer, model: str) -> Any:
    """What the model says, or the status of a failure."""
    reply = server.infer(model, [tensor("IN", "BYTES", [1], ["x"])])
    return reply.json["outputs"][0]["data"][0] if reply.status == 200 else reply.status


def index(server: RunningServer) -> list[tuple[str, str]]:
    return [(row["name"], row.get("state", "")) for row in server.post("/v2/repository/index").json]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


def serving(url: str, cache: Path, *flags: str, environ: dict[str, str] | None = None) -> RunningServer:
    return RunningServer(
        flags=(f"--model-repository={url}", f"--remote-cache-directory={cache}", *flags),
        environ={**ACCESS, **(environ or {})},
    )


def assert_keeps_secrets(server: RunningServer, *secrets: str) -> None:
    for secret in (ACCESS["AWS_SECRET_ACCESS_KEY"], *secrets):
        assert secret not in server.log
        assert secret not in server.post("/v2/repository/index").body.decode()


def test_a_polled_bucket_is_followed_and_served_on_when_it_cannot_be_read(s3: S3, tmp_path: Path) -> None:
    put_model(s3, "polled/m", "one")
    put_model(s3, "polled/going", "going")
    s3.put("polled/pipeline/config.pbtxt", ENSEMBLE)
    s3.put("polled/pipeline/1/", "")
    with serving(s3.url("polled"), tmp_path, "--model-control-mode=poll", "--repository-poll-secs=1") as server:
        assert (answer(server, "m"), answer(server, "going"), answer(server, "pipeline")) == ("one", "going", "one")
        server.wait_for_log(rf"copied 'm' of {s3.url('polled')}: 3 of 3 files, \d+ bytes, in \d+\.\d s")
        s3.put("polled/m/1/weights.txt", "two")
        put_model(s3, "polled/coming", "coming")
        s3.delete_below("polled/going/")
        wait_until(lambda: answer(server, "m") == "two")
        wait_until(lambda: answer(server, "coming") == "coming" and answer(server, "going") == 404)
        wait_until(lambda: index(server) == [("coming", "READY"), ("m", "READY"), ("pipeline", "READY")])
        wait_until(lambda: answer(server, "pipeline") == "two")

        s3.delete_below("polled/")
        server.wait_for_log(f"failed to poll model repository '{s3.url('polled')}': there is nothing of that name")
        assert (answer(server, "m"), answer(server, "coming")) == ("two", "coming")
        assert server.post("/v2/repository/index").status == 500
        assert_keeps_secrets(server)
    assert server.exit_code == 0
    assert list(tmp_path.glob("*/views/*")) == []


def test_in_mode_explicit_models_are_copied_when_they_are_loaded_and_keep_their_files(s3: S3, tmp_path: Path) -> None:
    for name in ("m", "other", "untouched"):
        put_model(s3, f"explicit/{name}", f"{name} one")
    s3.put("explicit/pipeline/config.pbtxt", ENSEMBLE)
    s3.put("explicit/pipeline/1/", "")
    explicit = ("--model-control-mode=explicit", "--load-model=other")
    with serving(s3.url("explicit"), tmp_path, *explicit) as server:
        assert index(server) == [("m", ""), ("other", "READY"), ("pipeline", ""), ("untouched", "")]
        (tmp_path / "precious").mkdir()
        made_up = {
            "platform": "ensemble",
            "ensemble_scheduling": {"step": [{"model_name": str(tmp_path / "precious")}]},
        }
        parameters = {"parameters": {"config": json.dumps(made_up)}}
        assert server.post("/v2/repository/models/pipeline/load", parameters).status == 500
        assert (tmp_path / "precious").is_dir(), "a name that a client sent leads nowhere"
        assert server.post("/v2/repository/models/pipeline/load").status == 200
        assert (answer(server, "pipeline"), answer(server, "other")) == ("m one", "other one")
        assert not any("/untouched/" in path for method, path in s3.requests if method == "GET")

        s3.put("explicit/m/1/weights.txt", "m two")
        assert answer(server, "m") == "m one"
        assert server.post("/v2/repository/models/m/load").status == 200
        assert (answer(server, "m"), answer(server, "pipeline")) == ("m two", "m two")
        assert server.post("/v2/repository/models/m/load").status == 200
        assert server.log.count("loading: m:1") == 2, "nothing had changed"

        s3.put("explicit/m/1/model.py", "raise RuntimeError('broken on purpose')")
        assert server.post("/v2/repository/models/m/load").status == 400
        assert answer(server, "m") == "m two"
        s3.delete_below("explicit/m/")
        assert server.post("/v2/repository/models/m/load").status == 500
        assert ("m", "READY") not in index(server)
        assert answer(server, "m") == "m two", "its files are there as long as it is served"
        wait_until(lambda: len(server.worker_pids("m_")) == 1)  # those of the loads before have ended
        [worker] = server.worker_pids("m_")
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: answer(server, "m") == "m two"), "and for a new worker of it"
        assert server.post("/v2/repository/models/m/unload").status == 200
        server.wait_for_log("successfully unloaded 'm' version 1[\\s\\S]*successfully unloaded 'm' version 1")
        wait_until(lambda: not list(tmp_path.glob("*/views/*/pinned/*/m")))


def test_a_model_of_an_ensemble_that_cannot_be_copied_fails_alone(s3: S3, tmp_path: Path) -> None:
    """At the start the others are served; later the ensemble goes on with what it has."""
    for name in ("good", "m"):
        put_model(s3, f"part/{name}", name)
    s3.put("part/pipeline/config.pbtxt", ENSEMBLE)
    s3.put("part/pipeline/1/", "")
    evil = "part/m/1//evil"
    s3.put(evil, "")
    flags = ("--model-control-mode=explicit", "--load-model=good", "--load-model=pipeline", "--exit-on-error=false")
    problem = (
        f"Poll failed for model directory 'm': cannot copy model 'm' of {s3.url('part')}: "
        "the name 'm/1//evil' leads out of the model's directory"
    )
    with serving(s3.url("part"), tmp_path, *flags) as server:
        assert (answer(server, "good"), answer(server, "pipeline")) == ("good", 404)
        assert server.log.count(problem) == 1
        assert "ensemble pipeline contains models that are not available or ambiguous: m" in server.log
        s3.delete(evil)
        assert server.post("/v2/repository/models/pipeline/load").status == 200
        s3.put(evil, "")
        assert server.post("/v2/repository/models/pipeline/load").status == 200
        assert answer(server, "pipeline") == "m"
        assert server.log.count(problem) == 2


def test_requests_are_served_while_a_repository_says_nothing(s3: S3, tmp_path: Path) -> None:
    """Those with a large packed body need a thread, and so does everybody who waits for the repository."""
    put_model(s3, "silent/m", "one")
    body = gzip.compress(json.dumps({"inputs": [tensor("IN", "BYTES", [1], [os.urandom(MIB).hex()])]}).encode())
    with serving(s3.url("silent"), tmp_path, "--model-control-mode=explicit", "--load-model=m") as server:
        s3.answers.clear()
        waiting = [http.client.HTTPConnection(server.http_url, timeout=60) for _ in range(40)]
        try:
            for connection in waiting:
                connection.request("POST", "/v2/repository/index")
            assert answer(server, "m") == "one", "and by now the server has read what came before"
            reply = server.post("/v2/models/m/infer", body, {"Content-Encoding": "gzip"})
            assert reply.json["outputs"][0]["data"] == ["one"]
            s3.answers.set()
            assert {connection.getresponse().status for connection in waiting} == {200}
        finally:
            s3.answers.set()
            for connection in waiting:
                connection.close()


def test_with_namespaces_a_model_has_the_url_of_its_repository(s3: S3, tmp_path: Path) -> None:
    for place in ("here", "there"):
        put_model(s3, f"{place}/m", place)
    put_model(s3, "there/only", "only")
    s3.put("there/broken/config.pbtxt", "name: ?")
    here, there = s3.url("here"), s3.url("there")
    flags = (f"--model-repository={there}", "--model-namespacing=true", "--exit-on-error=false")
    with serving(here, tmp_path, *flags) as server:
        for place in (here, there):
            assert f"successfully loaded '{place}::m'" in server.log
        assert answer(server, "only") == "only"
        page = server.get(server.metrics_url).body.decode()
        assert f'nv_inference_request_success{{model="only",namespace="{there}",version="1"}} 1' in page
        assert f'namespace="{tmp_path}' not in page and f"'{tmp_path}" not in server.log.replace("(in ", "")


def test_a_bucket_that_is_not_there_ends_the_start_or_leaves_a_server_that_is_not_live(s3: S3, tmp_path: Path) -> None:
    url = f"s3://{s3.endpoint}/no-bucket/models"
    reason = f"failed to poll model repository '{url}': The specified bucket does not exist"
    command = [sys.executable, "-m", "pytriton_lite", "serve", url, f"--remote-cache-directory={tmp_path}"]
    done = subprocess.run(command, cwd=PROJECT, env={**os.environ, **ACCESS}, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"error: creating server: Internal - {reason}" in done.stderr
    with serving(url, tmp_path, "--exit-on-error=false") as server:
        assert reason in server.log
        assert server.get("/v2/health/live").status == 400
        assert_keeps_secrets(server)


def test_credentials_come_from_tritons_file(s3: S3, tmp_path: Path) -> None:
    put_model(s3, "filed/m", "one")
    credentials = tmp_path / "credentials.json"
    credentials.write_text('{"s3": {"": {"key_id": "AKIAFILED", "secret_key": "secret-of-the-file"}}}')
    variables = dict.fromkeys(ACCESS, "")
    environ = {**variables, "TRITON_CLOUD_CREDENTIAL_PATH": str(credentials)}
    with serving(s3.url("filed"), tmp_path / "cache", "--log-verbose=1", environ=environ) as server:
        assert answer(server, "m") == "one"
        assert_keeps_secrets(server, "secret-of-the-file")


def test_a_web_server_with_tls_beside_a_directory(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    for name, folder in (("near", tmp_path / "near"), ("far", tmp_path / "www/models")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG)
        (folder / name / "1/model.py").write_text(CODE)
        (folder / name / "1/weights.txt").write_text(name)
    with running_web_server(tmp_path / "www", context) as web:
        url = web.url.replace("https://", "https://user:the-password@")
        flags = (f"--model-repository={tmp_path / 'near'}",)
        trusting = {"SSL_CERT_FILE": str(certificates.root)}
        with serving(f"{url}/models", tmp_path / "cache", *flags, environ=trusting) as server:
            assert (answer(server, "near"), answer(server, "far")) == ("near", "far")
            assert f"copied 'far' of {web.url}/models: 3 of 3 files" in server.log
            assert_keeps_secrets(server, "the-password")
            assert not any(path for _, path, authorization in web.requests if not authorization)
