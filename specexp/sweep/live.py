"""A study whose models decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.artifacts.environment import device_name
from specexp.artifacts.fingerprint import Fingerprint, fingerprint
from specexp.bench.arm import Arm, EngineArm
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.experiment import check_prompts
from specexp.bench.groups import Groups
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.config import ConfigError
from specexp.core.decode import Decoder
from specexp.core.language_model import LanguageModel
from specexp.core.parts import DeterministicVerifier, Parts
from specexp.sweep.backend import StudyBackend
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.latency import LatencyProfile
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.pairs.pair import ModelPair
    from specexp.scheduling import Execution


class LiveStudyBackend(StudyBackend):
    """Models, loaded once for all candidates.

    Args:
        study_config: The experiment.
        pair: Its models.
        latency: The profile by which seconds are modelled; None where they are measured.

    Raises:
        ConfigError: Several sequences are decoded for every prompt, and a latency profile is to model their seconds.
        TaskFileError: A task's file cannot be read.
    """

    def __init__(self, study_config: StudyConfig, pair: ModelPair, latency: LatencyProfile | None) -> None:
        super().__init__(study_config, latency)
        self.pair = pair
        self.model = LanguageModel(pair.target)
        self._groups = self._multi_sequence() if study_config.multi_sequence else None

    def _multi_sequence(self) -> Groups:
        """What all arms of several sequences have in common."""
        config = self.study_config.config
        if self.latency is not None:
            raise ConfigError(
                f"{config.source_of(('latency',))}: latency {self.latency.name!r} cannot model the "
                "seconds of several sequences decoded for a prompt: leave it out"
            )
        groups = Groups(config, self.pair, self.model)
        groups.problems = self.study_config.problems()
        if not groups.problems:
            self.samples = 1
        return groups

    @property
    @override
    def device(self) -> str:
        return str(self.pair.target.device)

    @property
    @override
    def clock(self) -> str:
        return device_name(self.study_config.config.get("pair.device"))

    @property
    @override
    def draft(self) -> PreTrainedModel | None:
        return self.pair.draft

    @property
    @override
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.pair.target, self.pair.tokenizer)

    @override
    def load_data(self, stage: str | None) -> PromptDataModule:
        data = self.study_config.data(self.pair.tokenizer, stage)
        check_prompts(self.study_config.config, data.prompts, self.pair)
        return data

    @override
    def arm(self, name: str, parts: Parts, execution: Execution | None) -> EngineArm:
        if self._groups is not None:
            assert execution is not None
            return self._groups.arm(name, execution, parts)
        generation = self.study_config.generation()
        return DecoderArm(
            name, Decoder(self.model, *parts), self.pair.tokenizer, generation, latency=self.latency
        )

    @override
    def learn(self, arm: EngineArm, prompt: Prompt) -> None:
        if self._groups is None:
            super().learn(arm, prompt)
        else:  # one sequence after the other, so that what is learned does not depend on timing
            arm.decode_observed(prompt, 0, _ignore)

    @override
    def plain_seconds_per_token(self, prompt: Prompt) -> float | None:
        """By the latency profile, for answers of full length, where a token is a plain step."""
        if self.latency is None:
            return None
        size = len(prompt.token_ids)
        wanted = min(self.study_config.generation().max_new_tokens, self.model.context_limit - size)
        tokens = max(wanted, 1)
        return self.latency.plain_seconds(size, tokens) / tokens

    @override
    def other_arms(self) -> Sequence[Arm]:
        """Hugging Face's plain ``generate``, where it can draw what the verifier draws, and takes one sequence."""
        verifier = self.study_config.verifier()
        if self._groups is not None or not isinstance(verifier, DeterministicVerifier):
            return ()
        target, tokenizer = self.pair.target, self.pair.tokenizer
        generation = self.study_config.generation()
        return [
            HuggingFaceArm(
                "hf-eager", "hf-eager", target, tokenizer, generation, verifier, latency=self.latency
            )
        ]


def _ignore(outcome: Outcome) -> None:
    return None
