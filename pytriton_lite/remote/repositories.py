"""Remote repositories as local directories: copied when they are needed, and followed when somebody looks again.

Everything here blocks: call it in a thread. Errors are texts for the log and have no secrets in them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from pytriton_lite import doors
from pytriton_lite.config.errors import PollError
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.remote.cache import Cache, View, content_key
from pytriton_lite.remote.copies import LocalCopy, PinnedModel
from pytriton_lite.remote.source import (
    Closing,
    OpenSource,
    RemoteFile,
    RemoteModel,
    SourceError,
    SourceTools,
)
from pytriton_lite.remote.url import RemoteUrl, redact
from pytriton_lite.repository.index import ModelDirectory, is_model_name
from pytriton_lite.repository.refreshed import Refreshed

logger = logging.getLogger(__name__)

_DOWNLOADS = 8
"""Files that are fetched at a time: enough to hide the way to a server far off, and no burden to it."""

_LOCK_CHECK_S = 0.2


class RemoteRepositories:
    """The remote repositories of one server. Its owner closes it after the last worker has ended."""

    def __init__(
        self,
        urls: Sequence[RemoteUrl],
        *,
        cache_directory: Path | None,
        environ: Mapping[str, str],
        clock: Callable[[], int],
    ) -> None:
        """Read nothing yet. *cache_directory* None is below the user's own; *clock* in ns.

        Raises InferenceError for an extra that is not installed, credentials that cannot be read, a directory that cannot
        be written.
        """
        self._closing = threading.Event()
        self._downloads = ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="download")
        self._repositories: dict[RemoteUrl, _Repository] = {}
        folder = cache_directory.absolute() if cache_directory is not None else _users_cache(environ)
        try:
            for url in dict.fromkeys(urls):
                self._repositories[url] = _Repository(url, folder, environ, clock, self._downloads, self._closing)
        except BaseException:
            self.close()
            raise

    def path_of(self, url: RemoteUrl) -> Path:
        """The directory that takes its place."""
        return self._repositories[url].copy.root

    @property
    def names(self) -> dict[Path, str]:
        """What the directories are copies of, without secrets."""
        return {repository.copy.root: str(url) for url, repository in self._repositories.items()}

    def show(self) -> list[str]:
        """Let the directories have the models' names that the repositories have, without copying; what could not be asked.

        A model that has gone goes from its directory, too.
        """
        return [text for repository in self._repositories.values() for text in repository.show()]

    def refresh(self, roots: Collection[Path] | None = None) -> Refreshed:
        """Copy every model, and of those that are here what has changed. *roots* are those of the copies, None for all."""
        result = Refreshed()
        for repository in self._repositories.values():
            if roots is None or repository.copy.root in roots:
                repository.refresh(result)
        return result

    def refresh_model(self, name: str) -> None:
        """`refresh` one model in all repositories. Raises PollError; the local copy is then as it was.

        *name* is what a client sent or a configuration says; one that cannot be a model's has none.
        """
        if not is_model_name(name):
            return
        for repository in self._repositories.values():
            repository.refresh_model(name)

    def pin(self, directory: ModelDirectory) -> PinnedModel | None:
        """Files that stay, for a model that is to be served from *directory*; None where that is nothing of ours.

        Raises PollError.
        """
        for repository in self._repositories.values():
            if repository.copy.root == directory.repository:
                try:
                    return repository.copy.pin(directory)
                except OSError as error:
                    raise PollError(f"cannot keep the files of '{directory.name}': {_why(error)}") from None
        return None

    def is_copied(self, directory: ModelDirectory) -> bool:
        """Whether the model's files are there: True for what lies in no repository of ours, too."""
        for repository in self._repositories.values():
            if repository.copy.root == directory.repository:
                return repository.copy.has(directory.name)
        return True

    def stop(self) -> None:
        """Give up what is under way, from any thread: whoever waits for it gets an error."""
        self._closing.set()
        for repository in self._repositories.values():
            repository.interrupt()

    def close(self) -> None:
        """Remove the directories. What was fetched stays in the cache."""
        self.stop()
        self._downloads.shutdown(cancel_futures=True)
        for repository in self._repositories.values():
            repository.close()


