"""Every model of every repository, looked at as a server would look at it that loads them all."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytriton_lite.check.backend_file import ALLOW_PICKLE, BackendFile, read_backend_file
from pytriton_lite.check.findings import Finding, Severity
from pytriton_lite.check.model_file import Problem, read_model_file
from pytriton_lite.check.places import Place, place_of, places_of_all
from pytriton_lite.config.complete import BACKEND_FILE, PYTHON
from pytriton_lite.config.effects import NO_TENSORS, NOT_BATCHED, batches_nothing, in_vain, without_effect
from pytriton_lite.config.ensemble import EnsembleStep
from pytriton_lite.config.ensemble_plan import plan_ensemble
from pytriton_lite.config.errors import BrokenRule, cannot_look, cannot_open
from pytriton_lite.config.every_rule import (
    Surroundings,
    broken_after_completion,
    broken_samples,
    broken_while_loading,
    broken_while_polling,
)
from pytriton_lite.config.hints import MEANINGLESS, hint_for, misspelt_parameter
from pytriton_lite.config.instances import instances_of
from pytriton_lite.config.model_config import ModelConfig, config_path
from pytriton_lite.config.parameters import EXECUTION_ENV_PATH, REQUIREMENTS
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.config.text import ConfigText, read_config_text
from pytriton_lite.config.warm_up import sample_tensors
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.engine.environments import check_environment
from pytriton_lite.engine.models.load_failure import advice
from pytriton_lite.engine.serving.admission import Admission
from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.dependencies import (
    ComposingModel,
    check_composing,
    circle_error,
    find_circle,
    load_levels,
)
from pytriton_lite.repository.index import (
    ModelDirectory,
    ModelId,
    Notice,
    check_repositories,
    find_model,
    list_models,
    scan_repositories,
)
from pytriton_lite.repository.mistakes import advice_on_repository, is_model_folder
from pytriton_lite.repository.version_policy import missing_version_text, no_version_error, select_versions
from pytriton_lite.scheduling.rate_limit import Claim, RateLimiter, ResourceSize

_OWN_PYTHON = (EXECUTION_ENV_PATH, REQUIREMENTS)
_MAY_COMPLETE = "auto_complete_config of the model may still put it right"


@dataclass(frozen=True)
class Rules:
    """What a server is told that serves these repositories: as in ``Settings``, and what this machine has."""

    config_name: str = ""
    strict_config: bool = False
    namespacing: bool = False
    allow_requirements: bool = False
    backends: Mapping[str, Path] = field(default_factory=dict)
    allowing_pickles: Collection[str] = ()
    """The backends that may read files that are code."""
    gpu_ids: Sequence[int] = ()
    resources: Sequence[ResourceSize] | None = None
    """What the rate limiter has to give, as for `RateLimiter`; None without one."""


@dataclass
class _Model:
    """A model under examination. ``config`` is there when every rule for it alone was kept, and that of an ensemble when it
    could be read: its models are looked at in any case.
    """

    directory: ModelDirectory
    file: Path
    """What its configuration's findings are about: the file, or the directory where there is none."""
    places: Mapping[str, Place] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    config: ModelConfig | None = None
    versions: tuple[int, ...] = ()
    may_complete: bool = False
    """Whether its own code may have a say in its tensors."""

    @property
    def has_errors(self) -> bool:
        return any(finding.is_error for finding in self.findings)

    def add(self, text: str, field: str = "", *, severity: Severity = Severity.ERROR, hint: str = "") -> None:
        """A finding about *field* of the configuration."""
        line, column = place_of(field, self.places)
        hint = hint or advice(text, self.directory.path)
        self.findings.append(Finding(severity, self.directory.name, str(self.file), text, line, column, field, hint))

    def add_broken(self, broken: Iterable[BrokenRule], *, may_be_repaired: bool = False) -> bool:
        """A finding for each of *broken*; whether there was any."""
        found = list(broken)
        for rule in found:
            if may_be_repaired:
                self.add(rule.message, rule.field, severity=Severity.WARNING, hint=_MAY_COMPLETE)
            else:
                self.add(rule.message, rule.field)
        return bool(found)

    def add_about(self, file: Path, text: str, *, severity: Severity = Severity.ERROR) -> None:
        """A finding about another file, or a directory."""
        self.findings.append(Finding(severity, self.directory.name, str(file), text, hint=hint_for(text)))

    def add_in_model_file(self, path: Path, problems: Iterable[Problem], severity: Severity, hint: str = "") -> None:
        for problem in problems:
            self.findings.append(
                Finding(
                    severity,
                    self.directory.name,
                    str(path),
                    problem.text,
                    problem.line,
                    problem.column if problem.line else 0,
                    hint=hint or problem.hint,
                )
            )


