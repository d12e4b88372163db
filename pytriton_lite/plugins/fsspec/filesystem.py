"""Remote repositories through a filesystem of fsspec. Everything here blocks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import importlib
import re
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pytriton_lite.plugins.fsspec.access import GOOGLE_FILE, Access
from pytriton_lite.remote.source import Closing, RemoteFile, RemoteModel, SourceError, add_file
from pytriton_lite.remote.url import RemoteUrl, redact
from pytriton_lite.repository.index import is_model_name

_DEEPEST = 32
"""Folders inside each other on a web server; one that answers everything would have no end."""

_CANCEL_S = 1.0
"""How long what was cancelled may take to end."""

_SSL_OBJECT = re.compile(r" ssl:<[^>]*>")
"""What aiohttp has in its texts, with an address that nobody needs."""

_QUERY = re.compile("[?#]")

_EXTRAS = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs"), "as": ("adlfs", "azure"), "https": ("aiohttp", "https")}
"""The module that a scheme needs, and the extra that brings it."""


def open_filesystem(url: RemoteUrl, access: Access) -> Any:
    """A filesystem of fsspec. Raises SourceError for an extra that is not installed, and for credentials that are no use."""
    module, extra = _EXTRAS[url.scheme]
    try:
        importlib.import_module(module)
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        text = f"needs the extra '{extra}', which is not installed: pip install 'pytriton-lite[{extra}]'"
        raise SourceError(text) from None
    options = dict(access.options)
    with _told(access.secrets):
        if url.scheme == "https":
            options.update(_web_options(url))
        if url.scheme == "s3" and access.may_be_public and _has_no_aws_credentials(options.get("profile")):
            options["anon"] = True
        if access.azure_identity:
            options["credential"] = _azure_credential(access)
        loop = _OwnLoop()
        options.update(use_listings_cache=False, skip_instance_cache=True, loop=loop)
        try:
            return _make(fsspec, url, access, options)
        except BaseException:
            loop.end()
            raise


def _make(fsspec: Any, url: RemoteUrl, access: Access, options: Mapping[str, Any]) -> Any:
    filesystem = fsspec.filesystem(access.protocol, **options)
    if url.scheme == "gs" and filesystem.credentials.credentials is None:
        if not access.may_be_public:
            raise SourceError(f"{GOOGLE_FILE}: the file has no credentials that can be used")
        # In front of each request gcsfs asks of which kind the bucket is. Without credentials that never succeeds, and is a
        # search for some, and a warning, each time. The class below does not ask.
        return importlib.import_module("gcsfs.core").GCSFileSystem(**{**options, "token": "anon"})
    return filesystem


class _OwnLoop(asyncio.SelectorEventLoop):
    """A loop of one filesystem, in a thread of its own: what is on it may be cancelled.

    fsspec's own is the whole process's: a program that embeds a server reads its files there, and other servers theirs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runner = threading.Thread(target=self._run, name="fsspec", daemon=True)
        self._runner.start()

    def cancel_all(self) -> None:
        """Cancel whatever is under way, from any thread."""
        if not self.is_closed():
            self.call_soon_threadsafe(self._cancel_all)

    def end(self) -> None:
        """Cancel, and close. Not running any more when this returns: finalizers of filesystems ask for that."""
        if not self.is_closed():
            self.call_soon_threadsafe(self.stop)
            self._runner.join()

    def _cancel_all(self) -> set[asyncio.Task[Any]]:
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        return tasks

    def _run(self) -> None:
        self.run_forever()
        left = self._cancel_all()
        if left:  # a thread waits for each
            self.run_until_complete(asyncio.wait(left, timeout=_CANCEL_S))
        self.close()


def _has_no_aws_credentials(profile: str | None) -> bool:
    """Whether nobody has any for us: then a bucket must be public, and is to be asked unsigned."""
    session = importlib.import_module("botocore.session").Session(profile=profile)
    return session.get_credentials() is None


def _azure_credential(access: Access) -> object:
    identity = importlib.import_module("azure.identity.aio")
    if access.azure_identity == "default":
        return identity.DefaultAzureCredential()
    return identity.ManagedIdentityCredential(client_id=access.azure_client_id or None)


def _web_options(url: RemoteUrl) -> dict[str, Any]:
    aiohttp = importlib.import_module("aiohttp")

    async def refuse_plain_http(session: object, context: object, parameters: Any) -> None:
        if parameters.response.headers.get("Location", "").lower().startswith("http://"):
            raise SourceError("it redirects to http://, where anybody on the way could change it")

    trace = aiohttp.TraceConfig()
    if url.path.startswith("https:"):
        trace.on_request_redirect.append(refuse_plain_http)
    client: dict[str, Any] = {
        "trust_env": True,  # proxies, and passwords in ~/.netrc
        "trace_configs": [trace],
        "timeout": aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30),
    }
    options: dict[str, Any] = {"simple_links": False, "encoded": True, "client_kwargs": client}
    if url.path.startswith("https:"):
        options["ssl"] = ssl.create_default_context()  # aiohttp's own is of the moment of its import
    if url.user:
        credentials = base64.b64encode(f"{url.user}:{url.password}".encode()).decode()
        options["headers"] = {"Authorization": f"Basic {credentials}"}
    return options


