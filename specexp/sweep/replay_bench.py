"""The bench of replayed decoding: a recording answers for the models, and seconds are a latency profile's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench.arm import EngineArm
from specexp.builders import StaticTree
from specexp.core.parts import Parts
from specexp.replay.configured import first_not_recorded
from specexp.replay.format.recording import Recording
from specexp.replay.play.fidelity import is_plain_static
from specexp.replay.play.ranks import RankTable, StaticCounts
from specexp.replay.play.replay_arm import ReplayArm, recorded_turns, source_for
from specexp.sweep.bench import CompositionBench, metrics_of
from specexp.sweep.composition import Composed, Composition
from specexp.sweep.drift import Reference
from specexp.sweep.objective import Candidate, Measurement, Report
from specexp.sweep.prediction import Predicted
from specexp.sweep.trial_module import decode_all, seconds_per_token

if TYPE_CHECKING:
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.drafters.draft_source import DraftSource
    from specexp.replay.format.recorded_turn import RecordedTurn


class ReplayBench(CompositionBench):
    """Measures candidates on a recording.

    A fixed tree of a draft model is read off a table of ranks, in about a millisecond, and reported to nobody before
    it is whole: there is nothing to save by pruning. Everything else is replayed step by step, prompt after prompt.

    Args:
        composition: what candidates are overrides of.
        recording: of target and draft.
        data: the prompts, in one fixed order, all of them recorded.
        folder: of the study.
        latency: what steps cost.
    """

    def __init__(
        self,
        composition: Composition,
        recording: Recording,
        data: PromptDataModule,
        folder: Path,
        latency: LatencyProfile,
    ) -> None:
        super().__init__(composition, data, folder, latency)
        self.recording = recording
        self.profile = latency
        self.engine = self.arm("engine", Composed(Parts(None, None, composition.verifier()), None))

    @property
    def draft(self) -> DraftSource | None:
        """The recorded answers, which every candidate goes through by itself."""
        return source_for(self.recording)

    def arm(self, name: str, composed: Composed) -> EngineArm:
        """A candidate as an arm.

        Raises:
            RecordingError: the recording cannot say what the parts would do.
            ValueError: the parts do not go together.
        """
        return ReplayArm(name, self.recording, composed.parts, self.generation, self.profile)

    def said_of(self, arm: EngineArm) -> dict[str, Any]:
        """Clock and fidelity."""
        assert isinstance(arm, ReplayArm)
        return {**super().said_of(arm), "fidelity": str(arm.fidelity)}

    def load_reference(self) -> bool:
        """Plain decoding's seconds by the profile, for the recorded answers."""
        plain = (self._plain_seconds_per_token(prompt) for prompt in self.prompts)
        self.reference = Reference(
            {prompt.prompt_id: seconds for prompt, seconds in zip(self.prompts, plain, strict=True)}
        )
        return True

    def measure_reference(self) -> None:
        """It is known."""
        self.load_reference()

    def measure(self, candidate: Candidate, report: Report, trial: int) -> Measurement:
        """Replay the prompts.

        Raises:
            RecordingError: a question was asked whose answer was not recorded.
        """
        composed: Composed = candidate.parts
        if is_plain_static(composed.parts):
            return self._measure_static(composed.parts)
        arm = self.taught(self.arm(f"trial {trial}", composed))
        arm.reset()
        records, log_speedups = [], {}
        for place, prompt in enumerate(self.prompts):
            own = decode_all(arm, prompt, self.samples)
            records += own
            log_speedups[place] = log(
                self.reference.seconds_per_token[prompt.prompt_id] / seconds_per_token(own)
            )
            self.tick()
            if report(place, log_speedups[place]):
                break
        return Measurement(log_speedups, metrics_of(records))

    def predict(self, overrides: Mapping[str, Any], prompts: Sequence[Prompt]) -> Predicted | None:
        """What a candidate takes on other prompts, or plain decoding without overrides; None where one of them was not
        recorded.
        """
        if first_not_recorded(prompts, self.recording, self.samples) is not None:
            return None
        arm = self.taught(self.arm("predicted", self.compose(overrides))) if overrides else self.engine
        arm.reset()
        metrics = metrics_of(
            [record for prompt in prompts for record in decode_all(arm, prompt, self.samples)]
        )
        return Predicted(metrics["tokens_per_step"], metrics["modelled_tokens_per_second"], searched=False)

    @cached_property
    def turns(self) -> list[RecordedTurn]:
        """Of the search's prompts, one prompt after the other."""
        return [turn for turns in self._turns_of.values() for turn in turns]

    @cached_property
    def table(self) -> RankTable:
        """Ranks of the search's prompts.

        Raises:
            NotRecordedError: the recording has no draft model.
        """
        limit = self.recording.manifest.context_limits["target"]
        return RankTable(self.turns, self.generation.max_new_tokens, limit)

    @cached_property
    def _turns_of(self) -> dict[str, list[RecordedTurn]]:
        """By prompt the turns of all its samples."""
        return {
            prompt.prompt_id: [
                turn
                for sample in range(self.samples)
                for turn in recorded_turns(self.recording, prompt, sample)
            ]
            for prompt in self.prompts
        }

    def _measure_static(self, parts: Parts) -> Measurement:
        assert isinstance(parts.builder, StaticTree)
        latency = self.profile.of(parts.label)
        counts = self.table.evaluate(parts.builder.shape, latency)
        return Measurement(self._log_speedups(counts), _metrics_of_counts(counts, len(self.prompts)))

    def _log_speedups(self, counts: StaticCounts) -> dict[int, float]:
        assert counts.seconds is not None
        found, start = {}, 0
        for place, prompt in enumerate(self.prompts):
            end = start + len(self._turns_of[prompt.prompt_id])
            per_token = counts.seconds[start:end].sum() / counts.tokens[start:end].sum()
            found[place] = log(self.reference.seconds_per_token[prompt.prompt_id] / float(per_token))
            start = end
        return found

    def _plain_seconds_per_token(self, prompt: Prompt) -> float:
        sizes = [
            (turn.prompt.size, min(turn.answer.size, self.generation.max_new_tokens))
            for turn in self._turns_of[prompt.prompt_id]
        ]
        seconds = sum(self.profile.plain_seconds(asked, tokens) for asked, tokens in sizes)
        return seconds / sum(tokens for _, tokens in sizes)


def _metrics_of_counts(counts: StaticCounts, prompts: int) -> dict[str, float]:
    """As :func:`specexp.sweep.bench.metrics_of` has them of records."""
    assert counts.seconds is not None
    steps = float(counts.steps.sum())
    return {
        "prompts": prompts,
        "tokens_per_step": counts.tokens_per_step,
        "drafted_nodes": float(counts.drafted.sum()) / steps,
        "draft_passes": float(counts.draft_passes.sum()) / steps,
        "modelled_tokens_per_second": counts.tokens_per_second,
        "modelled_decode_seconds": float(counts.seconds.sum()),
    }
