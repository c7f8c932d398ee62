"""Specifications of arms, the interface of the backends that run them, and the function that makes an arm."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts import Fingerprint, kind_for
from specexp.base.messages import first_line, restated
from specexp.bench.arm import Arm, LearningArm
from specexp.config import ConfigError, Generation
from specexp.config.artifacts import save_artifact
from specexp.core.parts import Parts
from specexp.data import LoadedPrompts, PromptSetError

if TYPE_CHECKING:
    from specexp.core.contracts import Verifier
    from specexp.core.latency import LatencyProfile
    from specexp.models.pair import ModelPair
    from specexp.scheduling import Execution


@dataclass(frozen=True)
class Preload:
    """The prompts that an arm learns from before the run, and where its drafter's state is saved."""

    data: LoadedPrompts
    parts: Mapping[str, Any]  # specifications of the arm's parts, by family
    folder: Path  # the folder of the artifacts, one for each arm
    made_by: Mapping[str, Any]  # provenance of the artifact


@dataclass(frozen=True)
class ArmSpec:
    """The specification of an arm. Models, dtype and device come from the backend."""

    name: str
    generation: Generation
    parts: Parts  # a loop other than ours uses only the verifier
    # how several sequences are decoded for each prompt; None decodes one at a time
    execution: Execution | None = None
    latency: LatencyProfile | None = None  # profile that models seconds; None if they are measured
    reference: str | None = None  # name of a loop that decodes instead of ours, e.g. ``hf-assisted``
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Any = None  # an engine from ``specexp.engines`` that decodes instead of our loop
    preload: Preload | None = None
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
    """Make an arm: preload its parts if requested, and connect them to the models.

    Raises ConfigError if parts cannot be preloaded, or are incompatible with each other or the models. If the
    specification has no ``where``, it raises ValueError instead.
    """
    with errors_at(spec.where):
        return backend.arm(spec if spec.preload is None else _preloaded(spec, spec.preload, backend))


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Raise a ValueError in the block again as a ConfigError that begins with ``where``, unless this is empty."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        if not where:
            raise
        raise ConfigError(f"{where}: {first_line(error)}") from error


def _preloaded(spec: ArmSpec, preload: Preload, backend: Backend) -> ArmSpec:
    """Decode an arm's ``preload`` prompts; return a specification that starts with the state learned from them.

    The drafter's state is saved as an artifact, ``<output>/<name>/preloaded/<arm>``, and the drafter is loaded from
    there. Inner drafters keep their own state policy.
    """
    parts = spec.parts
    drafter, controller = parts.drafter, parts.controller
    kept = kind_for("drafter", preload.parts) if drafter is not None and drafter.shares_state else None
    if kept is None and not controller.state_dict():
        raise ConfigError(
            f"{spec.where}.preload needs a drafter that keeps its state (state 'carry'), such as TokenRecycling "
            "or PhraseCache, or a controller that learns from prompts"
        )
    with restated(PromptSetError, lambda error: ConfigError(f"{spec.where}.preload: {error}")):
        prompts = preload.data.prompts
    teacher = backend.arm(replace(spec, execution=None, latency=None))
    assert isinstance(teacher, LearningArm)
    teacher.learn(prompts)
    if kept is not None and drafter is not None:
        payloads = kept.payloads_of(preload.parts, {"learned": {"drafter": drafter.state_dict()}}) or {}
        folder = preload.folder / re.sub(r"[/\\:]|^\.+", "_", spec.name)
        loaded = save_artifact(folder, kept.kind, payloads, preload.made_by, backend.fingerprint()).drafter
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
