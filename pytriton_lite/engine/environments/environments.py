"""The door: which environment a model asks for, and that it is made once, kept as long as it is of use, and removed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Hashable, Mapping
from pathlib import Path
from typing import TypeVar, cast

from pytriton_lite.config.model_config import ModelConfig, instance_names
from pytriton_lite.config.parameters import EXECUTION_ENV_PATH, REQUIREMENTS
from pytriton_lite.core.cores import usable_cores
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.engine.environments.activation import activated, ask, check_interpreter, fix_prefixes
from pytriton_lite.engine.environments.build import is_complete
from pytriton_lite.engine.environments.commands import run
from pytriton_lite.engine.environments.environment import Environment, environment_in, parameter_variables
from pytriton_lite.engine.environments.requirements import requirements_key
from pytriton_lite.engine.environments.threads import too_many_threads
from pytriton_lite.repository.scratch import Scratch, sweep

logger = logging.getLogger(__name__)

_ARCHIVE_SCRIPT = Path(__file__).resolve().parent / "archive.py"
_BUILD_SCRIPT = Path(__file__).resolve().parent / "build.py"

_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_REQUIREMENTS = "requirements.txt"
_STUB = "triton_python_backend_stub"
"""Triton's program beside config.pbtxt that brings another Python (model API, 1.1)."""

_LONGEST_S = 3600.0
"""Limit of unpacking or building an environment: hours would be a download that is stuck."""

_Key = tuple[object, ...]

Result = TypeVar("Result")


