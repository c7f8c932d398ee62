"""The bench of real decoding: models and prompts loaded once, candidates measured one after the other."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from lightning import LightningModule, Trainer

from specexp.bench.arm import EngineArm
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.execution_arm import ExecutionArm
from specexp.bench.groups import Groups
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.bench.record import write_records
from specexp.config import ConfigError
from specexp.core.decoder import Decoder
from specexp.core.language_model import LanguageModel
from specexp.core.parts import DeterministicVerifier, Parts
from specexp.data import Prompt
from specexp.scheduling import Serial, SerialSpeculative
from specexp.sweep.bench import CompositionBench, metrics_of
from specexp.sweep.composition import Composed, Composition
from specexp.sweep.drift import Reference
from specexp.sweep.objective import Candidate, Measurement, Report
from specexp.sweep.study import digest_of
from specexp.sweep.trial_module import TrialModule, decode_all, seconds_per_token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specexp.core.latency import LatencyProfile
    from specexp.data.prompts import PromptDataModule
    from specexp.pairs.pair import ModelPair

WARM_UP_TOKENS = 8


class LiveBench(CompositionBench):
    """Measures candidates against AR on the prompts of the search, or models their seconds where a latency profile is
    given.

    Args:
        composition: what candidates are overrides of.
        pair: the models.
        data: the prompts of the search, in one fixed order.
        folder: of the study: keeps AR's seconds and every trial's records.
        latency: by which seconds are modelled; measured if None.

    Raises:
        ConfigError: several sequences are decoded for every prompt and a latency profile is to model their seconds.
        PromptSetError: a task's file cannot be read.

    Attributes:
        samples: continuations, or searches, of every prompt, one after the other; a group is one.
        model: the target, wrapped once for all candidates.
        groups: what arms of several sequences have in common; None where one sequence is decoded at a time.
    """

    def __init__(
        self,
        composition: Composition,
        pair: ModelPair,
        data: PromptDataModule,
        folder: Path,
        latency: LatencyProfile | None,
    ) -> None:
        super().__init__(composition, data, folder, latency)
        self.pair = pair
        self.model = LanguageModel(pair.target)
        self.groups = self._groups() if composition.grouped else None
        if self.groups is not None and not self.groups.problems:
            self.samples = 1
        plain = Parts(None, None, composition.verifier())
        self.engine = self.arm("engine", Composed(plain, Serial()))
        self._reference_path = folder / "reference.json"
        self._workload = digest_of(composition.workload())

    @property
    def draft(self) -> PreTrainedModel | None:
        """The pair's."""
        return self.pair.draft

    def _groups(self) -> Groups:
        """What all arms have in common."""
        if self.latency is not None:
            raise ConfigError(
                f"{self.composition.config.source_of(('latency',))}: latency {self.latency.name!r} cannot model the "
                "seconds of several sequences decoded for a prompt: leave it out"
            )
        groups = Groups(self.composition.config, self.pair, self.model)
        groups.problems = self.composition.problems()
        return groups

    def taught(self, arm: EngineArm) -> EngineArm:
        """The arm, having learned from :attr:`lessons`, from where every later reset of it starts."""
        if self.groups is None or not self.lessons:
            return super().taught(arm)
        assert isinstance(arm, ExecutionArm)
        arm.close()
        # One after the other, so that what is learned does not depend on timing; the parts are the arm's own.
        one_by_one = self.teach(self.groups.arm("lessons", SerialSpeculative(), arm.parts))
        strategy = one_by_one.parts
        arm.controller_state = deepcopy(strategy.controller.state_dict())
        arm.drafter_state = {} if strategy.drafter is None else deepcopy(strategy.drafter.state_dict())
        return arm

    def arm(self, name: str, composed: Composed) -> EngineArm:
        """A candidate as an arm; one that decodes several sequences is to be closed.

        Raises:
            ValueError: the parts do not go together or with the target.
        """
        if self.groups is not None:
            assert composed.execution is not None
            return self.groups.arm(name, composed.execution, composed.parts)
        decoder = Decoder(self.model, *composed.parts)
        return DecoderArm(name, decoder, self.pair.tokenizer, self.generation, latency=self.latency)

    def eager(self) -> HuggingFaceArm | None:
        """Hugging Face's plain ``generate``; None where it cannot draw again what the verifier draws, or groups are
        decoded, of which it takes one sequence only.
        """
        verifier = self.composition.verifier()
        if self.groups is not None or not isinstance(verifier, DeterministicVerifier):
            return None
        target, tokenizer = self.pair.target, self.pair.tokenizer
        return HuggingFaceArm(
            "hf-eager", "hf-eager", target, tokenizer, self.generation, verifier, latency=self.latency
        )

    def load_reference(self) -> bool:
        """Take AR's seconds that an earlier process of this study measured, or those of the latency profile for answers
        of full length, where a token is a plain step; whether there are any.
        """
        if self.latency is not None:
            self.reference = Reference({prompt.prompt_id: self._modelled(prompt) for prompt in self.prompts})
            return True
        kept = Reference.load(self._reference_path, self._workload)
        if kept is None or any(prompt.prompt_id not in kept.seconds_per_token for prompt in self.prompts):
            return False
        self.reference = kept
        return True

    def _modelled(self, prompt: Prompt) -> float:
        """AR's seconds per token on a prompt by the latency profile."""
        assert self.latency is not None
        wanted = min(self.generation.max_new_tokens, self.model.context_limit - len(prompt.token_ids))
        tokens = max(wanted, 1)
        return self.latency.plain_seconds(len(prompt.token_ids), tokens) / tokens

    def measure_reference(self) -> None:
        """Measure AR on every prompt, and keep it for a resumed study."""
        self.engine.decode(self.prompts[0], max_new_tokens=WARM_UP_TOKENS)
        seconds = {}
        for prompt in self.prompts:
            seconds[prompt.prompt_id] = seconds_per_token(decode_all(self.engine, prompt, self.samples))
            self.tick()
        self.reference = Reference(seconds)
        self.reference.save(self._reference_path, self._workload)

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Decode the prompts in order until the last, or until ``report`` says stop."""
        arm = self.arm(f"trial {trial}", candidate.parts)
        engine = self.engine if self.latency is None else None  # a modelled clock does not drift
        try:
            arm.decode(self.prompts[0], max_new_tokens=WARM_UP_TOKENS)
            self.taught(arm)
            module = TrialModule(arm, engine, self.reference, self.samples, report, self.tick)
            run_test(self.trainer, module, self.data)
        finally:
            arm.close()
        records = self.folder / "records"
        records.mkdir(exist_ok=True)
        write_records(records / f"trial_{trial:04d}.jsonl", module.records)
        own = [record for record in module.records if record.arm == arm.name]
        drift = {} if engine is None else {"drift": self.reference.drift}
        return Measurement(module.log_speedups, {**metrics_of(own), **drift})


def run_test(trainer: Trainer, module: LightningModule, data: PromptDataModule) -> None:
    """``Trainer.test`` that can be interrupted: Lightning turns a KeyboardInterrupt into an exit."""
    try:
        trainer.test(module, datamodule=data, verbose=False)
    except SystemExit as interrupt:
        raise KeyboardInterrupt from interrupt
