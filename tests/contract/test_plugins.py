"""docs/plugins.md: the package on the page is installed, and what it brings is used."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.wire_models import wait_until
from tests.harness import PROJECT, RunningServer, tensor, write_model

PAGE = (PROJECT / "docs" / "plugins.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
EMPTY: list[str] = re.findall(r"`([\w./]+)` is empty", PAGE)

CONFIG = """
input [{ name: "IN" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [2] }]
"""
COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(2, self.executions, np.float32))])]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package of the page was installed into."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, content in {**FILES, **dict.fromkeys(EMPTY, "")}.items():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_text(content)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder / 'site'}"]
    done = subprocess.run([*command, str(folder / "source")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "lines"


@pytest.fixture(scope="module")
def server(installed: Path, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    write_model(here, "cached", COUNTING, CONFIG + "response_cache { enable: true }")
    (here / "scaled" / "1").mkdir(parents=True)
    backend = 'backend: "acme" parameters { key: "factor" value: { string_value: "3" } }'
    (here / "scaled" / "config.pbtxt").write_text(f"{CONFIG} {backend}")
    write_model(there, "remote", COUNTING, CONFIG)
    flags = (
        f"--model-repository=acme:/{there}",
        "--cache-config=acme,unused=1",
        "--trace-config=mode=acme", f"--trace-config=acme,file={traces}",
        "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1",
    )  # fmt: skip
    environ = {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    with RunningServer(here, flags=flags, environ=environ) as running:
        yield running


def values(server: RunningServer, model: str, *given: float) -> list[float]:
    found: list[float] = server.infer(model, [tensor("IN", "FP32", [2], list(given))]).json["outputs"][0]["data"]
    return found


def test_the_cache_answers_the_second_of_two_equal_requests(server: RunningServer) -> None:
    assert values(server, "cached", 1, 2) == values(server, "cached", 1, 2)
    assert values(server, "cached", 3, 4) != values(server, "cached", 1, 2)


def test_the_backend_serves_a_model_without_code(server: RunningServer) -> None:
    assert values(server, "scaled", 1, 2) == [3, 6]


def test_the_source_brings_models(server: RunningServer) -> None:
    assert values(server, "remote", 1, 2) == [1, 1]


def test_the_sink_hears_of_requests(server: RunningServer, traces: Path) -> None:
    values(server, "scaled", 5, 6)
    wait_until(traces.exists)
    wait_until(lambda: re.search(r"^scaled 8 [1-9]\d*$", traces.read_text(), re.MULTILINE) is not None)


FAULTY = """
from pytriton_lite.engine.cache.response_cache import CacheSpace, ResponseCache


def fail(name, place):
    if name == place:
        raise KeyError("a bug of " + place)


class Space(CacheSpace):
    def __init__(self, name):
        self.name = name

    def begin_load(self):
        fail(self.name, "begin_load")

    def lookup(self, digest):
        fail(self.name, "lookup")

    def insert(self, digest, tensors):
        fail(self.name, "insert")

    def drop(self):
        fail(self.name, "drop")


class Cache(ResponseCache):
    def space(self, config, version, directory):
        return Space(config.name)

    async def close(self):
        fail("close", "close")


def make_cache(options, environ):
    return Cache()


class Mark:
    context = step_context = ""

    def __init__(self, name):
        self.name = name

    def on_accepted(self, inputs):
        fail(self.name, "on_accepted")

    def on_response(self, outputs):
        fail(self.name, "on_response")


class Sink:
    def __init__(self, options):
        pass

    def begin(self, timeline, header, settings):
        fail(timeline.model_name, "begin")
        return Mark(timeline.model_name)

    def end(self, timeline):
        fail(timeline.model_name, "end")
        return 0

    def recorder(self):
        return self

    def record(self, timeline):
        fail(timeline.model_name, "record")

    def finish(self):
        pass
"""
PLACES = ("begin_load", "lookup", "insert", "begin", "on_accepted", "on_response", "end", "record")


def write_entry_points(site: Path, name: str, entries: str, code: str) -> None:
    """A package of one module, as it lies there when it is installed."""
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (site / f"{name}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plug-in that raises wherever it may, each time for the model of that name."""
    site = tmp_path_factory.mktemp("site")
    entries = "[pytriton_lite.response_caches]\nfaulty = faulty:make_cache\n[pytriton_lite.trace_sinks]\nfaulty = faulty:Sink\n"
    write_entry_points(site, "faulty", entries, FAULTY)
    return site