def check(roots: Sequence[Path], rules: Rules) -> tuple[list[Finding], int]:
    """Everything that is found, in the order of repositories, models and places; and how many models there are."""
    findings: list[Finding] = []
    readable: list[Path] = []
    for root in dict.fromkeys(roots):
        try:
            check_repositories([root])
        except InferenceError as error:
            hint = advice_on_repository(root.absolute())
            findings.append(Finding(Severity.ERROR, "", str(root), error.message, hint=hint))
        else:
            readable.append(root)
    scan = scan_repositories(readable, namespaces={root: str(root) for root in readable} if rules.namespacing else None)
    twice = [directory for name in scan.duplicates for directory in find_model(readable, name)]
    models = [_check_alone(directory, rules) for directory in (*scan.models.values(), *twice)]
    for root in readable:
        findings += _check_root(root, is_empty=all(model.directory.repository != root for model in models))
    for model in models:
        if model.directory in twice:
            model.add_about(
                model.directory.path,
                f"failed to poll model '{model.directory.name}': not unique across all model repositories",
            )
    if rules.resources is not None:
        _check_resources(models, RateLimiter(rules.resources))
    _check_ensembles([model for model in models if model.directory not in twice])
    for model in sorted(models, key=lambda model: (roots.index(model.directory.repository), model.directory.name)):
        findings += sorted(model.findings, key=lambda finding: (finding.file, finding.line, finding.column))
    return findings, len(models)


def _check_root(root: Path, *, is_empty: bool) -> Iterator[Finding]:
    for notice in list_models([root]).notices:
        if notice.level >= logging.ERROR:
            yield Finding(Severity.ERROR, "", str(root), notice.text)
    if is_model_folder(root):
        yield Finding(
            Severity.WARNING,
            "",
            str(root),
            "each directory in here is taken for a model",
            hint=advice_on_repository(root.absolute()),
        )
    elif is_empty:
        yield Finding(Severity.WARNING, "", str(root), "there are no models", hint="each model is a directory in it")


# One model ----------------------------------------------------------------------------------------------------------


def _check_alone(directory: ModelDirectory, rules: Rules) -> _Model:
    model = _Model(directory, directory.path)
    _add_notices(model, directory.notices)
    try:
        model.file = config_path(directory.path, rules.config_name)
    except OSError as failure:
        model.add(cannot_look(failure))
        return model
    text = _read_text(model, rules)
    if text is None:
        return model
    model.places = text.places
    for error in text.errors:
        hint = hint_for(error.problem)
        model.findings.append(
            Finding(Severity.ERROR, directory.name, str(model.file), error.problem, error.line, error.column, "", hint)
        )
    if not text.errors:
        try:
            _check_message(model, text.message, rules)
        except OSError as error:  # no reason to check no other model
            model.add_about(directory.path, cannot_look(error))
    return model


def _add_notices(model: _Model, notices: Iterable[Notice]) -> None:
    for notice in notices:
        severity = Severity.ERROR if notice.level >= logging.ERROR else Severity.WARNING
        model.add_about(model.directory.path, notice.text, severity=severity)


