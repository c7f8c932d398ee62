"""Who answers in a study: models that decode, or a recording of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm
from specexp.bench.arm_spec import ArmSpec, make_arm
from specexp.config import Config
from specexp.sweep.confirmed import Confirmed, Predicted
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import Backend
    from specexp.bench.equality import InFloat32
    from specexp.bench.record import PromptRecord
    from specexp.core.latency import LatencyProfile
    from specexp.core.parts import Parts
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.scheduling import Execution

EAGER = "hf-eager"


class StudyBackend(ABC):
    """What a study needs of whoever answers its prompts.

    Args:
        study_config: The experiment.
        backend: Makes the arms run.
        latency: The profile by which seconds are modelled; None where they are measured.

    Attributes:
        generation: How much is generated.
        samples: Continuations, or searches, of every prompt, one after the other; a group of sequences is one.
        tracks_trials: Whether a trial takes long enough for a W&B run of its own.
    """

    tracks_trials = True

    def __init__(self, study_config: StudyConfig, backend: Backend, latency: LatencyProfile | None) -> None:
        self.study_config = study_config
        self.backend = backend
        self.latency = latency
        self.generation = study_config.generation
        self.samples = self.generation.samples
        self._data: dict[str | None, PromptDataModule] = {}

    @property
    @abstractmethod
    def device(self) -> str:
        """Where the models run, or ran."""

    @abstractmethod
    def load_data(self, stage: str | None) -> PromptDataModule:
        """The prompts of the search, or of a stage, all of which can be answered.

        Raises:
            ConfigError: They cannot be read; one does not fit the target, or was not recorded.
        """

    @abstractmethod
    def plain_seconds_per_token(self, prompt: Prompt) -> float | None:
        """What plain decoding takes for a prompt; None where that must be measured."""

    def data(self, stage: str | None = None) -> PromptDataModule:
        """As :meth:`load_data`, but every stage is read once."""
        if stage not in self._data:
            self._data[stage] = self.load_data(stage)
        return self._data[stage]

    @cached_property
    def warm_start_prompts(self) -> Sequence[Prompt]:
        """Prompts that every candidate's drafter and controller learn from before it is measured."""
        return self.data("learn").prompts if self.study_config.config.get("sweep.learn") else ()

    def compose(self, name: str, config: Config) -> EngineArm:
        """A candidate in its initial state; one that keeps something running is to be closed.

        Args:
            name: Name of the arm.
            config: The candidate's configuration.

        Raises:
            ValueError: The parts cannot be made, or do not go together or with the target.
        """
        return self._arm(name, *self.study_config.compose(config, self.backend.draft))

    def plain(self) -> EngineArm:
        """Plain decoding."""
        return self._arm("engine", *self.study_config.compose_plain())

    def other_arms(self) -> list[Arm]:
        """Hugging Face's plain ``generate``, where it can draw what the verifier draws, and takes one sequence."""
        plain, execution = self.study_config.compose_plain()
        follows = plain.verifier.sampling == "deterministic" and execution is None
        if not follows or EAGER not in self.backend.references:
            return []
        spec = ArmSpec(EAGER, self.generation, plain, latency=self.latency, reference=EAGER)
        return [make_arm(spec, self.backend)]

    def _arm(self, name: str, parts: Parts, execution: Execution | None) -> EngineArm:
        spec = ArmSpec(name, self.generation, parts, execution=execution, latency=self.latency)
        arm = make_arm(spec, self.backend)
        assert isinstance(arm, EngineArm)
        return arm

    def warm_started(self, arm: EngineArm) -> EngineArm:
        """The arm, having learned from :attr:`warm_start_prompts`, from where every later reset of it starts."""
        if self.warm_start_prompts:
            arm.reset()
            self._teach(arm, self.warm_start_prompts)
        return arm

    def deployed(self, arm: EngineArm) -> EngineArm:
        """The arm as a deployment of it starts: what it carries from prompt to prompt it has learned on the search's
        prompts too, and every later reset of it returns to that.
        """
        self.warm_started(arm)
        if arm.parts.keeps_learning:
            self._teach(arm, self.data().prompts)
        return arm

    def _teach(self, arm: EngineArm, prompts: Sequence[Prompt]) -> None:
        """Let an arm learn from prompts, and remember what it knows then."""
        for prompt in prompts:
            if self.study_config.multi_sequence:
                # One sequence after the other, so that what is learned does not depend on timing.
                arm.decode_observed(prompt, 0, lambda outcome: None)
            else:
                arm.decode(prompt)
        arm.remember()

    def decode(self, arm: Arm, prompt: Prompt) -> list[PromptRecord]:
        """Decode every continuation of a prompt."""
        return [arm.decode(prompt, sample) for sample in range(self.samples)]

    def attributes_of(self, arm: EngineArm) -> dict[str, Any]:
        """Attributes of a candidate that tell what its figures are."""
        return {} if self.latency is None else {"clock": self.latency.label}

    def look_up(self, arm: EngineArm) -> tuple[list[float], dict[str, float]] | None:
        """Seconds per token of each of the search's prompts, and metrics of all, where no step need be taken."""
        return None

    @property
    def confirming(self) -> StudyBackend:
        """Who answers when the best few are confirmed."""
        return self

    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        """Outputs of a confirmation that part from plain decoding's at near ties, compared once more in float32; None
        where none part, or where no models decode.
        """
        return None

    def predict(self, overrides: Mapping[str, Any] | None) -> Predicted | None:
        """Predict a candidate, or plain decoding without overrides, on the confirmation's prompts, or on the search's
        if those were not recorded; None if this backend confirms its own trials.
        """
        return None

    def sentences(self, winner: Confirmed) -> list[str]:
        """What is to be said of a confirmed winner because of who answered."""
        return []

    def exported_metrics(self, best: Confirmed, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of an artifact.

        Args:
            best: What is exported.
            metrics: What its confirmation gave.
        """
        return dict(metrics)

    def provenance(self, best: Confirmed) -> dict[str, Any]:
        """What an artifact says of where its figures come from, beside study and command."""
        return {}