@pytest.fixture(scope="module")
def harmed(faulty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models")
    for place in PLACES:
        write_model(repository, place, COUNTING, CONFIG + "response_cache { enable: true }")
    flags = ("--cache-config=faulty,unused=1", "--trace-config=mode=faulty", "--trace-config=level=TIMESTAMPS")
    with RunningServer(repository, flags=flags, environ={"PYTHONPATH": str(faulty)}) as running:
        yield running


@pytest.mark.parametrize("place", PLACES)
def test_a_plug_in_that_raises_harms_no_request(harmed: RunningServer, place: str) -> None:
    assert values(harmed, place, 1, 2) == [1, 1]
    assert values(harmed, place, 1, 2) == [2, 2]
    harmed.wait_for_log(f"a bug of {place}")


def test_a_cache_that_cannot_forget_or_be_closed_holds_up_neither_an_unload_nor_the_end(
    faulty: Path, tmp_path: Path
) -> None:
    write_model(tmp_path, "drop", COUNTING, CONFIG + "response_cache { enable: true }")
    flags = ("--cache-config=faulty,unused=1", "--model-control-mode=explicit", "--load-model=drop")
    with RunningServer(tmp_path, flags=flags, environ={"PYTHONPATH": str(faulty)}) as server:
        assert server.post("/v2/repository/models/drop/unload").status == 200
        server.wait_for_log("successfully unloaded 'drop'")
        assert "a bug of drop" in server.log
        assert server.get("/v2/health/ready").status == 200
        assert server.stop() == 0
        assert "a bug of close" in server.log


SOURCE = """
import os
from pathlib import Path


class Source:
    def __init__(self, url, tools):
        self.folder = Path("/", url.path)
        if (self.folder / "broken").exists():
            raise KeyError("a bug at the beginning")

    def check(self):
        if (self.folder / "broken").exists():
            raise KeyError("a bug of the source")

    def names(self):
        self.check()
        return []

    def models(self):
        self.check()
        return {}

    def model(self, name):
        self.check()

    def interrupt(self):
        self.check()

    def close(self):
        self.check()
"""


def test_a_source_that_raises_keeps_no_other_repository_from_being_followed(tmp_path: Path) -> None:
    site, there, here = tmp_path / "site", tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    write_entry_points(site, "raising", "[pytriton_lite.repository_sources]\nraising = raising:Source\n", SOURCE)
    flags = (f"--model-repository=raising:/{there}", "--model-control-mode=poll", "--repository-poll-secs=1")
    environ = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with RunningServer(here, flags=flags, environ=environ) as server:
        (there / "broken").touch()
        server.wait_for_log("failed to poll model repository 'raising://.*': KeyError: 'a bug of the source'")
        write_model(here, "late", COUNTING, CONFIG)
        server.wait_for_log("successfully loaded 'late'")
        assert server.stop() == 0
    with pytest.raises(AssertionError, match=r"model repository 'raising://.*': KeyError: 'a bug at the beginning'"):
        RunningServer(here, flags=flags, environ=environ).__enter__()


def test_names_of_plug_ins_may_have_capitals_and_hyphens(tmp_path: Path) -> None:
    site, there, here = tmp_path / "site", tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    entries = "[pytriton_lite.repository_sources]\nAcme-store = named:Source\n[pytriton_lite.trace_sinks]\nAcme = named:Sink\n"
    write_entry_points(site, "named", entries, SOURCE + FAULTY)
    flags = (f"--model-repository=Acme-store:/{there}", "--trace-config=mode=Acme", "--trace-config=Acme,key=value")
    environ = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with RunningServer(here, flags=flags, environ=environ) as server:
        settings = server.get("/v2/trace/setting").json
        assert (settings["trace_mode"], settings["key"]) == ("Acme", "value")


def test_what_nothing_brings_is_refused_with_what_there_is(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), "--cache-config=acne,size=1"]
    environ = {"PYTHONPATH": str(installed), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert done.returncode == 1
    assert "unable to find cache 'acne': expected acme, local or redis" in done.stderr


def test_a_plain_serve_imports_no_plug_in() -> None:
    code = (
        "import sys, pytriton_lite.app, pytriton_lite.cli.serve\n"
        "pytriton_lite.cli.serve.parse(['models'], {})\n"
        "print([name for name in sys.modules if name.startswith('pytriton_lite.plugins')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