def _read_text(model: _Model, rules: Rules) -> ConfigText | None:
    """The configuration as it is written; an empty one where there is no file and none is needed. None: it was reported."""
    try:
        text = read_regular_file(model.file).decode("utf-8", "surrogateescape")
    except FileNotFoundError as error:
        if not rules.strict_config:
            model.file = model.directory.path
            return ConfigText(model_config_pb.ModelConfig(), {})
        model.add(cannot_open(model.file, error))
    except OSError as error:
        model.add(cannot_open(model.file, error))
    else:
        return read_config_text(text, source=str(model.file))
    return None


def _check_message(model: _Model, message: model_config_pb.ModelConfig, rules: Rules) -> None:
    directory = model.directory
    written = copy.deepcopy(message)
    around = Surroundings(directory.path, directory.versions, rules.gpu_ids, rules.backends)
    if model.add_broken(broken_while_polling(message, around)):
        return
    _warn(model, written, message)
    _select_versions(model, message)
    is_broken = model.add_broken(broken_while_loading(message, around))
    model.may_complete = _check_code(model, message, rules) and not rules.strict_config
    is_broken |= model.add_broken(broken_after_completion(message, around), may_be_repaired=model.may_complete)
    model.add_broken(broken_samples(message, directory.path), may_be_repaired=model.may_complete)
    config = ModelConfig.from_message(message)
    if config.has_no_tensors and config.ensemble is None and not model.may_complete:
        model.add(NO_TENSORS, severity=Severity.WARNING)
    if batches_nothing(message) and not model.may_complete:
        model.add(NOT_BATCHED, "dynamic_batching", severity=Severity.WARNING)
    if is_broken and config.ensemble is None:
        return
    model.config = config
    if config.ensemble is None:
        _check_environment(model, config, rules)
        _check_warm_up(model, config)


def _warn(model: _Model, written: model_config_pb.ModelConfig, message: model_config_pb.ModelConfig) -> None:
    """What is taken and does nothing, or looks like a slip of the pen."""
    for path in without_effect(message):
        for where, _ in places_of_all(path, model.places):
            model.add(f"field '{where}' has no effect for Python models", where, severity=Severity.WARNING)
    for where, text in in_vain(message):
        model.add(text, where, severity=Severity.WARNING)
    config = ModelConfig.from_message(message)
    for family in config.unknown_metric_families:
        model.add(
            f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core.",
            "model_metrics",
            severity=Severity.WARNING,
        )
    if config.sequence_batching is not None:
        for text in config.sequence_batching.repeated_states:
            model.add(text, "sequence_batching.state", severity=Severity.WARNING)
    if written.instance_group and all(group.passive for group in written.instance_group):
        model.add(
            f"model '{config.name}' has only passive instances, which never execute",
            "instance_group",
            severity=Severity.WARNING,
        )
    for key in sorted(written.parameters):
        near = misspelt_parameter(key)
        if near:
            model.add(
                MEANINGLESS.format(key),
                f'parameters["{key}"]',
                severity=Severity.WARNING,
                hint=f"did you mean {near}?",
            )


def _select_versions(model: _Model, message: model_config_pb.ModelConfig) -> None:
    selection = select_versions(ModelConfig.from_message(message), model.directory.versions)
    for version in selection.missing:
        model.add(
            missing_version_text(message.name, version), "version_policy.specific.versions", severity=Severity.WARNING
        )
    if not selection.selected:
        model.add(no_version_error(message.name).message, "version_policy")
    model.versions = selection.selected


def _check_code(model: _Model, message: model_config_pb.ModelConfig, rules: Rules) -> bool:
    """Report what can be seen of the Python files. Whether a model of this configuration may complete it."""
    if message.HasField("ensemble_scheduling"):
        return False
    if message.backend in rules.backends:
        folder = rules.backends[message.backend]
        _check_files_of_backend(model, message, read_backend_file(folder), rules)
        return read_model_file(folder / BACKEND_FILE).completes
    if message.backend != PYTHON:
        return True
    name = message.default_model_filename
    if not name.endswith(".py"):
        model.add(f"Model name must end with '.py'. Model name is \"{name}\".", "default_model_filename")
        return True
    may_complete = [_check_code_of(model, message, version) for version in model.versions]
    return any(may_complete)


