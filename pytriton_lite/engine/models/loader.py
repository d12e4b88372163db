"""Loading one model: its versions beside those that serve, then the traffic in one step (repository.md, sections 3 and 6).

A new generation of a version that is not READY can be seen at once. One that replaces a READY version is loaded in the
background, and takes its place when every version of the load is there; a failure leaves the old ones serving.

An ensemble needs nothing but its models, so it is made in the same step in which one of them is replaced or unloaded: no
request meets an ensemble that was checked against other models than those that serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pytriton_lite.config.effects import NO_TENSORS, NOT_BATCHED, batches_nothing, in_vain
from pytriton_lite.config.ensemble_plan import EnsemblePlan, plan_ensemble
from pytriton_lite.config.hints import MEANINGLESS, hint_for, misspelt_parameter
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.models.catalog import EnsembleDefinition, Known, Loaded, Model, Models
from pytriton_lite.engine.models.factory import VersionFactory
from pytriton_lite.engine.models.generations import Generations
from pytriton_lite.engine.models.load_failure import advice, explain_failure
from pytriton_lite.engine.models.turns import Turn
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.repository.dependencies import check_composing, circle_error, find_circle
from pytriton_lite.repository.index import ModelId
from pytriton_lite.repository.reader import Polled
from pytriton_lite.repository.version_policy import missing_version_text, no_version_error

logger = logging.getLogger(__name__)

Composing = Mapping[ModelId, tuple[ModelId, ...]]


class LoadFailed(InferenceError):
    """A model that could be read does not load. The ``detail`` is without the model's name."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(ErrorCode.INVALID_ARG, f"load failed for model '{name}': {detail}\n")
        self.detail = detail


See = Callable[[ServedVersion], None]
"""Hears of a generation that is to be seen from now on."""


def _pass_over(served: ServedVersion) -> None:
    """While a version is READY the one that is to replace it is not seen."""


