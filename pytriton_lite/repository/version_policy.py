"""The choice of the versions on disk that are served (repository spec, section 1.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError


@dataclass(frozen=True)
class Selection:
    """``selected`` ascending; ``missing`` are versions that the policy names and that have no directory, ascending."""

    selected: tuple[int, ...]
    missing: tuple[int, ...] = ()


def select_versions(config: ModelConfig, existing: Iterable[int]) -> Selection:
    """Apply the version policy of *config* to the *existing* version directories. A policy without a choice is ``all``."""
    on_disk = sorted(set(existing))
    policy = config.message.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "latest":
        return Selection(tuple(on_disk[max(len(on_disk) - policy.latest.num_versions, 0) :]))
    if choice == "specific":
        listed = set(policy.specific.versions)
        return Selection(tuple(sorted(listed.intersection(on_disk))), tuple(sorted(listed.difference(on_disk))))
    return Selection(tuple(on_disk))


def no_version_error(model_name: str) -> InferenceError:
    """The error, of shape C, for a model whose selection is empty."""
    return InferenceError(
        ErrorCode.INVALID_ARG,
        f"at least one version must be available under the version policy of model '{model_name}'",
    )


def missing_version_text(model_name: str, version: int) -> str:
    """The log's line, at error level, for a version of `Selection.missing`."""
    return f"version {version} is specified for model '{model_name}', but the version directory is not present"
