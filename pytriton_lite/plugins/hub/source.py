"""``hf://org/name[@revision]``: a repository of the Hub as a model repository (docs/remote-repositories.md).

What a repository of the Hub holds is seen by its names:

    <model>/config.pbtxt, <model>/<version>/…    a Triton model repository, as it is
    config.pbtxt, <version>/…                    one model, which is called as the repository is
    config.json, *.safetensors                   a model of transformers, for the backend of that name; a config.pbtxt of one
                                                 line comes with it. Only texts and safetensors are fetched

A listing is of one commit, and files are fetched from that one, whatever the branch means by then.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from pytriton_lite.remote.source import Closing, RemoteFile, RemoteModel, Source, SourceError, SourceTools, add_file
from pytriton_lite.remote.url import RemoteUrl

_READ_S = 30
"""How long the Hub may say nothing when it is asked for a listing; for files its client has a limit of its own."""

_CONFIG = "config.pbtxt"
_MADE = "made:"
"""In front of the address of a file that is not of the Hub but of ours."""

_TRANSFORMERS_CONFIG = b'backend: "transformers"\n'
_WEIGHTS = ".safetensors"
_TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe")
"""Files of a model of transformers beside its weights: none of them is code."""

_PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.bin.index.json")


def open_source(url: RemoteUrl, tools: SourceTools) -> Source:
    """See `remote.source.OpenSource`."""
    return HubRepository(url, tools)


class HubRepository:
    """One repository of the Hub, at one revision."""

    def __init__(self, url: RemoteUrl, tools: SourceTools) -> None:
        try:
            import huggingface_hub
        except ImportError as error:
            raise SourceError(f"hf:// needs huggingface_hub ({error}): pip install 'pytriton-lite[hf]'") from None
        self._hub = huggingface_hub
        path, _, revision = url.path.partition("@")
        self._id = path
        self._revision = revision or None
        if path.count("/") != 1:
            raise SourceError(f"expected hf://org/name or hf://org/name@revision, got {url}")
        environ = tools.environ
        self._endpoint = environ.get("HF_ENDPOINT") or None
        self._token: str | None = environ.get("HF_TOKEN") or None
        self._folder = tools.folder
        self._interrupted = threading.Event()
        self._api = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token)

    # ------------------------------------------------------------------------------------------ listing

    def names(self) -> list[str]:
        return sorted(self.models())

    def model(self, name: str) -> RemoteModel | None:
        return self.models().get(name)

    def models(self) -> dict[str, RemoteModel]:
        self._check_open()
        try:
            info = self._api.model_info(self._id, revision=self._revision, files_metadata=True, timeout=_READ_S)
        except Exception as error:
            raise self._source_error(error) from None
        commit = info.sha
        if not commit:  # what is listed could be of one commit, and what is fetched of another
            raise SourceError(f"the Hub does not say of which commit the files of {self._id} are")
        files = {each.rfilename: self._file(commit, each) for each in info.siblings or ()}
        return _models(self._id.partition("/")[2], files)

    @staticmethod
    def _file(commit: str, sibling: Any) -> RemoteFile:
        # A mirror need not know what the content is: then each commit has another one.
        identity = (sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id) or commit
        return RemoteFile(f"{commit}/{sibling.rfilename}", str(identity), sibling.size)

    # ------------------------------------------------------------------------------------------ fetching

    def fetch(self, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        if file.address.startswith(_MADE):
            destination.write_bytes(_TRANSFORMERS_CONFIG)
            return
        commit, _, name = file.address.partition("/")
        # The client takes it from 1.1 on, and transformers 4 needs one before 1.0: there a file is fetched to its end.
        takes_bar = "tqdm_class" in inspect.signature(self._hub.hf_hub_download).parameters
        bar = {"tqdm_class": self._stopping(is_closing)} if takes_bar else {}
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            try:
                fetched = self._hub.hf_hub_download(
                    self._id,
                    name,
                    revision=commit,
                    local_dir=folder,
                    endpoint=self._endpoint,
                    token=self._token,
                    **bar,
                )
            except Exception as error:
                self._check_open(is_closing)
                raise self._source_error(error) from None
            shutil.move(os.fspath(Path(fetched).resolve()), destination)

    def _stopping(self, is_closing: Callable[[], bool]) -> type[Any]:
        """A bar that shows nothing: it is told of every piece, and can say that enough is enough."""
        check = self._check_open
        from tqdm import tqdm

        class Bar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
            def __init__(self, *arguments: Any, **options: Any) -> None:
                options.pop("name", None)
                super().__init__(*arguments, **{**options, "disable": True})

            def update(self, n: float | None = 1) -> bool | None:
                check(is_closing)
                is_shown: bool | None = super().update(n)
                return is_shown

        return Bar

    def _check_open(self, is_closing: Callable[[], bool] | None = None) -> None:
        if self._interrupted.is_set() or (is_closing is not None and is_closing()):
            raise Closing

    def _source_error(self, error: Exception) -> SourceError:
        """What the Hub said, in one line; its texts go on with advice for people at a terminal."""
        errors = self._hub.errors
        revision = f" at revision '{self._revision}'" if self._revision else ""
        if isinstance(error, errors.GatedRepoError):
            return SourceError(f"{self._id} is gated: ask for access on the Hub, and set HF_TOKEN")
        if isinstance(error, errors.RevisionNotFoundError):
            return SourceError(f"{self._id} has nothing{revision}")
        if isinstance(error, errors.RepositoryNotFoundError):
            return SourceError(f"{self._id} is not there, or private: HF_TOKEN is {'' if self._token else 'not '}set")
        lines = str(error).strip().splitlines()
        return SourceError(f"{self._id}{revision}: {type(error).__name__}: {lines[0] if lines else 'no text'}")

    def interrupt(self) -> None:
        self._interrupted.set()

    def close(self) -> None:
        pass


def _models(name: str, files: dict[str, RemoteFile]) -> dict[str, RemoteModel]:
    """The models in the repository *name* of the Hub, which has *files* by their paths."""
    models: dict[str, RemoteModel] = {}
    if _CONFIG in files or any(path.partition("/")[0].isdigit() for path in files if "/" in path):
        for path, file in files.items():
            if "/" in path or path in (_CONFIG,) or not path.startswith((".", "README")):
                add_file(models, f"{name}/{path}", file)
    elif "config.json" in files:
        _add_transformers(models, name, files)
    else:
        for path, file in files.items():
            add_file(models, path, file)
        # A folder beside the models, of pictures for instance, is none.
        models = {known: model for known, model in models.items() if _is_model(model)}
    return models


def _is_model(model: RemoteModel) -> bool:
    return (
        bool(model.problem) or _CONFIG in model.files or any(path.partition("/")[0].isdigit() for path in model.files)
    )


def _add_transformers(models: dict[str, RemoteModel], name: str, files: dict[str, RemoteFile]) -> None:
    weights = [path for path in files if "/" not in path and path.endswith(_WEIGHTS)]
    if not weights:
        has_pickles = any(path in files for path in _PICKLES)
        models[name] = RemoteModel(
            problem=f"{name} has no *{_WEIGHTS}"
            + (", and its weights are pickles, which are code: convert it to safetensors" if has_pickles else "")
        )
        return
    made = hashlib.sha256(_TRANSFORMERS_CONFIG).hexdigest()
    add_file(models, f"{name}/{_CONFIG}", RemoteFile(_MADE + _CONFIG, made, len(_TRANSFORMERS_CONFIG)))
    for path in _wanted(files, weights):
        add_file(models, f"{name}/1/{path}", files[path])


def _wanted(files: Iterable[str], weights: Iterable[str]) -> list[str]:
    """Texts, also those of folders such as ``1_Pooling``, and weights of the top folder."""
    texts = [path for path in files if PurePosixPath(path).suffix in _TEXTS and path not in _PICKLES]
    return [*texts, *weights]