def _check_code_of(model: _Model, message: model_config_pb.ModelConfig, version: int) -> bool:
    path = model.directory.path / str(version) / message.default_model_filename
    if not path.is_file():
        model.add_about(path, f"Python model file not found in '{path}'")
        return True
    read = read_model_file(path)
    # Another Python may know what this one does not.
    has_own_python = _has_own_python(message)
    hint = "as the Python of this command reads it; the model has an environment of its own" if has_own_python else ""
    model.add_in_model_file(path, read.problems, Severity.WARNING if has_own_python else Severity.ERROR, hint)
    model.add_in_model_file(path, read.warnings, Severity.WARNING)
    model.add_in_model_file(path, read.notes, Severity.NOTE)
    return read.completes


def _check_files_of_backend(
    model: _Model, message: model_config_pb.ModelConfig, backend: BackendFile, rules: Rules
) -> None:
    names = [name for name in (message.default_model_filename, *backend.files) if name]
    for version in model.versions if backend.files else ():
        directory = model.directory.path / str(version)
        if not any((directory / name).exists() for name in names):
            expected = " or ".join(dict.fromkeys(names))
            model.add_about(directory, f"model file of backend '{message.backend}' not found, expected {expected}")
        elif message.backend not in rules.allowing_pickles:
            _check_for_pickles(model, message, directory, backend.safe_files)
    for name in () if _has_own_python(message) else backend.not_installed:
        model.add(
            f"backend '{message.backend}' imports {name}, which is not installed here",
            "backend",
            severity=Severity.WARNING,
        )


def _check_for_pickles(
    model: _Model, message: model_config_pb.ModelConfig, directory: Path, safe_files: Sequence[str]
) -> None:
    named = directory / message.default_model_filename
    files = [named] if named.is_file() else list(directory.iterdir())
    if safe_files and not any(file.match(pattern) for pattern in safe_files for file in files):
        model.add_about(
            directory,
            f"no {' or '.join(safe_files)} is here: where the model is a pickle, it is refused without "
            f"--backend-config={message.backend},{ALLOW_PICKLE}=true",
            severity=Severity.WARNING,
        )


def _has_own_python(message: model_config_pb.ModelConfig) -> bool:
    return any(parameter.name in message.parameters for parameter in _OWN_PYTHON)


def _check_environment(model: _Model, config: ModelConfig, rules: Rules) -> None:
    try:
        check_environment(config, model.directory.path, allow_requirements=rules.allow_requirements)
    except InferenceError as error:
        named = [parameter.place for parameter in _OWN_PYTHON if parameter.name in config.parameters]
        model.add(error.message, named[0] if len(named) == 1 else "parameters")


def _check_warm_up(model: _Model, config: ModelConfig) -> None:
    """Whether the samples that can be made are requests that the model takes."""
    if model.may_complete:
        return
    admission = Admission(config)
    executing = next((spec.name for spec in instances_of(config.instance_groups) if not spec.passive), None)
    numbers = (at for at, sample in enumerate(config.message.model_warmup) if sample.batch_size)
    for at, sample in zip(numbers, config.warm_up):
        where = f"model_warmup[{at}]"
        if sample.batch_size > max(1, config.max_batch_size) and executing is not None:
            model.add(
                f"failed to run warmup sample '{sample.name}': batch size {sample.batch_size} for '{executing}', max allowed "
                f"is {config.max_batch_size}; ",
                f"{where}.batch_size",
            )
        try:
            inputs, _ = sample_tensors(
                sample,
                declared=frozenset(config.inputs_by_name),
                has_batch_dimension=config.max_batch_size > 0,
                model_name=config.name,
                model_dir=model.directory.path,
            )
        except InferenceError:
            continue  # it has been told what is wrong
        try:
            admission.check(InferenceRequest(config.name, None, inputs=inputs))
        except InferenceError as error:
            model.add(error.message, where)


