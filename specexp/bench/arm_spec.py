"""Specifications of arms, the interface of the backends that run them, and the function that makes an arm."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specexp.artifacts import Fingerprint, kind_for
from specexp.base.messages import first_line, restated
from specexp.bench.arm import Arm, LearningArm
from specexp.config import Config, ConfigError, Generation, build_data, build_parts
from specexp.config.artifacts import save_artifact
from specexp.core.parts import Parts
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.core.contracts import Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution


@dataclass(frozen=True)
class ArmSpec:
    """The specification of an arm. Models, dtype and device come from the backend."""

    name: str
    generation: Generation
    # the four parts, composed from ``config`` if None; a loop other than ours uses only the verifier
    parts: Parts | None = None
    # the configuration that defines ``parts``; preloading stores it in the artifact
    config: Config | None = None
    # how several sequences are decoded for each prompt; None decodes one at a time
    execution: Execution | None = None
    latency: LatencyProfile | None = None  # profile that models seconds; None if they are measured
    reference: str | None = None  # name of a loop that decodes instead of ours, e.g. ``hf-assisted``
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Any = None  # an engine from ``specexp.engines`` that decodes instead of our loop
    # the same configuration, with the prompts that the parts learn from before the run
    preload: Config | None = None
    # controller state learned on other prompts, from which every run starts
    controller_state: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""  # file and key, as a prefix for error messages; empty for no prefix


class Backend(ABC):
    """Makes the arms of an experiment, which run on loaded models, on a recording or in an engine."""

    # the models that run, so that any prompt can be decoded, with logits and times; None if none run
    pair: ModelPair | None = None
    references: Collection[str] = ()  # names of loops other than ours that it can run
    tokenizer: Any = None  # the target's tokenizer

    @property
    @abstractmethod
    def draft(self) -> Any:
        """The draft model for drafters that need one, or None."""

    @abstractmethod
    def arm(self, spec: ArmSpec) -> Arm:
        """Return the arm for a specification. Raises ValueError if its parts and the models are incompatible."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the target and tokenizer, for an artifact."""

    @abstractmethod
    def provenance(self, arm: Arm) -> dict[str, Any]:
        """Return the origin of an arm's figures, which an artifact records in addition to device and versions."""


def make_arm(spec: ArmSpec, backend: Backend) -> Arm:
    """Make an arm: compose its parts, preload them if requested, and connect them to the models.

    Raises ConfigError if parts cannot be made or preloaded, or are incompatible with each other or the models. If the
    specification has no ``where``, it raises ValueError instead.
    """
    try:
        if spec.parts is None:
            if spec.config is None:
                raise ValueError("a specification must have parts, or a configuration that composes them")
            spec = replace(spec, parts=build_parts(spec.config, backend.draft))
        if spec.preload is not None and spec.parts is not None and spec.config is not None:
            spec = _preloaded(spec, spec.preload, spec.parts, spec.config, backend)
        return backend.arm(spec)
    except ConfigError:
        raise
    except ValueError as error:
        if not spec.where:
            raise
        raise ConfigError(f"{spec.where}: {first_line(error)}") from error


def _preloaded(spec: ArmSpec, preload: Config, parts: Parts, config: Config, backend: Backend) -> ArmSpec:
    """Decode an arm's ``preload`` prompts; return a specification that starts with the state learned from them.

    The drafter's state is saved as an artifact, ``<output>/<name>/preloaded/<arm>``, and the drafter is loaded from
    there. Inner drafters keep their own state policy.
    """
    drafter, controller = parts.drafter, parts.controller
    composition = {family: config.get(family) for family in Parts._fields}
    kept = kind_for("drafter", composition) if drafter is not None and drafter.shares_state else None
    if kept is None and not controller.state_dict():
        raise ConfigError(
            f"{spec.where}.preload needs a drafter that keeps its state (state 'carry'), such as TokenRecycling "
            "or PhraseCache, or a controller that learns from prompts"
        )
    data = build_data(preload, backend.tokenizer)
    with restated(PromptSetError, lambda error: ConfigError(f"{spec.where}.preload: {error}")):
        prompts = data.prompts
    teacher = backend.arm(replace(spec, execution=None, latency=None))
    assert isinstance(teacher, LearningArm)
    teacher.learn(prompts)
    if kept is not None and drafter is not None:
        study, arm = config.name, re.sub(r"[/\\:]|^\.+", "_", spec.name)
        payloads = kept.payloads_of(composition, {"learned": {"drafter": drafter.state_dict()}}) or {}
        folder = config.output / study / "preloaded" / arm
        made_by = {"study": study, "config": preload.to_dict()}
        loaded = save_artifact(folder, kept.kind, payloads, made_by, backend.fingerprint()).drafter
        loaded.use_draft_model(backend.draft)
        parts = parts._replace(drafter=loaded)
    return replace(spec, parts=parts, preload=None, controller_state=deepcopy(controller.state_dict()))


def can_follow(verifier: Verifier) -> bool:
    """Return whether Hugging Face's loops can produce a verifier's tokens.

    The tokens must not depend on drafts. If they depend on noise, it must be possible to add the noise to the scores.
    """
    return verifier.sampling == "deterministic" and (not verifier.noise_temperature or verifier.keyed_scores)


def why_not(reference: str, verifier: Verifier) -> str:
    """Return the error message for a Hugging Face loop that cannot produce a verifier's tokens."""
    return (
        f"{reference} cannot follow {type(verifier).__name__}: Hugging Face's loops emit our loop's tokens only with "
        "Greedy or KeyedSampling"
    )