@contextlib.contextmanager
def _told(secrets: Iterable[str]) -> Iterator[None]:
    """Whatever the libraries of others raise becomes a SourceError with its text, without secrets."""
    try:
        yield
    except (SourceError, Closing):
        raise
    except Exception as error:
        # fsspec says of every failure over HTTP that the file is not there, with its URL alone, and has the reason as cause.
        is_bare = isinstance(error, FileNotFoundError) and " " not in str(error)
        reason = error.__cause__ or error if is_bare else error
        text = _SSL_OBJECT.sub("", " ".join(str(reason).split())) or type(reason).__name__
        if is_bare and reason is error:
            text = f"{text} is not there"
        for secret in secrets:
            text = text.replace(secret, "***")
        raise SourceError(redact(text)) from None


class FilesystemSource:
    """What every source does with its filesystem."""

    def __init__(self, filesystem: Any, url: RemoteUrl, access: Access) -> None:
        self._filesystem = filesystem
        self._url = url
        self._secrets = (*url.secrets, *access.secrets)
        self._is_interrupted = False

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """What is raised inside becomes a SourceError without secrets, or Closing where it was interrupted."""
        try:
            self._check_interrupted()
            with _told(self._secrets):
                yield
        except SourceError:
            self._check_interrupted()
            raise
        self._check_interrupted()  # a call of fsspec that was cancelled returns None

    def _check_interrupted(self) -> None:
        if self._is_interrupted:
            raise Closing

    def interrupt(self) -> None:
        """A host that says nothing would be waited for, and asked again, for minutes."""
        self._is_interrupted = True
        self._filesystem.loop.cancel_all()

    def info(self, address: str) -> dict[str, Any]:
        info: dict[str, Any] = self._filesystem.info(address)
        return info

    def fetch(self, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        try:
            self._get(file, destination, is_closing)
        except SourceError:
            if self._url.scheme != "https":
                raise
            # Over HTTP fsspec gives up when the connection breaks off; what reads the stores goes on by itself.
            self._get(file, destination, is_closing)
        with self.told():
            # Large objects come in pieces, and the name may have got another content between two of them.
            if identity_of(self.info(file.address)) != file.identity:
                raise SourceError(f"{file.address} changed while it was copied")
        size = destination.stat().st_size
        if file.size is not None and size != file.size:
            raise SourceError(f"{file.address}: expected {file.size} bytes, got {size}")

    def _get(self, file: RemoteFile, destination: Path, is_closing: Callable[[], bool]) -> None:
        # gcsfs reads large objects in parts that it keeps in memory, four at a time, unless it has headers to send.
        options: dict[str, Any] = {"headers": {}} if self._url.scheme == "gs" else {}
        with self.told():
            self._filesystem.get_file(file.address, str(destination), callback=_callback(is_closing), **options)

    def close(self) -> None:
        """Close the connections and end their loop; adlfs needs it to close its own when the process ends."""
        loop = self._filesystem.loop
        if loop.is_closed() or not hasattr(self._filesystem, "close_session"):
            return
        sessions = (getattr(self._filesystem, name, None) for name in ("_session", "_s3"))
        session = next((found for found in sessions if found is not None), None)
        try:
            if session is not None:
                with _told(self._secrets):
                    self._filesystem.close_session(loop, session)
        finally:
            loop.end()


def identity_of(info: Mapping[str, Any]) -> str:
    """The identity of a file by what fsspec says of it: its tag, or else when it was written, and its size.

    Raises SourceError where there is neither.
    """
    for key in ("generation", "ETag", "etag", "LastModified", "last_modified", "mtime", "Last-Modified"):
        if info.get(key):
            return f"{info[key]} {info.get('size')}"
    raise SourceError(f"{info.get('name')} has neither an ETag nor a time, so that its changes could not be seen")


def _callback(is_closing: Callable[[], bool]) -> object:
    callbacks = importlib.import_module("fsspec.callbacks")

    def hook(size: object, value: object, **more: object) -> None:
        if is_closing():
            raise Closing

    return callbacks.Callback(hooks={"closing": hook})


class ObjectStore(FilesystemSource):
    """A bucket or container, and a prefix."""

    def names(self) -> list[str]:
        with self.told():
            self._filesystem.invalidate_cache()
            try:
                found = self._filesystem.ls(self._url.path, detail=True)
            except FileNotFoundError as error:
                if str(error) != self._url.path:  # it is the bucket that is not there
                    raise
                found = []
        self._check_there(info["name"] for info in found)
        models: dict[str, RemoteModel] = {}
        for info in found:
            if info["type"] == "directory":
                add_file(models, f"{self._below(info['name'])}/", None)
        return sorted(models)

    def models(self) -> dict[str, RemoteModel]:
        found = self._find(self._url.path)
        if not found:
            self.names()  # adlfs finds nothing, and raises nothing, in a container that is not there; its list does
        self._check_there(found)
        return self._models(found)

    def model(self, name: str) -> RemoteModel | None:
        return self._models(self._find(f"{self._url.path}/{name}")).get(name)

    def _check_there(self, addresses: Iterable[str]) -> None:
        """A bucket may be empty. A path without anything below it is no directory; there may be an object of its name."""
        if "/" in self._url.path and not any(address.startswith(f"{self._url.path}/") for address in addresses):
            raise SourceError("there is nothing of that name")

    def _find(self, path: str) -> dict[str, dict[str, Any]]:
        with self.told():
            self._filesystem.invalidate_cache()
            found = self._filesystem.find(path, detail=True, withdirs=True)
        # adlfs has a list with that one name for what is no folder.
        return found if isinstance(found, dict) else {}

    def _models(self, found: Mapping[str, dict[str, Any]]) -> dict[str, RemoteModel]:
        models: dict[str, RemoteModel] = {}
        for address, info in found.items():
            below = self._below(address)
            if self._is_directory(address, info):
                add_file(models, f"{below.rstrip('/')}/", None)
            else:
                add_file(models, below, RemoteFile(address, identity_of(info), info.get("size")))
        return models

    def _is_directory(self, address: str, info: Mapping[str, Any]) -> bool:
        if self._url.scheme == "as" and info["type"] == "file" and not info["size"]:
            # adlfs lists an empty object ``folder/`` as a file without the slash; asked for it alone, it knows better.
            with self.told():
                info = self.info(address)
        return bool(info["type"] == "directory")

    def _below(self, address: str) -> str:
        return address[len(self._url.path) + 1 :]


class WebDirectory(FilesystemSource):
    """A directory on a web server that lists it as a page of links; folders end with a slash."""

    def __init__(self, filesystem: Any, url: RemoteUrl, access: Access, executor: Executor) -> None:
        """*executor* asks for many files at a time."""
        super().__init__(filesystem, url, access)
        self._executor = executor

    def names(self) -> list[str]:
        return [name for name, is_folder in self._links("") if is_folder and is_model_name(name)]

    def models(self) -> dict[str, RemoteModel]:
        models: dict[str, RemoteModel] = {}
        for name in self.names():
            self._read(models, name)
        return models

    def model(self, name: str) -> RemoteModel | None:
        models: dict[str, RemoteModel] = {}
        if name in self.names():
            self._read(models, name)
        return models.get(name)

    def _read(self, models: dict[str, RemoteModel], name: str) -> None:
        add_file(models, f"{name}/", None)
        paths: list[str] = []
        try:
            self._walk(models, f"{name}/", paths, depth=0)
            for path, file in zip(paths, self._executor.map(self._file, paths), strict=True):
                add_file(models, path, file)
        except SourceError as error:  # what may not be read keeps its own model out, and no other
            models[name].problem = str(error)

    def _walk(self, models: dict[str, RemoteModel], folder: str, paths: list[str], depth: int) -> None:
        if depth > _DEEPEST:
            raise SourceError(f"{folder} has more than {_DEEPEST} folders inside each other")
        for name, is_folder in self._links(folder):
            path = f"{folder}{name}"
            if is_folder:
                add_file(models, f"{path}/", None)
                self._walk(models, f"{path}/", paths, depth + 1)
            else:
                paths.append(path)

    def _links(self, folder: str) -> list[tuple[str, bool]]:
        """(name, whether it is a folder) of what the page of *folder* lists; links to elsewhere are none."""
        base = f"{self._url.path}/{quote(folder)}"
        with self.told():
            found = self._filesystem.ls(base, detail=False)
        names = {html.unescape(link)[len(base) :] for link in found if link.startswith(base)}
        if not names and not folder:
            raise SourceError("the page has no links; expected a list of directories, or the URL of an archive")
        # Sorting by a column is a link with a query. Caddy begins every name with ./
        paths = {name.removeprefix("./") for name in names if not _QUERY.search(name)}
        links = {(unquote(path.removesuffix("/")), path.endswith("/")) for path in paths}
        # What leads further down, or elsewhere, is not of this page.
        return sorted((name, is_folder) for name, is_folder in links if name not in ("", ".", "..") and "/" not in name)

    def _file(self, path: str) -> RemoteFile:
        address = f"{self._url.path}/{quote(path)}"
        with self.told():
            info = self.info(address)
        return RemoteFile(address, identity_of(info), info.get("size"))
