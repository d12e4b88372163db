"""What the console asks for (docs/console.md): its pages, its documents, who may have them, and who pays for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.console_models import ADD_SUB_CONFIG, FLAGS, write_console_models
from tests.harness import PROJECT, Reply, RunningServer, tensor

STATIC = PROJECT / "pytriton_lite" / "console" / "static"
ZERO = [tensor("A", "INT64", [1, 1], [1]), tensor("B", "INT64", [1, 1], [0])]
SIX = [tensor("A", "INT64", [2, 1], [6, 12]), tensor("B", "INT64", [2, 1], [2, 3])]
ONES = [tensor(name, "FP32", [4], [1, 2, 3, 4]) for name in ("INPUT0", "INPUT1")]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = tmp_path_factory.mktemp("console") / "models"
    write_console_models(found)
    return found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    with RunningServer(repository, flags=FLAGS) as running:
        yield running


def header(reply: Reply, name: str) -> str:
    return {key.lower(): value for key, value in reply.headers.items()}.get(name, "")


# ------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_takes_nothing_from_anywhere_else(server: RunningServer, path: str) -> None:
    reply = server.get(path)
    assert reply.status == 200
    assert header(reply, "content-type") == "text/html; charset=utf-8"
    policy = header(reply, "content-security-policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    assert header(reply, "x-content-type-options") == "nosniff"
    assert not re.findall(rb'(?:src|href)="(?:https?:)?//', reply.body)


def test_every_file_that_a_page_or_a_module_names_is_served(server: RunningServer) -> None:
    named = {
        name
        for path in STATIC.iterdir()
        for name in re.findall(r'(?:from "\./|console/files/)([\w.]+)"', path.read_text())
    }
    assert {"main.js", "docs.js", "style.css", "icon.svg", "api.js"} <= named
    for name in named:
        reply = server.get(f"/console/files/{name}")
        assert (reply.status, reply.body) == (200, (STATIC / name).read_bytes())


def test_no_module_uses_what_could_turn_text_into_html_or_code() -> None:
    for path in STATIC.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", path.read_text()
        )


def test_a_file_that_has_not_changed_is_not_sent_again(server: RunningServer) -> None:
    etag = header(server.get("/console/files/style.css"), "etag")
    reply = server.request("GET", "/console/files/style.css", headers={"If-None-Match": etag})
    assert (reply.status, reply.body) == (304, b"")
    assert server.request("GET", "/console/files/style.css", headers={"If-None-Match": '"other"'}).status == 200


@pytest.mark.parametrize(
    "path", ["/console/files/nope.js", "/console/files/../app.py", "/console/files/", "/console/", "/console/nope"]
)
def test_anything_else_is_not_found(server: RunningServer, path: str) -> None:
    reply = server.get(path)
    assert (reply.status, reply.error) == (404, "Not Found")


@pytest.mark.parametrize("path", ["/", "/console/statistics"])
def test_pages_and_documents_are_read_and_nothing_else(server: RunningServer, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        reply = server.request(method, path, b"" if method == "POST" else None)
        assert (reply.status, reply.error, header(reply, "allow")) == (405, "Method Not Allowed", "GET, HEAD")
    head = server.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert int(header(head, "content-length")) > 0


# ------------------------------------------------------------------------------------------- documents


def test_about_says_what_a_page_needs_to_know(server: RunningServer) -> None:
    about = server.get("/console/about").json
    assert (about["name"], about["mode"], about["grpc_tls"]) == ("triton", "explicit", False)
    assert about["grpc_port"] == int(server.grpc_url.rpartition(":")[2])


def version_of(server: RunningServer, model: str) -> dict[str, Any]:
    (found,) = [one for one in server.get("/console/statistics").json["versions"] if one["model"] == model]
    return found


def test_statistics_count_requests_batches_and_instances(server: RunningServer) -> None:
    before = version_of(server, "divide")
    assert server.infer("divide", SIX).status == 200
    after = version_of(server, "divide")
    assert after["succeeded"] - before["succeeded"] == 1
    assert after["inferences"] - before["inferences"] == 2
    assert dict(map(tuple, after["batches"]))[2] == dict(map(tuple, before["batches"])).get(2, 0) + 1
    assert after["total_ns"] - before["total_ns"] > after["compute_ns"] - before["compute_ns"] > 0
    instances = {one["name"]: one for one in after["instances"]}
    assert sorted(instances) == ["divide_0_0", "divide_0_1"]
    assert {one["pid"] for one in instances.values()} == set(server.worker_pids("divide"))
    assert {(one["state"], one["batches"]) for one in instances.values()} == {("READY", 0)}


def test_a_model_that_did_not_load_has_no_statistics(server: RunningServer) -> None:
    document = server.get("/console/statistics").json
    assert document["state"] == "READY"
    assert "broken" not in {one["model"] for one in document["versions"]}


def test_what_a_model_prints_is_among_its_lines_and_nobody_elses(server: RunningServer) -> None:
    assert server.infer("add_sub", ONES).status == 200
    server.wait_for_log("adding")  # what is printed takes a way of its own
    lines = server.get("/console/lines?model=add_sub").json["lines"]
    printed = [line for line in lines if line["text"] == "adding [1.0, 2.0, 3.0, 4.0]"]
    assert printed and printed[-1]["place"] == "stdout"
    assert (printed[-1]["model"], printed[-1]["version"], printed[-1]["instance"]) == ("add_sub", "1", "add_sub_0")
    assert server.get(f"/console/lines?model=add_sub&after={printed[-1]['number']}").json == {"lines": []}
    assert not any("adding" in line["text"] for line in server.get("/console/lines?model=size").json["lines"])
    assert printed[-1] in server.get(f"/console/lines?model=add_sub&after={'9' * 5000}").json["lines"]  # none's number
    assert not any("adding" in line["text"] for line in server.get("/console/lines").json["lines"])


def test_an_execution_that_fails_is_among_the_errors_with_its_traceback(server: RunningServer) -> None:
    reply = server.infer("divide", ZERO)
    assert reply.status == 500
    error = server.get("/console/errors").json["lines"][-1]
    assert (error["model"], error["level"]) == ("divide", "error")
    assert error["text"] == reply.error
    assert re.search(r"ZeroDivisionError.*\n\nAt:\n  \S+/model\.py\(\d+\): <?\w+>?\n", error["text"], re.DOTALL)


def test_a_load_that_fails_is_among_the_errors(server: RunningServer) -> None:
    assert server.post("/v2/repository/models/broken/load").status == 400
    for path in ("/console/errors", "/console/lines?model=broken"):
        assert any("/there/is/no/such.file" in line["text"] for line in server.get(path).json["lines"])


def test_a_configuration_is_shown_as_its_author_wrote_it(server: RunningServer) -> None:
    given = server.get("/console/given/add_sub").json
    assert given["file"] == "config.pbtxt"
    assert "# Two vectors in." in given["text"] and ADD_SUB_CONFIG.split()[5] in given["text"]
    assert server.get("/console/given/broken").status == 200  # of all it is the one that somebody has to look at


def test_the_configuration_of_an_unknown_model_is_refused_in_words(server: RunningServer) -> None:
    reply = server.get("/console/given/nope")
    assert (reply.status, reply.error) == (404, "model 'nope' is not loaded: its configuration was not read")
    assert server.get("/console/given/..%2Fadd_sub").status == 404


def test_a_model_without_the_file_has_no_text(server: RunningServer, repository: Path) -> None:
    (repository / "add_sub" / "config.pbtxt").rename(repository / "add_sub" / "aside")
    try:
        assert server.get("/console/given/add_sub").json == {"file": "config.pbtxt", "text": None}
    finally:
        (repository / "add_sub" / "aside").rename(repository / "add_sub" / "config.pbtxt")


# ------------------------------------------------------------------------------------------- who may, and who pays

DOCUMENTS = {
    "/console/about": "metadata",
    "/console/statistics": "statistics",
    "/console/lines": "logging",
    "/console/errors": "logging",
    "/console/given/add_sub": "model-config",
}


@pytest.mark.parametrize("front_ends", [0, 2])
def test_restrictions_and_origins_hold_for_what_the_console_asks(repository: Path, front_ends: int) -> None:
    categories = "metadata,statistics,logging,model-config"
    flags = (
        *FLAGS, f"--http-restricted-api={categories}:X-Key=s3cret", "--http-cors-allow-origin=https://app.example",
        f"--frontends={front_ends}",
    )  # fmt: skip
    with RunningServer(repository, flags=flags) as restricted:
        for path in DOCUMENTS:
            refused = restricted.get(path)
            assert (refused.status, refused.error) == (403, "This API is restricted, expecting header 'X-Key'")
            allowed = restricted.request("GET", path, headers={"X-Key": "s3cret", "Origin": "https://app.example"})
            assert allowed.status == 200
            assert header(allowed, "access-control-allow-origin") == "https://app.example"
            other = restricted.request("GET", path, headers={"X-Key": "s3cret", "Origin": "https://evil.example"})
            assert header(other, "access-control-allow-origin") == ""
        assert restricted.get("/").status == restricted.get("/docs").status == 200


def test_a_server_without_the_console_has_no_pages_and_keeps_no_lines(repository: Path) -> None:
    with RunningServer(repository, flags=(*FLAGS, "--allow-console=false", "--load-model=")) as bare:
        for path in ("/", "/docs", "/console/about", "/console/files/main.js", *DOCUMENTS):
            assert (bare.get(path).status, bare.get(path).error) == (404, "Not Found")
        assert bare.get("/openapi.json").status == 200