class ModelLoader:
    """Moves models from generation to generation. Its caller sees to it that each is in one hand at a time."""

    def __init__(
        self,
        models: Models,
        generations: Generations,
        factory: VersionFactory,
        *,
        attempts: int,
        explains: bool = False,
    ) -> None:
        """*attempts* is how often a version is tried that does not load. *explains*: the author reads the log."""
        self._models = models
        self._generations = generations
        self._factory = factory
        self._attempts = attempts
        self._explains = explains

    async def load(
        self, known: Known, polled: Polled, turn: Turn, *, planned: Composing, later: Collection[ModelId]
    ) -> None:
        """Serve what *polled* says, and make the ensembles anew that *known* is a part of, while it has its *turn*.

        *planned* is what the ensembles of this operation are made of; those in *later* have not had their turn yet.
        Raises LoadFailed; what was served before is then served on.
        """
        try:
            self._check_selection(known.id, polled)
            if polled.config.ensemble is None:
                await self._load_workers(known, polled, turn)
            else:
                await self._load_ensemble(known, polled, planned)
        except LoadFailed as error:
            known.failure = error.detail
            raise
        else:
            known.failure = ""
            known.loaded = _loaded(polled)
            logger.info("successfully loaded '%s'", known.id)
        finally:
            # A failure, too, can have ended something: a generation whose workers kept dying.
            self._refresh_dependents(known.id.name, later=later)

    def unload(self, model: ModelId) -> None:
        """Retire every version, and the ensembles that cannot be without it. Requests inside them go on."""
        self._models.forget(model)
        self._retire_all(model)
        self._refresh_dependents(model.name)

    def _check_selection(self, model: ModelId, polled: Polled) -> None:
        for version in polled.selection.missing:
            logger.error("%s", missing_version_text(str(model), version))
        if not polled.selection.selected:
            self._models.see(model)  # it keeps the server from being ready
            text = no_version_error(str(model)).message
            logger.error("failed to load '%s': %s", model, text)
            raise LoadFailed(model.name, text)

    # ------------------------------------------------------------------------------------------ with workers

    async def _load_workers(self, known: Known, polled: Polled, turn: Turn) -> None:
        model = self._models.see(known.id)
        if not model.loaded:
            _is_no_ensemble(known)
        _report_fields(known.id, polled.config)
        kept: list[ServedVersion] = []
        fresh: dict[int, ServedVersion] = {}
        loads: list[Coroutine[Any, Any, None]] = []
        for version in polled.selection.selected:
            logger.info("loading: %s:%d", known.id, version)
            current = model.versions.get(version)
            is_ready = current is not None and current.state is VersionState.READY
            if current is not None and is_ready and _is_unchanged(known, polled, version):
                kept.append(current)
                continue
            # While a version is READY the new generation is not seen.
            see = _pass_over if is_ready else partial(self._models.show, model)
            if current is not None and current.is_recovering:
                self._generations.retire(current)
            loads.append(self._start(version, polled, turn, fresh, see))
        async with AsyncExitStack() as adoptions:
            changes: list[Callable[[], None]] = []
            try:
                for unexpected in await asyncio.gather(*loads, return_exceptions=True):
                    if unexpected is not None:
                        raise unexpected
                failures = {
                    version: served.reason
                    for version, served in sorted(fresh.items())
                    if served.state is not VersionState.LOADING
                }
                if not failures and known.loaded is not None and known.loaded.placement != polled.placement:
                    changes, failures = await self._prepare(kept, polled, adoptions)
            except BaseException:
                self._drop(fresh, self._generations.give_up)
                raise
            if failures:
                # All versions of a load become READY, or change, or none does (repository.md, section 3, step 5).
                self._drop(fresh, self._generations.retire)
                raise self._failed(known.id, failures)
            for change in changes:
                change()
            self._serve(model, kept, fresh)
        _is_no_ensemble(known)

    async def _start(
        self,
        version: int,
        polled: Polled,
        turn: Turn,
        fresh: dict[int, ServedVersion],
        see: See,
    ) -> None:
        """Load one version into *fresh*, and show it to *see*: LOADING when all went well, UNAVAILABLE if not."""
        for _ in range(self._attempts):
            async with turn.slot():
                served = await self._attempt(version, polled, fresh, see)
            if served.state is not VersionState.UNAVAILABLE:
                return
            if self._explains:
                told = explain_failure(served.reason, polled.directory.path)
                logger.error("failed to load '%s' version %d", served.id, version, extra={"explanation": told})
            else:
                told = advice(served.reason, polled.directory.path)
                _report_failure(served.id, version, served.reason, f"  {told}" if told else None)

    async def _attempt(self, version: int, polled: Polled, fresh: dict[int, ServedVersion], see: See) -> ServedVersion:
        directory = polled.directory.path
        # What is seen while the model is asked how its configuration goes on.
        fresh[version] = incomplete = self._factory.make_incomplete(
            polled.config, version=version, namespace=polled.id.namespace
        )
        see(incomplete)
        incomplete.begin_load()
        try:
            config, environment, backend = await self._factory.complete(
                polled.config, version=version, directory=directory, user=incomplete, at_step=incomplete.at_step
            )
        except InferenceError as error:
            self._generations.release(incomplete)
            incomplete.fail_load(error)
            return incomplete
        _report_completed(polled.id, config, directory)
        fresh[version] = served = self._factory.make(
            config, version=version, directory=directory, namespace=polled.id.namespace, backend=backend
        )
        self._factory.hand_over(incomplete, served)
        see(served)
        self._factory.equip(served, directory)
        if polled.files is not None:
            self._generations.hold_files(served, polled.files)
        served.begin_load(incomplete.load_began_ns)
        await served.load(environment)
        if served.state is VersionState.UNAVAILABLE:
            self._generations.release(served)
        return served

    async def _prepare(
        self, kept: list[ServedVersion], polled: Polled, adoptions: AsyncExitStack
    ) -> tuple[list[Callable[[], None]], dict[int, str]]:
        """Get what serves ready to go on with other instances (repository.md, 3.1), until *adoptions* are left.

        What changes to them, and the reasons of failures by version.
        """
        outcomes = await asyncio.gather(
            *(self._prepare_one(served, polled.config, adoptions) for served in kept), return_exceptions=True
        )
        changes: list[Callable[[], None]] = []
        failures: dict[int, str] = {}
        for served, outcome in zip(kept, outcomes):
            if isinstance(outcome, BaseException):
                raise outcome
            if isinstance(outcome, str):
                failures[served.version] = outcome
            else:
                changes.append(outcome)
        return changes, failures

    async def _prepare_one(
        self, served: ServedVersion, config: ModelConfig, adoptions: AsyncExitStack
    ) -> Callable[[], None] | str:
        reason = ""
        for _ in range(self._attempts):
            try:
                regrouped = self._factory.regrouped(served.config, config)
                return await adoptions.enter_async_context(served.adopting(regrouped))
            except InferenceError as error:
                reason = f"{error.code.label}: {error.message}"
                _report_failure(served.id, served.version, reason)
        return reason

    def _failed(self, model: ModelId, reasons: Mapping[int, str]) -> LoadFailed:
        if not self._explains:  # its versions' lines have said it all, and --watch says what became of it
            logger.error("failed to load '%s'", model)
        parts = (f"version {version} is at UNAVAILABLE state: {reason};" for version, reason in reasons.items())
        return LoadFailed(model.name, "".join(parts))

    def _serve(self, model: Model, kept: Collection[ServedVersion], fresh: Mapping[int, ServedVersion]) -> None:
        """Move the traffic, in one step; then retire what lost it."""
        before = model.loaded
        for served in fresh.values():
            served.open()
            self._models.show(model, served)
        still_served = {*kept, *fresh.values()}
        for served in before:
            if served not in still_served and served.is_loaded:
                self._generations.retire(served)

    def _drop(self, fresh: Mapping[int, ServedVersion], end: Callable[[ServedVersion], None]) -> None:
        """*end* the generations of a load that failed, those that have not failed themselves."""
        for served in fresh.values():
            if served.state is VersionState.LOADING:
                end(served)
            else:
                self._generations.release(served)

    def _retire_all(self, model: ModelId) -> None:
        for served in self._models.serving(model):
            self._generations.retire(served)

    # ------------------------------------------------------------------------------------------ ensembles

    async def _load_ensemble(self, known: Known, polled: Polled, planned: Composing) -> None:
        incomplete: InferenceError | None = None
        config = polled.config
        try:
            completed = await self._factory.complete(
                polled.config, version=polled.selection.selected[-1], directory=polled.directory.path, user=polled
            )
            config = completed.config
        except InferenceError as error:
            # Its traceback refers to this frame, which refers to it: the files of the load would wait for a collection.
            incomplete = error.with_traceback(None)
        definition = EnsembleDefinition(polled, config)
        try:
            plan = self._plan(known.id, definition, planned)
        except InferenceError as error:
            logger.error("%s: %s", error.code.label, error.message)
            self._refuse(known, definition, error)
            raise LoadFailed(known.id.name, error.message) from None
        _report_fields(known.id, config)
        if incomplete is not None:
            raise self._show_failure(known, definition, plan, incomplete)
        self._make(known, definition, plan)

    def _plan(self, model: ModelId, definition: EnsembleDefinition, planned: Composing) -> EnsemblePlan:
        """How the ensemble runs with the models that serve now. Raises InferenceError(INVALID_ARG)."""
        steps = definition.steps
        composing = {**self._models.composing(), **planned}
        parts = self._models.parts(model, steps)
        composing[model] = (*planned.get(model, ()), *parts)
        circle = find_circle(model, composing)
        if circle:
            raise circle_error(circle)
        check_composing(str(model), steps, lambda name: self._models.composing_model(name, model.namespace))
        return plan_ensemble(
            definition.config,
            lambda name, version: self._models.composing_config(name, version, model.namespace),
            {part.name: part.namespace for part in parts},
        )

    def _make(self, known: Known, definition: EnsembleDefinition, plan: EnsemblePlan) -> None:
        """Serve the ensemble, in place of what it was."""
        fresh: dict[int, ServedVersion] = {}
        for version in definition.polled.selection.selected:
            logger.info("loading: %s:%d", known.id, version)
            # There is nothing to wait for in the `load` of an ensemble, so it can be left out.
            fresh[version] = served = self._make_version(known.id, definition, plan, version)
            self._factory.equip(served, definition.polled.directory.path)
            served.begin_load()
        self._serve(self._models.see(known.id), (), fresh)
        known.ensemble = definition
        known.problem = ""
        known.made_of = self._generations_of(known.id, definition)

    def _make_version(
        self, model: ModelId, definition: EnsembleDefinition, plan: EnsemblePlan, version: int
    ) -> ServedVersion:
        directory = definition.polled.directory.path
        return self._factory.make(
            plan.config, version=version, directory=directory, namespace=model.namespace, plan=plan
        )

    def _generations_of(self, model: ModelId, definition: EnsembleDefinition) -> frozenset[ServedVersion]:
        parts = self._models.parts(model, definition.steps)
        return frozenset(served for part in parts for served in self._models.serving(part))

    def _refuse(self, known: Known, definition: EnsembleDefinition, error: InferenceError) -> None:
        """What serves serves on; where nothing does, the ensemble waits for its models."""
        if self._models.serving(known.id):
            self._refresh(known)
            return
        known.ensemble = definition
        known.problem = error.message
        known.loaded = _loaded(definition.polled)

    def _show_failure(
        self, known: Known, definition: EnsembleDefinition, plan: EnsemblePlan, error: InferenceError
    ) -> LoadFailed:
        """The index has the reason, unless the version serves."""
        model = self._models.see(known.id)
        reason = f"{error.code.label}: {error.message}"
        for version in definition.polled.selection.selected:
            logger.info("loading: %s:%d", known.id, version)
            _report_failure(known.id, version, reason)
            current = model.versions.get(version)
            if current is None or not current.is_loaded:
                failed = self._make_version(known.id, definition, plan, version)
                self._models.show(model, failed)
                failed.begin_load()
                failed.fail_load(error)
        return self._failed(known.id, dict.fromkeys(definition.polled.selection.selected, reason))

    def refresh(self, model: ModelId, *, later: Collection[ModelId]) -> None:
        """Look again at *model*, whose turn has come and which is not loaded, and then at the ensembles that it is in."""
        known = self._models.known.get(model)
        if known is not None:
            self._refresh(known)
            self._refresh_dependents(model.name, later=later)

    def _refresh_dependents(self, name: str, *, later: Collection[ModelId] = ()) -> None:
        """Look again at the ensembles that models called *name* are in, but for those whose turn comes *later*."""
        for known in self._models.dependents_of(name):
            if known.id not in later:
                self._refresh(known)

    def _refresh(self, known: Known) -> None:
        """Make an ensemble anew where its models have changed, or unload it where it cannot be without one that is gone."""
        definition = known.ensemble
        if definition is None:
            return
        serving = self._models.serving(known.id)
        try:
            plan = self._plan(known.id, definition, {})
        except InferenceError as error:
            if serving or known.problem != error.message:
                logger.error("%s: %s", error.code.label, error.message)
            known.problem = error.message
            self._retire_all(known.id)
            return
        if not serving or known.made_of != self._generations_of(known.id, definition):
            self._make(known, definition, plan)
            logger.info("successfully loaded '%s'", known.id)