# Models together ----------------------------------------------------------------------------------------------------


def _check_resources(models: Iterable[_Model], limiter: RateLimiter) -> None:
    """Whether there is enough for each instance. Of two that take a resource for global and not, the later one is refused."""
    for model in models:
        if model.config is None or model.has_errors:
            continue
        claims: list[Claim] = []
        for at, group in enumerate(model.config.instance_groups):
            # One instance on each device stands for all of them.
            of_group = [Claim.of(spec) for spec in instances_of([replace(group, count=1)]) if not spec.passive]
            try:
                limiter.register(of_group)
            except InferenceError as error:
                model.add(error.message, f"instance_group[{at}].rate_limiter")
            else:
                claims += of_group
        if model.has_errors:  # none of its instances takes part
            for claim in claims:
                limiter.unregister(claim)


# Ensembles ----------------------------------------------------------------------------------------------------------


def _check_ensembles(models: Sequence[_Model]) -> None:
    """What ensembles make of other models: those that they are made of come first."""
    known = {model.directory.id: model for model in models}
    composing = {
        key: tuple(part.directory.id for part in _parts(model, known))
        for key, model in known.items()
        if _is_ensemble(model)
    }
    for level in load_levels(composing):
        for key in level:
            circle = find_circle(key, composing)
            if circle:
                known[key].add(circle_error(circle).message, "ensemble_scheduling")
            else:
                _check_ensemble(known[key], known)


def _is_ensemble(model: _Model) -> bool:
    return model.config is not None and model.config.ensemble is not None


def _parts(model: _Model, known: Mapping[ModelId, _Model]) -> Iterator[_Model]:
    if model.config is not None and model.config.ensemble is not None:
        for name in model.config.ensemble.models:
            part = _resolve(name, model.directory.namespace, known)
            if part is not None:
                yield part


def _resolve(name: str, namespace: str, known: Mapping[ModelId, _Model]) -> _Model | None:
    """The one that a step means by *name*: of the ensemble's own namespace, or the only one."""
    own = known.get(ModelId(namespace, name))
    if own is not None:
        return own
    found = [model for key, model in known.items() if key.name == name]
    return found[0] if len(found) == 1 else None


def _check_ensemble(model: _Model, known: Mapping[ModelId, _Model]) -> None:
    config, namespace = model.config, model.directory.namespace
    assert config is not None and config.ensemble is not None

    def describe(name: str) -> ComposingModel | None:
        part = _resolve(name, namespace, known)
        if part is None:
            return None
        failure = next((finding.text for finding in part.findings if finding.is_error), "")
        return ComposingModel(str(part.directory.id), () if failure else part.versions, failure=failure)

    is_whole = True
    for at, step in enumerate(config.ensemble.steps):
        try:
            check_composing(str(model.directory.id), replace(config.ensemble, steps=(step,)), describe)
        except InferenceError as error:
            is_whole = False
            model.add(error.message, f"ensemble_scheduling.step[{at}].{_named_in(error, step)}")
    if is_whole and not model.has_errors:
        _plan(model, config, known)


def _named_in(error: InferenceError, step: EnsembleStep) -> str:
    return "model_version" if f"required version {step.version} " in error.message else "model_name"


def _plan(model: _Model, config: ModelConfig, known: Mapping[ModelId, _Model]) -> None:
    parts = list(_parts(model, known))
    model.may_complete = any(part.may_complete for part in parts)
    if any(part.config is None for part in parts):
        return  # its tensors are known to its own code alone

    def find(name: str, version: int | None) -> ModelConfig | None:
        part = _resolve(name, model.directory.namespace, known)
        return None if part is None else part.config

    try:
        model.config = plan_ensemble(config, find).config
    except InferenceError as error:
        where = error.field if isinstance(error, BrokenRule) and error.field else "ensemble_scheduling"
        broken = BrokenRule(ErrorCode.INVALID_ARG, error.message, where)
        model.add_broken([broken], may_be_repaired=model.may_complete)
