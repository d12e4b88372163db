"""``hf://``: models from a Hub, which a server in this process stands in for. See `make docs`."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from pytriton_lite.config.model_config import read_model_config  # after the check that it is there
from pytriton_lite.remote.source import SourceError, SourceTools
from pytriton_lite.remote.url import parse_remote_url
from tests.answering_server import answering_server
from tests.harness import RunningServer, tensor

CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([NUMBER], np.int32))]) for _ in requests]
"""
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""


class Hub:
    """What of the Hub's API is used: the files of a commit, and each of them. Repositories by id, commits by revision.

    ``says_blobs``: it tells what the contents of small files are, which a mirror need not.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.gated: set[str] = set()
        self.fetched: list[str] = []
        self.tokens: set[tuple[str, str]] = set()
        self.says_blobs = True
        self.url = ""

    def put(self, name: str, files: dict[str, str], revision: str = "main") -> None:
        contents = {path: text.encode() for path, text in files.items()}
        commit = hashlib.sha1(json.dumps([name, files]).encode()).hexdigest()
        known = self.repositories.setdefault(name, {})
        known[revision] = known[commit] = {**contents, "": commit.encode()}

    def answer(self, path: str, token: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.tokens.add((path.partition("/resolve/")[0], token))
        path, _, _ = path.partition("?")
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            files, refusal = self._find(name, revision or "main")
            if files is None:
                return refusal
            siblings = [
                {
                    "rfilename": each,
                    "size": len(content),
                    **({"blobId": hashlib.sha1(content).hexdigest()} if self.says_blobs else {}),
                    **(
                        {"lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 1}}
                        if _is_large(each)
                        else {}
                    ),
                }
                for each, content in files.items()
                if each
            ]
            body = {
                "_id": "1",
                "id": name,
                "modelId": name,
                "sha": files[""].decode(),
                "siblings": siblings,
                "private": False,
            }
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        name, _, rest = path.lstrip("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        files, refusal = self._find(name, revision)
        if files is None:
            return refusal
        if file not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        self.fetched.append(file)
        etag = _sha256(files[file]) if _is_large(file) else hashlib.sha1(files[file]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": files[""].decode()}, files[file]

    def _find(self, name: str, revision: str) -> tuple[dict[str, bytes] | None, tuple[int, dict[str, str], bytes]]:
        if name in self.gated:
            return None, (403, {"X-Error-Code": "GatedRepo"}, b"")
        if name not in self.repositories:
            return None, (401, {"X-Error-Code": "RepoNotFound"}, b"")
        return self.repositories[name].get(revision), (404, {"X-Error-Code": "RevisionNotFound"}, b"")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".bin"))


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    with answering_server(lambda target, headers: hub.answer(target, headers.get("Authorization", ""))) as hub.url:
        yield hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


def environ(hub: Hub, folder: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_secret"}


def source(hub: Hub, text: str, folder: Path) -> object:
    from concurrent.futures import ThreadPoolExecutor

    from pytriton_lite.plugins.hub.source import open_source

    tools = SourceTools(environ(hub, folder), ThreadPoolExecutor(1), folder, lambda: False)
    return open_source(parse_remote_url(text), tools)


def model_files(number: int) -> dict[str, str]:
    return {"config.pbtxt": CONFIG, "1/model.py": CODE.replace("NUMBER", str(number))}


def ask(server: RunningServer, model: str) -> int:
    reply = server.infer(model, [tensor("IN", "INT32", [1], [0])])
    assert reply.status == 200, reply.body
    number: int = reply.json["outputs"][0]["data"][0]
    return number


def test_a_server_serves_a_repository_one_model_and_a_revision_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    files = {f"{name}/{path}": text for name in ("a", "b") for path, text in model_files(ord(name)).items()}
    hub.put("acme/models", {**files, "README.md": "# models", "pictures/one.png": "png", ".gitattributes": ""})
    hub.put("acme/single", {**model_files(1), "README.md": "# one"}, "v1")
    hub.put("acme/single", model_files(2))
    repositories = ("hf://acme/models", "hf://acme/single@v1")
    flags = tuple(f"--model-repository={text}" for text in repositories)
    with RunningServer(
        flags=(*flags, "--model-control-mode=poll", "--repository-poll-secs=1"), environ=environ(hub, tmp_path)
    ) as server:
        assert [ask(server, name) for name in ("a", "b", "single")] == [ord("a"), ord("b"), 1]
        assert {entry["name"] for entry in server.post("/v2/repository/index").json} == {"a", "b", "single"}
        assert "hf_secret" not in server.log
        fetched = len(hub.fetched)
        hub.put("acme/models", {**files, "b/1/model.py": CODE.replace("NUMBER", "7")})
        server.wait_for_log(r"loading: b:1\"(?s:.*)loading: b:1\"(?s:.*)successfully loaded 'b'")
        assert ask(server, "b") == 7
        assert hub.fetched[fetched:] == ["b/1/model.py"] * (len(hub.fetched) - fetched), (
            "what is equal is not fetched again"
        )
    assert {token for path, token in hub.tokens if "acme" in path} == {"Bearer hf_secret"}


def test_a_folder_of_transformers_comes_with_a_configuration_and_without_code(hub: Hub, tmp_path: Path) -> None:
    files = ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json", "vocab.txt"]
    others = ["modeling_acme.py", "pytorch_model.bin", "onnx/model.onnx", "README.md", "pytorch_model.bin.index.json"]
    hub.put("acme/bert", dict.fromkeys([*files, *others], "{}"))
    found = source(hub, "hf://acme/bert", tmp_path)
    (model,) = found.models().values()  # type: ignore[attr-defined]
    assert set(model.files) == {"config.pbtxt", *(f"1/{path}" for path in files)}
    (tmp_path / "bert" / "1").mkdir(parents=True)
    for path in ("config.pbtxt", "1/model.safetensors"):
        found.fetch(model.files[path], tmp_path / "bert" / path, lambda: False)  # type: ignore[attr-defined]
    assert read_model_config(tmp_path / "bert", versions=[1]).backend == "transformers"
    assert (tmp_path / "bert" / "1" / "model.safetensors").read_text() == "{}"


def test_weights_that_are_pickles_are_no_model(hub: Hub, tmp_path: Path) -> None:
    hub.put("acme/old", {"config.json": "{}", "pytorch_model.bin": "pickle"})
    (model,) = source(hub, "hf://acme/old", tmp_path).models().values()  # type: ignore[attr-defined]
    assert model.problem == (
        "old has no *.safetensors, and its weights are pickles, which are code: convert it to safetensors"
    )
    assert not model.files


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("hf://acme/nowhere", "acme/nowhere is not there, or private: HF_TOKEN is set"),
        ("hf://acme/gated", "acme/gated is gated: ask for access on the Hub, and set HF_TOKEN"),
        ("hf://acme/single@v9", "acme/single has nothing at revision 'v9'"),
        ("hf://acme", "expected hf://org/name or hf://org/name@revision, got hf://acme"),
    ],
)
def test_what_cannot_be_read_is_told(hub: Hub, tmp_path: Path, url: str, text: str) -> None:
    hub.put("acme/single", model_files(1))
    hub.put("acme/gated", model_files(1))
    hub.gated.add("acme/gated")
    with pytest.raises(SourceError) as refused:
        source(hub, url, tmp_path).models()  # type: ignore[attr-defined]
    assert str(refused.value) == text


def test_a_mirror_that_does_not_know_contents_has_another_one_with_each_commit(hub: Hub, tmp_path: Path) -> None:
    hub.says_blobs = False
    found = source(hub, "hf://acme/single", tmp_path)
    identities = []
    for number in (1, 1, 2):
        hub.put("acme/single", model_files(number))
        identities.append(found.model("single").files["1/model.py"].identity)  # type: ignore[attr-defined]
    assert identities[0] == identities[1] != identities[2]


def test_files_are_fetched_with_the_client_that_transformers_4_needs(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no ``tqdm_class``."""
    import huggingface_hub

    newer = huggingface_hub.hf_hub_download

    def older(
        repo_id: str, filename: str, *, revision: str, local_dir: str, endpoint: str | None, token: str | None
    ) -> str:
        path: str = newer(repo_id, filename, revision=revision, local_dir=local_dir, endpoint=endpoint, token=token)
        return path

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", older)
    hub.put("acme/single", model_files(1))
    found = source(hub, "hf://acme/single", tmp_path)
    file = found.model("single").files["1/model.py"]  # type: ignore[attr-defined]
    found.fetch(file, tmp_path / "model.py", lambda: False)  # type: ignore[attr-defined]
    assert (tmp_path / "model.py").read_text() == model_files(1)["1/model.py"]


def test_a_hub_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with running_hub() as hub:
        found = source(hub, "hf://acme/single", tmp_path)
    with pytest.raises(SourceError, match=r"^acme/single: .*refused"):
        found.models()  # type: ignore[attr-defined]


def test_a_hub_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytriton_lite.plugins.hub.source._READ_S", 0.1)
    hub = Hub()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SourceError, match=r"^acme/single: ReadTimeout"):
            source(hub, "hf://acme/single", tmp_path).names()  # type: ignore[attr-defined]
