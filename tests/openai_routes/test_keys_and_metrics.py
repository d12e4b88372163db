"""OpenAI's routes with API keys, restricted APIs, front ends of their own and an access log; and what is counted of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.core.custom_metrics import Number
from pytriton_lite.openai.metrics import Counted, OpenAiMetrics
from tests.harness import Reply, RunningServer, write_model
from tests.openai_routes.openai_models import COMPLETION_CONFIG, SCRIBE, UNDECLARED_CONFIG
from tests.openai_routes.sse import END, events, text_of
from tests.prometheus_text import PageFamily, read_page

KEYS = {"Authorization": "Bearer second-key"}
BODY = {"model": "scribe", "prompt": "a b c"}

OWN_METRICS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily(
                name="vllm:generation_tokens_total", description="its own", kind=pb_utils.MetricFamily.COUNTER
            )
            self.metric = self.family.Metric(labels={"model_name": "exporting"})
            self.metric.increment(5)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("keys")
    write_model(folder / "models", "scribe", SCRIBE, COMPLETION_CONFIG)
    limit = 'parameters { key: "MAX_UNANSWERED_REQUESTS" value { string_value: "1" } }'
    write_model(folder / "models", "narrow", SCRIBE, COMPLETION_CONFIG + limit)
    write_model(folder / "models", "exporting", OWN_METRICS, UNDECLARED_CONFIG)
    (folder / "keys.txt").write_text("first-key\n\n  second-key\n")
    flags = (
        f"--openai-api-key-file={folder / 'keys.txt'}",
        "--openai-api-key=third-key",
        f"--access-log-file={folder / 'access.log'}",
        "--frontends=1",
        "--http-max-input-size=100000",
        "--overload-status=429",
    )
    with RunningServer(folder / "models", flags=flags) as running:
        yield running


def page(server: RunningServer) -> dict[str, PageFamily]:
    return read_page(server.get(server.metrics_url).body.decode())


# ------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("given", ["Bearer first-key", "bearer second-key", "Bearer  third-key "])
def test_a_request_with_one_of_the_keys_is_served(guarded: RunningServer, given: str) -> None:
    assert guarded.post("/v1/completions", BODY, {"Authorization": given}).status == 200


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Bearer fourth-key", "Bearer first-key second-key", "Basic first-key", "first-key"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/nothing"])
def test_a_request_without_a_key_learns_nothing(guarded: RunningServer, path: str, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    reply = guarded.request("GET" if path == "/v1/models" else "POST", path, b"{", headers)
    assert (reply.status, reply.json["error"]["code"]) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_keys_guard_these_routes_alone(guarded: RunningServer) -> None:
    assert guarded.get("/v2/models/scribe").status == 200


def test_a_file_without_keys_does_not_let_everybody_in(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "scribe", SCRIBE, COMPLETION_CONFIG)
    (tmp_path / "keys.txt").write_text("\n")
    with pytest.raises(Exception, match="has no keys"):
        RunningServer(tmp_path / "models", flags=(f"--openai-api-key-file={tmp_path / 'keys.txt'}",)).__enter__()


def test_a_file_of_keys_that_is_not_there_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "scribe", SCRIBE, COMPLETION_CONFIG)
    with pytest.raises(Exception, match="cannot be read: No such file") as caught:
        RunningServer(tmp_path / "models", flags=(f"--openai-api-key-file={tmp_path / 'none'}",)).__enter__()
    assert "loading: scribe" not in str(caught.value)


# ------------------------------------------------------------------------------------------- processes, limits, lines


def test_streams_and_whole_answers_come_through_front_ends_of_their_own(guarded: RunningServer) -> None:
    assert guarded.post("/v1/completions", BODY, KEYS).json["choices"][0]["text"] == "a b c"
    found = events(guarded.post("/v1/completions", {**BODY, "stream": True}, KEYS))
    assert (text_of(found), found[-1]) == ("a b c", END)


def test_a_body_over_the_limit_is_refused(guarded: RunningServer) -> None:
    reply = guarded.post("/v1/completions", {**BODY, "prompt": "x" * 100_001}, KEYS)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")


def test_more_than_a_model_takes_is_answered_429(guarded: RunningServer) -> None:
    reply: Reply = guarded.post("/v1/completions", {"model": "narrow", "prompt": "a b", "n": 3}, KEYS)
    assert (reply.status, reply.json["error"]["code"]) == (429, "rate_limit_exceeded")
    # What was begun is cancelled, and counts until the model has seen that.
    while (reply := guarded.post("/v1/completions", {"model": "narrow", "prompt": "a b"}, KEYS)).status == 429:
        pass
    assert reply.status == 200


def test_requests_have_a_line_of_the_access_log_each(
    guarded: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    headers = {**KEYS, "X-Request-Id": "logged-1"}
    assert guarded.post("/v1/completions", BODY, headers).status == 200
    assert (
        guarded.post("/v1/completions", {**BODY, "model": "nobody"}, {**headers, "X-Request-Id": "logged-2"}).status
        == 404
    )
    assert guarded.request("GET", "/v1/models/scribe", headers=KEYS).status == 200
    log = Path(next(flag for flag in guarded.arguments if flag.startswith("--access-log-file=")).partition("=")[2])
    guarded.post("/v1/completions", {**BODY, "prompt": "fence"}, {**KEYS, "X-Request-Id": "fence"})
    lines: list[str] = []
    # In whatever order: a line is written when the worker, if there was one, has done with the request.
    while not all(any(word in line for line in lines) for word in ("logged-1", "nobody", "/v1/models/scribe", "fence")):
        lines = log.read_text().splitlines()
    (served,) = [line for line in lines if "logged-1" in line]
    assert "scribe" in served and "200" in served and "completions" in served
    assert [line for line in lines if "nobody" in line and "404" in line]
    assert [line for line in lines if "/v1/models/scribe" in line]


def test_a_client_that_leaves_in_the_middle_of_its_body_has_a_line(tmp_path: Path) -> None:
    write_model(tmp_path, "scribe", SCRIBE, COMPLETION_CONFIG)
    with RunningServer(tmp_path, flags=("--access-log=true", "--log-format=json", "--frontends=0")) as server:
        with socket.create_connection(("127.0.0.1", server.http_port)) as client:
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"
            client.sendall(head)
            assert client.recv(100).startswith(b"HTTP/1.1 100")  # whoever answers the request has begun to read it
            client.sendall(b'{"model":')
        line = json.loads(server.wait_for_log(r'.*"method":"completions".*').group())
    assert (line["status"], line["error"]) == (499, "the client went away")


# ------------------------------------------------------------------------------------------- metrics


def value(families: dict[str, PageFamily], name: str, **labels: str) -> float:
    pairs = tuple(sorted({"model_name": "scribe", **labels}.items()))
    found = {(sample, tuple(sorted(given))): number for (sample, given), number in families[name].samples.items()}
    return found.get((name, pairs), 0.0) or found.get((f"{name}_count", pairs), 0.0)


def test_texts_count_by_the_names_of_vllm(guarded: RunningServer) -> None:
    guarded.post("/v1/completions", BODY, KEYS)
    before = page(guarded)
    guarded.post("/v1/completions", {**BODY, "n": 2, "max_tokens": 2}, KEYS)
    guarded.post("/v1/completions", {**BODY, "stream": True}, KEYS)
    guarded.post("/v1/completions", {**BODY, "prompt": "a break"}, KEYS)
    after = page(guarded)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("vllm:request_success_total", finished_reason="length") == 2
    assert grown("vllm:request_success_total", finished_reason="stop") == 1
    assert grown("vllm:request_success_total", finished_reason="abort") == 1
    assert grown("vllm:prompt_tokens_total") == 3 + 3 + 2
    assert grown("vllm:time_to_first_token_seconds") == 3
    assert grown("vllm:inter_token_latency_seconds") == 2 * 1 + 2
    assert grown("vllm:e2e_request_latency_seconds") == 2
    assert value(after, "vllm:num_requests_running") == 0


def test_a_model_that_is_unloaded_keeps_its_series_until_its_last_request_has_ended() -> None:
    metrics = OpenAiMetrics(lambda: 0)
    requests = [Counted(metrics, "m", 0) for _ in range(2)]
    for request in requests:
        request.begun()

    def running() -> list[float]:
        """What a page says while no model is there."""
        metrics.forget_others(())
        (family,) = [family for family in metrics.families() if family.name == "vllm:num_requests_running"]
        return [series.value for series in family.series.values() if isinstance(series, Number)]

    assert running() == [2]
    requests[0].ended(None, 1)
    assert running() == [1]
    requests[1].ended(None, 1)
    assert running() == []
    # As after a load: nothing is left of those that ended meanwhile.
    assert metrics.number("vllm:num_requests_running", model_name="m").value == 0


def test_a_family_that_a_model_exports_itself_is_its_own(guarded: RunningServer) -> None:
    """As the models of Triton's vLLM backend do."""
    assert list(page(guarded)["vllm:generation_tokens_total"].samples.values()) == [5.0]


# ------------------------------------------------------------------------------------------- restricted, off


def test_the_routes_are_guarded_with_the_apis_that_they_are(tmp_path: Path) -> None:
    write_model(tmp_path, "scribe", SCRIBE, COMPLETION_CONFIG)
    with RunningServer(tmp_path, flags=("--http-restricted-api=inference:X-Key=1",)) as server:
        assert server.post("/v1/completions", BODY).status == 403
        assert server.post("/v1/completions", BODY, {"X-Key": "1"}).status == 200
        assert server.get("/v1/models").status == 200


def test_routes_that_are_off_are_not_there(tmp_path: Path) -> None:
    write_model(tmp_path, "scribe", SCRIBE, COMPLETION_CONFIG)
    with RunningServer(tmp_path, flags=("--allow-openai=false",)) as server:
        assert server.post("/v1/completions", BODY).json == {"error": "Not Found"}
        assert json.loads(server.get("/v1/models").body) == {"error": "Not Found"}