def _is_no_ensemble(known: Known) -> None:
    known.ensemble = None
    known.problem = ""
    known.made_of = frozenset()


def _loaded(polled: Polled) -> Loaded:
    return Loaded(polled.times, polled.comparable_config, polled.placement, polled.selection.selected)


def _is_unchanged(known: Known, polled: Polled, version: int) -> bool:
    """Whether the generation that serves *version* would be loaded from the same files and the same configuration."""
    loaded = known.loaded
    return (
        loaded is not None
        and not polled.came_with_request
        and version in loaded.times.version_ns
        and polled.times.version_ns[version] <= loaded.times.version_ns[version]
        and polled.comparable_config == loaded.config
    )


def _report_completed(model: ModelId, config: ModelConfig, directory: Path) -> None:
    """Warn of what the model's own code could have put right."""
    if config.has_no_tensors:
        logger.warning("model '%s': %s (%s)", model, NO_TENSORS, advice(NO_TENSORS, directory))
    if batches_nothing(config.message):
        logger.warning("model '%s': %s (%s)", model, NOT_BATCHED, hint_for(NOT_BATCHED))


def _report_failure(model: ModelId, version: int, reason: str, explanation: str | None = None) -> None:
    fields = {"model": model.name, "version": version, "explanation": explanation}
    logger.error("failed to load '%s' version %d: %s", model, version, reason, extra=fields)


def _report_fields(model: ModelId, config: ModelConfig) -> None:
    unused = [f"field '{path}' has no effect for Python models" for path in config.without_effect]
    for text in (*unused, *(text for _, text in in_vain(config.message))):
        hint = hint_for(text)
        logger.warning("model '%s': %s%s", model, text, f" ({hint})" if hint else "")
    for key in sorted(config.parameters):
        near = misspelt_parameter(key)
        if near:
            logger.warning("model '%s': %s (did you mean %s?)", model, MEANINGLESS.format(key), near)
    if config.sequence_batching is not None:
        for text in config.sequence_batching.repeated_states:
            logger.warning("model '%s': %s", model, text)
    for family in config.unknown_metric_families:
        logger.warning(
            "model '%s': Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.",
            model,
            family,
        )
