"""The one task of a process that serves nothing: let the model complete its configuration (model API, section 3.1).

The model's module runs here as it will in its instances, in an interpreter of its own: nothing that it sets is seen by them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.forked import no_second_worker
from pytriton_lite.worker.loader import ModelFiles, find_class, import_model, install_pb_utils
from pytriton_lite.worker.model_config import ModelConfig
from pytriton_lite.worker.process import BLS_ONLY_IN_EXECUTE, Host, Phase, install
from pytriton_lite.worker.request import InferenceRequest
from pytriton_lite.worker.server_log import ServerLog
from pytriton_lite.worker.tracebacks import describe


class AutoCompleteHost(Host):
    """What ``auto_complete_config`` may use: the log. Other models, metrics and the repository are out of its reach."""

    phase = Phase.AUTO_COMPLETE

    def __init__(self, log: ServerLog) -> None:
        self._log = log

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        self._log.log(level, filename, line, text)

    def ask(self, operation: str, **arguments: Any) -> NoReturn:
        raise TritonModelException(f"'{operation}' is not available in auto_complete_config")

    def call(self, request: InferenceRequest, *, decoupled: bool) -> NoReturn:
        raise TritonModelException(BLS_ONLY_IN_EXECUTE)


def complete(files: ModelFiles, *, name: str, model_config: str, host: Host) -> bytes:
    """Run the model's ``auto_complete_config`` over *model_config*, JSON text; the frame that tells how it ended.

    COMPLETED carries the configuration that the method returned, or null where the model has no such method.
    """
    install(host)
    try:
        install_pb_utils(str(files.version_dir))
        with no_second_worker():
            model_class = find_class(import_model(files))
            completed = ask_model(model_class, name=name, model_config=model_config)
        return messages.completed_frame(completed)
    except InferenceError as error:
        return messages.failed_frame(error.code, error.message)
    except BaseException as error:  # user code: SystemExit is an answer, too
        return messages.failed_frame(ErrorCode.INTERNAL, describe(error))


def ask_model(model_class: Any, *, name: str, model_config: str) -> dict[str, Any] | None:
    """The configuration that the class's ``auto_complete_config`` returned, None where it has no such method.

    Raises InferenceError(INTERNAL) where it returned something else; whatever it raises passes through.
    """
    if not hasattr(model_class, "auto_complete_config"):
        return None
    completed = model_class.auto_complete_config(ModelConfig(model_config))
    if not isinstance(completed, ModelConfig):
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"auto_complete_config function in model '{name}' must return a valid pb.ModelConfig object.",
        )
    return completed.as_dict()