class _Repository:
    def __init__(
        self,
        url: RemoteUrl,
        cache_directory: Path,
        environ: Mapping[str, str],
        clock: Callable[[], int],
        downloads: ThreadPoolExecutor,
        closing: threading.Event,
    ) -> None:
        self._url = url
        self._clock = clock
        self._downloads = downloads
        self._closing = closing
        self._turn = threading.Lock()
        open_source: OpenSource | None = doors.load(doors.REPOSITORY_SOURCES, url.scheme)
        if open_source is None:
            text = f"model repository '{url}': no plug-in that is installed reads {url.scheme}://"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        try:
            self._cache = Cache(cache_directory / url.folder_name)
            self._cache.sweep_views()
            view = View(self._cache)
        except OSError as error:
            text = f"cannot use the cache of remote repositories {cache_directory}: {error.strerror}"
            raise InferenceError(ErrorCode.INTERNAL, text) from None
        self.copy = LocalCopy(view)
        self._view = view
        try:
            self._source = open_source(url, SourceTools(environ, downloads, view.staging, closing.is_set))
        except Exception as error:
            self.copy.close()
            text = str(error) if isinstance(error, ValueError) else self._said(error)
            raise InferenceError(ErrorCode.INVALID_ARG, f"model repository '{url}': {text}") from None

    def show(self) -> list[str]:
        # Nobody who wants to see the names waits until large files have come: what has gone is then seen the next time.
        is_alone = self._turn.acquire(blocking=False)
        try:
            self._show(is_alone)
        except Closing:
            return []
        except Exception as error:
            return [self._unreadable(self._said(error))]
        finally:
            if is_alone:
                self._turn.release()
        return []

    def _show(self, is_alone: bool) -> None:
        if self._url.is_archive and not is_alone:
            return  # its names are known when it has come
        names = self._source.names()
        for name in filter(is_model_name, names):
            try:
                self.copy.show(name)
            except OSError as error:
                logger.warning("cannot show model '%s' of %s: %s", name, self._url, error.strerror)
        if is_alone:
            self._remove_all_but(names)

    def refresh(self, result: Refreshed) -> None:
        try:
            with self._turn, self._locked():
                models = self._source.models()
                fetching = {name: self._fetch(name, model) for name, model in sorted(models.items())}
                for name, futures in fetching.items():
                    try:
                        self._update(name, models[name], futures)
                    except PollError as error:
                        result.models[name] = error.detail
                self._remove_all_but(models)
                self._cache.sweep(
                    {
                        content_key(name, path, file.identity)
                        for name, model in models.items()
                        for path, file in model.files.items()
                    }
                )
        except Closing:
            result.repositories.append(self._unreadable("the server is stopping"))
        except Exception as error:
            result.repositories.append(self._unreadable(self._said(error)))

    def refresh_model(self, name: str) -> None:
        try:
            with self._turn, self._locked():
                model = self._source.model(name)
                if model is None:
                    self._remove(name)
                else:
                    self._update(name, model, self._fetch(name, model))
                files = model.files if model is not None else {}
                self._cache.sweep({content_key(name, path, file.identity) for path, file in files.items()}, model=name)
        except PollError:
            raise
        except Closing:
            raise PollError("the server is stopping") from None
        except Exception as error:
            raise PollError(self._unreadable(self._said(error))) from None

    def interrupt(self) -> None:
        try:
            self._source.interrupt()
        except Exception as error:
            logger.info("interrupting %s: %s", self._url, self._said(error))

    def close(self) -> None:
        self.copy.close()
        try:
            self._source.close()
        except Exception as error:
            logger.info("closing %s: %s", self._url, self._said(error))

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return self._cache.locked(lambda: self._closing.wait(_LOCK_CHECK_S))

    def _unreadable(self, why: str) -> str:
        return f"failed to poll model repository '{self._url}': {why}"

    def _said(self, error: Exception) -> str:
        """The text of *error*. What no source should raise is logged: it may be a plug-in's, and must harm nothing else."""
        if isinstance(error, (SourceError, OSError)):
            return str(error)
        logger.error("the source of model repository '%s' failed", self._url, exc_info=error)
        return redact(f"{type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------ one model

    def _fetch(self, name: str, model: RemoteModel) -> dict[str, Future[Path]]:
        """Begin to fetch what the copy of the model lacks; the contents by path."""
        if model.problem:
            return {}
        futures: dict[str, Future[Path]] = {}
        for path in self.copy.changed_files(name, model):
            key = content_key(name, path, model.files[path].identity)
            known = self._cache.find(key)
            if known is not None:
                futures[path] = Future()
                futures[path].set_result(known)
            else:
                futures[path] = self._downloads.submit(self._download, key, model.files[path])
        return futures

    def _download(self, key: str, file: RemoteFile) -> Path:
        if self._closing.is_set():
            raise Closing
        staged = self._view.new_path()
        try:
            self._source.fetch(file, staged, self._closing.is_set)
            # The time of a change is that of its arrival: what a web server calls its time may lie behind.
            os.utime(staged)
            return self._cache.add(key, staged)
        finally:
            staged.unlink(missing_ok=True)

    def _update(self, name: str, model: RemoteModel, fetching: Mapping[str, Future[Path]]) -> None:
        """Wait for what is fetched, and change the copy. Raises PollError, nothing is changed then, and Closing."""
        began_ns = self._clock()
        if model.problem:
            raise PollError(f"cannot copy model '{name}' of {self._url}: {model.problem}")
        wait(fetching.values())
        try:
            contents = {path: future.result() for path, future in fetching.items()}
            has_changed = self.copy.update(name, model, contents)
        except Closing:
            raise
        except Exception as error:
            why = _why(error) if isinstance(error, OSError) else self._said(error)
            raise PollError(f"cannot copy model '{name}' of {self._url}: {why}") from None
        if has_changed:
            logger.info(
                "copied '%s' of %s: %d of %d files, %d bytes, in %.1f s",
                name,
                self._url,
                len(contents),
                len(model.files),
                sum(path.stat().st_size for path in contents.values()),
                (self._clock() - began_ns) / 1e9,
            )

    def _remove_all_but(self, names: Collection[str]) -> None:
        for name in os.listdir(self.copy.root):
            if name not in names:
                self._remove(name)

    def _remove(self, name: str) -> None:
        if self.copy.has(name):
            logger.info("'%s' is no longer in %s", name, self._url)
        self.copy.remove(name)


def _why(error: OSError) -> str:
    """The reason of *error*. Of a whole tree shutil tells every file that it failed for; the first says enough."""
    return str(error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error)


def _users_cache(environ: Mapping[str, str]) -> Path:
    own = environ.get("XDG_CACHE_HOME", "")
    # The specification of base directories has relative ones ignored.
    return Path(own if os.path.isabs(own) else os.path.expanduser("~/.cache")) / "pytriton-lite" / "repositories"