class Environments:
    """The environments of one server's models. Its owner closes it after the last worker has ended."""

    def __init__(
        self, executable: str, *, allow_requirements: bool = False, cache_directory: Path | None = None
    ) -> None:
        """*executable* runs the models that bring no interpreter. *cache_directory* None is below the user's own."""
        self._executable = executable
        self._allow_requirements = allow_requirements
        self._cache_directory = cache_directory
        self._variables: Mapping[str, str] = dict(os.environ)
        self._scratch: Scratch | None = None
        self._at_work: dict[_Key, asyncio.Task[object]] = {}
        self._made: dict[_Key, object] = {}
        self._users: dict[Hashable, _Key] = {}
        """The archive that each user of one runs in, or will when it is unpacked: a key of `_made`."""
        self._removals: set[asyncio.Task[None]] = set()
        self._said: set[str] = set()

    @property
    def own(self) -> Environment:
        """The environment of a process that is no model's: what runs models that bring nothing, with no variable of theirs."""
        return Environment(self._executable, self._variables)

    async def prepare(self, config: ModelConfig, model_dir: Path, *, user: Hashable) -> Environment:
        """The environment that the workers of a model run in, made now if nobody else has.

        What was unpacked for *user*, which asks once, stays until `release`, which must follow whatever this raises.
        Raises InferenceError, the reason of a failed load (model API, 7.1).
        """
        own = parameter_variables(config.name, config.parameters)
        if await in_daemon_thread((model_dir / _STUB).exists):
            self._warn_once(
                f"model '{config.name}' has a {_STUB}, which is not used: an environment with another Python, named by the "
                "parameter EXECUTION_ENV_PATH, takes its place"
            )
        try:
            folder = await self._folder(config, model_dir, user)
            if folder is None:
                return Environment(self._executable, {**self._variables, **own})
            variables = await self._examine(folder)
        except OSError as error:
            raise InferenceError(
                ErrorCode.INTERNAL, f"the environment of model '{config.name}' cannot be prepared: {error}"
            ) from error
        return environment_in(folder, {**variables, **own})

    def hand_over(self, user: Hashable, to: Hashable) -> None:
        """Have *to* need, in the place of *user*, what was unpacked for that."""
        if user in self._users:
            self._users[to] = self._users.pop(user)

    def release(self, user: Hashable) -> None:
        """*user* has no process any more that runs in what was unpacked for it. The last user's is removed."""
        key = self._users.pop(user, None)
        if key is None or key in self._users.values():
            return
        # Before the removal: whoever asks from now on has it unpacked anew, into another folder.
        folder = cast("Path | None", self._made.pop(key, None))
        if folder is None:
            return  # it could not be unpacked
        for examined in [each for each in self._made if folder in each]:
            del self._made[examined]
        removing = in_daemon_thread(shutil.rmtree, folder, ignore_errors=True, name="removal")
        removal = asyncio.get_running_loop().create_task(removing)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    def advise(self, config: ModelConfig, environment: Environment, *, is_bound: bool = False) -> None:
        """Warn, once, of a model whose instances, processes all, will run more threads than there are cores.

        *config* has its instance groups decided. *is_bound*: its workers are forked from a program.
        """
        if config.instance_sharing is InstanceSharing.THREADS:
            return  # one process, so one pool of OpenBLAS's
        advice = too_many_threads(
            config.name,
            instances=sum(not plan.passive for plan in instance_names(config)),
            variables=environment.variables,
            cores=usable_cores(),
            is_bound=is_bound,
        )
        if advice:
            self._warn_once(advice)

    async def close(self) -> None:
        """End what is being made, and remove what was unpacked and not released."""
        tasks = list(self._at_work.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._removals:
            await asyncio.wait(self._removals)
        if self._scratch is not None:
            scratch, self._scratch = self._scratch, None
            await asyncio.to_thread(scratch.remove)

    # ------------------------------------------------------------------------------------------ which

    async def _folder(self, config: ModelConfig, model_dir: Path, user: Hashable) -> Path | None:
        """Where the environment that a model brings is; None if it brings none."""
        text, named = _named(config)
        if text:
            return await self._given(_expand(text, model_dir), user)
        requirements = await self._requirements(config.name, named, model_dir)
        return None if requirements is None else await self._built(config.name, requirements)

    async def _given(self, text: str, user: Hashable) -> Path:
        logger.info("Using Python execution env %s", text)
        path, is_folder = await in_daemon_thread(_canonical, text)
        if not is_folder:
            made_at = await in_daemon_thread(_time_of, path)
            # Before it is there: another user's end, which may come before we hear that it is, does not remove it then.
            self._users[user] = key = ("archive", path, made_at)
            path = await self._once(key, lambda: self._unpack(path))
        await in_daemon_thread(_check_script, path / "bin" / "activate")
        return path

    async def _requirements(self, model: str, named: str, model_dir: Path) -> Path | None:
        """The file that the model's environment is to be built from; None if there is none, or none may be built."""
        path = model_dir / (named or _REQUIREMENTS)
        if named:
            await in_daemon_thread(_check_requirements, model, named, path, is_allowed=self._allow_requirements)
        if not await in_daemon_thread(path.is_file):
            return None
        if not self._allow_requirements:
            self._warn_once(
                f"model '{model}' has a requirements.txt, which is not installed: it runs with the server's own packages. "
                "--allow-requirements=true builds an environment of its own for it."
            )
            return None
        return Path(os.path.normpath(path))  # noqa: ASYNC240  (asks no disk)

    def _warn_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    # ------------------------------------------------------------------------------------------ making

    async def _once(self, key: _Key, make: Callable[[], Coroutine[None, None, Result]]) -> Result:
        """What *make* gave for *key*, now or at an earlier call. Failures are not kept."""

        async def keep() -> None:
            # In the task, which leaves `_at_work` behind that: whoever asks between its end and ours finds one or the other.
            self._made[key] = await make()

        if key not in self._made:
            await self._together(key, keep)
        return cast(Result, self._made[key])

    async def _together(self, key: _Key, make: Callable[[], Coroutine[None, None, Result]]) -> Result:
        """What *make* gives for *key*, together with everybody who asks meanwhile.

        Who is cancelled leaves the work to the others, and to the next who ask.
        """
        task = self._at_work.get(key)
        if task is None:
            task = self._at_work[key] = asyncio.ensure_future(make())
            task.add_done_callback(lambda done: self._is_done(key, done))
        await asyncio.wait([task])
        if task.cancelled():
            raise InferenceError(ErrorCode.UNAVAILABLE, "Server is stopping, environments are no longer prepared")
        try:
            return cast(Result, task.result())
        finally:
            del task  # as in `in_daemon_thread`

    def _is_done(self, key: _Key, task: asyncio.Task[object]) -> None:
        del self._at_work[key]
        if not task.cancelled():
            task.exception()  # seen: whoever asked may have gone

    async def _unpack(self, archive: Path) -> Path:
        if self._scratch is None:
            sweeping = asyncio.to_thread(sweep)
            self._scratch = Scratch()
            await sweeping
        folder = self._scratch.new_folder()
        try:
            await self._unpack_into(folder, archive)
        except InferenceError:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        return folder

    async def _unpack_into(self, folder: Path, archive: Path) -> None:
        logger.info("unpacking %s", archive)
        command = [sys.executable, "-I", str(_ARCHIVE_SCRIPT), str(archive), str(folder)]
        ended = await run(command, variables=self._variables, timeout_s=_LONGEST_S)
        if ended.status != 0:
            why = ended.last_lines[-1] if ended.status == 1 and ended.last_lines else f"it {ended.explain(_LONGEST_S)}"
            raise InferenceError(ErrorCode.INTERNAL, f"the environment {archive} cannot be unpacked: {why}")
        await fix_prefixes(folder, environment_in(folder, self._variables))

    async def _built(self, model: str, requirements: Path) -> Path:
        base = await self._once(("base",), lambda: ask(Environment(self._executable, self._variables)))
        key = await asyncio.to_thread(
            requirements_key,
            requirements,
            python=self._executable,
            version=base.version_text,
            platform=sysconfig.get_platform(),
        )
        folder = self._cache() / key
        logger.info("model '%s': the environment of %s is %s", model, requirements, folder)
        if not await in_daemon_thread(is_complete, folder):
            await self._together(("build", key), lambda: self._build(folder, requirements))
        return folder

    async def _build(self, folder: Path, requirements: Path) -> None:
        logger.info("building the environment of %s", requirements)
        order = {
            "folder": str(folder),
            "requirements": str(requirements),
            "python": self._executable,
            "uv": shutil.which("uv"),
        }
        ended = await run(
            [sys.executable, "-I", str(_BUILD_SCRIPT), json.dumps(order)],
            variables=self._variables,
            timeout_s=_LONGEST_S,
            on_line=lambda line: logger.info("%s: %s", requirements, line),
        )
        if ended.status != 0:
            raise InferenceError(
                ErrorCode.INTERNAL,
                f"the environment of {requirements} cannot be built: the installer {ended.explain(_LONGEST_S)}",
            )

    def _cache(self) -> Path:
        if self._cache_directory is not None:
            return self._cache_directory.absolute()
        own = os.environ.get("XDG_CACHE_HOME", "")
        # The specification of base directories has relative ones ignored.
        return Path(own if os.path.isabs(own) else os.path.expanduser("~/.cache")) / "pytriton-lite" / "environments"

    async def _examine(self, folder: Path) -> Mapping[str, str]:
        """The server's variables as the script of the environment in *folder* changes them. Its interpreter is fit."""
        programs = folder / "bin"
        script_ns = await in_daemon_thread(_time_of, programs / "activate")
        python_ns = await in_daemon_thread(_time_of, programs / "python")

        async def examine() -> Mapping[str, str]:
            variables = await activated(folder, self._variables)
            await check_interpreter(environment_in(folder, variables))
            return variables

        return await self._once(("examined", folder, script_ns, python_ns), examine)


def check_environment(config: ModelConfig, model_dir: Path, *, allow_requirements: bool) -> None:
    """What can be said of a model's environment without making it: that what the parameters name is there.

    Raises InferenceError, as `Environments.prepare` does.
    """
    parameter_variables(config.name, config.parameters)
    text, named = _named(config)
    if text:
        path, is_folder = _canonical(_expand(text, model_dir))
        if is_folder:
            _check_script(path / "bin" / "activate")
    if named:
        _check_requirements(config.name, named, model_dir / named, is_allowed=allow_requirements)


def _named(config: ModelConfig) -> tuple[str, str]:
    """The environment and the list of requirements that the parameters name, of which there is one at most; "" for none."""
    text = EXECUTION_ENV_PATH.read(config.parameters) or ""
    named = REQUIREMENTS.read(config.parameters) or ""
    if text and named:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"model '{config.name}' has both parameters EXECUTION_ENV_PATH and REQUIREMENTS, expected one of them",
        )
    return text, named


def _check_requirements(model: str, named: str, path: Path, *, is_allowed: bool) -> None:
    if not is_allowed:
        raise InferenceError(
            ErrorCode.UNSUPPORTED,
            f"model '{model}' asks with its parameter REQUIREMENTS for an environment of its own, and this server is "
            "not allowed to build any; --allow-requirements=true allows it",
        )
    if not path.is_file():
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"parameter REQUIREMENTS of model '{model}' names '{named}', and there is no file {path}",
        )


def _expand(text: str, model_dir: Path) -> str:
    return str(model_dir) + text[len(_MODEL_DIRECTORY) :] if text.startswith(_MODEL_DIRECTORY) else text


def _canonical(text: str) -> tuple[Path, bool]:
    """The path without links, and whether it is a folder. Triton has one text for whatever may be wrong with it."""
    try:
        path = Path(os.path.realpath(text, strict=True))
        return path, path.is_dir()
    except (OSError, ValueError):
        raise InferenceError(ErrorCode.INTERNAL, f"Failed to get the canonical path for {text}.") from None


def _check_script(path: Path) -> None:
    if not path.exists():
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"Path {path} does not exist. The Python environment should contain an 'activate' script.",
        )


def _time_of(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
