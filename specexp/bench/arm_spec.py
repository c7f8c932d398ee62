"""What is to be measured, and who may run it: the contract between those who compose arms and those who answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from specexp.artifacts.fingerprint import Fingerprint
    from specexp.bench.arm import Arm
    from specexp.config import Config
    from specexp.config.schema import Generation
    from specexp.core.latency import LatencyProfile
    from specexp.core.parts import Parts
    from specexp.core.verifier import Verifier
    from specexp.scheduling import Execution


@dataclass(frozen=True)
class ArmSpec:
    """What an arm is composed of; models, dtype and device are its backend's.

    Attributes:
        name: Name of the arm in every table.
        generation: How much to generate.
        parts: The four parts. None composes new ones as ``config`` says; of a loop that is not ours the verifier alone
            counts.
        config: The composition, for parts that are not made yet and for what preloading writes down.
        execution: How several sequences are decoded for every prompt; None decodes one at a time.
        latency: Profile by which seconds are modelled, where it says so; None measures them.
        reference: Name of a loop that decodes instead of ours, e.g. ``hf-assisted``; None for ours.
        settings: Arguments of that loop.
        engine: Somebody else's engine that decodes instead of ours, as ``specexp.engines`` knows it; None for ours.
        preload: The same composition over the prompts that its parts learn from before the run; None for none.
        controller_state: What the controller knows from other prompts, that every run starts from.
        where: File and key that an error names; empty leaves errors as they are.
    """

    name: str
    generation: Generation
    parts: Parts | None = None
    config: Config | None = None
    execution: Execution | None = None
    latency: LatencyProfile | None = None
    reference: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Any = None
    preload: Config | None = None
    controller_state: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


class Backend(Protocol):
    """What answers for the models of an arm: models themselves, a recording, or another engine."""

    @property
    def runs_models(self) -> bool:
        """Whether any prompt can be decoded, and logits and times of models can be looked at."""

    @property
    def references(self) -> Collection[str]:
        """Names of the loops other than ours that it can run."""

    @property
    def draft(self) -> Any:
        """What a draft model among the parts has its answers from; None where there is none."""

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the target; None where there is none."""

    def arm(self, spec: ArmSpec) -> Arm:
        """The arm of a specification whose parts are made.

        Raises:
            ValueError: The parts do not go together, or with the models.
        """

    def fingerprint(self) -> Fingerprint:
        """Of target and tokenizer, for an artifact."""

    def provenance(self, arm: Arm) -> dict[str, Any]:
        """What an artifact says of where an arm's figures come from, beside device and versions."""


def can_follow(verifier: Verifier) -> bool:
    """Whether Hugging Face's loops can emit a verifier's tokens: they do not depend on drafts, and take no noise, or
    noise that can be added to its scores.
    """
    keyed = not verifier.noise_temperature or hasattr(verifier, "processed_scores")
    return verifier.sampling == "deterministic" and keyed


def why_not(reference: str, verifier: Verifier) -> str:
    """Why a loop of Hugging Face's cannot follow a verifier."""
    return (
        f"{reference} cannot follow {type(verifier).__name__}: Hugging Face's arms emit the same tokens only with "
        "Greedy or KeyedSampling"
    )
