"""Arms before they are made: their specification, the backend that runs them, and how one becomes the other."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts import kind_for
from specexp.config import ConfigError, build_data, build_parts
from specexp.config.artifacts import save_artifact
from specexp.core.messages import first_line
from specexp.core.parts import Parts
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.artifacts.fingerprint import Fingerprint
    from specexp.bench.arm import Arm
    from specexp.config import Config
    from specexp.config.schema import Generation
    from specexp.core.contracts import Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.scheduling import Execution


@dataclass(frozen=True)
class ArmSpec:
    """The composition of an arm; models, dtype and device are its backend's."""

    name: str
    generation: Generation
    # the four parts, composed from ``config`` if None; a loop other than ours uses only the verifier
    parts: Parts | None = None
    # the composition of ``parts``; preloading writes it into its artifact
    config: Config | None = None
    # how several sequences are decoded for every prompt; None decodes one at a time
    execution: Execution | None = None
    latency: LatencyProfile | None = None  # the profile that models seconds; None measures them
    reference: str | None = None  # name of a loop that decodes instead of ours, e.g. ``hf-assisted``
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Any = None  # another engine that decodes instead of ours, as ``specexp.engines`` defines it
    # the same composition with the prompts that its parts learn from before the run
    preload: Config | None = None
    # state of the controller from other prompts, with which every run starts
    controller_state: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""  # file and key for errors; empty leaves errors as they are


class Backend(ABC):
    """Runs arms: models themselves, a recording, or another engine."""

    runs_models = True  # whether any prompt can be decoded, and logits and times of models can be read
    references: Collection[str] = ()  # names of the loops other than ours that it can run
    tokenizer: Any = None  # of the target

    @property
    @abstractmethod
    def draft(self) -> Any:
        """The draft model of drafters that need one, or None."""

    @abstractmethod
    def arm(self, spec: ArmSpec) -> Arm:
        """Return the arm of a specification; raises ValueError if its parts do not go together or with the models."""

    @abstractmethod
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of target and tokenizer, for an artifact."""

    @abstractmethod
    def provenance(self, arm: Arm) -> dict[str, Any]:
        """Return the origin of an arm's figures, for an artifact, besides device and versions."""


def make_arm(spec: ArmSpec, backend: Backend) -> Arm:
    """Make an arm: compose its parts, preload them if requested, and give it the models.

    Raises ConfigError if parts cannot be made, do not go together or with the models, or cannot learn; for a
    specification without ``where`` it is a ValueError.
    """
    try:
        if spec.parts is None:
            if spec.config is None:
                raise ValueError("a specification needs parts, or a configuration that composes them")
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
    """Decode an arm's ``preload`` prompts, and let it start from the learned state of drafter and controller.

    The drafter's state becomes an artifact, ``<output>/<name>/preloaded/<arm>``, and its parts are built from that;
    drafters inside it keep their own state policy.
    """
    drafter, controller = parts.drafter, parts.controller
    composition = {family: config.get(family) for family in Parts._fields}
    kept = kind_for("drafter", composition) if drafter is not None and drafter.shares_state else None
    if kept is None and not controller.state_dict():
        raise ConfigError(
            f"{spec.where}.preload needs a drafter that carries what it learns (state 'carry'), such as TokenRecycling "
            "or PhraseCache, or a controller that learns from the prompts"
        )
    data = build_data(preload, backend.tokenizer)
    try:
        data.setup("test")
    except PromptSetError as error:
        raise ConfigError(f"{spec.where}.preload: {error}") from error
    teacher = backend.arm(replace(spec, execution=None, latency=None))
    for prompt in data.prompts:
        teacher.decode(prompt)
    if kept is not None and drafter is not None:
        study, arm = config.get("name"), re.sub(r"[/\\:]|^\.+", "_", spec.name)
        payloads = kept.payloads_of(composition, {"learned": {"drafter": drafter.state_dict()}}) or {}
        folder = Path(config.get("output")) / study / "preloaded" / arm
        made_by = {"study": study, "config": preload.to_dict()}
        loaded = save_artifact(folder, kept.kind, payloads, made_by, backend.fingerprint()).drafter
        loaded.use_draft_model(backend.draft)
        parts = parts._replace(drafter=loaded)
    return replace(spec, parts=parts, preload=None, controller_state=deepcopy(controller.state_dict()))


def can_follow(verifier: Verifier) -> bool:
    """Return whether Hugging Face's loops can emit a verifier's tokens.

    The tokens must not depend on drafts, and take no noise, or noise that can be added to its scores.
    """
    return verifier.sampling == "deterministic" and (not verifier.noise_temperature or verifier.keyed_scores)


def why_not(reference: str, verifier: Verifier) -> str:
    """Return why a loop of Hugging Face's cannot follow a verifier."""
    return (
        f"{reference} cannot follow {type(verifier).__name__}: Hugging Face's arms emit the same tokens only with "
        "Greedy or KeyedSampling"
    )
