"""The bench of a study that replays a recording and takes its times from a latency profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from specexp.bench.arm import LearningArm
from specexp.bench.metrics import Counted, figures_of, figures_of_counts
from specexp.bench.record import FEWEST_TOKENS, PromptRecord
from specexp.bench.statistics import paired_speedup
from specexp.config import ConfigError
from specexp.core.context import loop_of
from specexp.core.latency import LatencyProfile
from specexp.data import LoadedPrompts, Prompt
from specexp.replay.backend import ReplayBackend, first_not_recorded, recorded_turns
from specexp.replay.format.recording import RecordedTurn
from specexp.replay.play.fidelity import fidelity_note, static_shape
from specexp.replay.play.ranks import RankTable
from specexp.sweep.bench import Bench
from specexp.sweep.live_benches import live_bench
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trials import Candidate, Confirmed, Measurement, Predicted, ShouldStop


def before_repetition(turn: RecordedTurn, most: int) -> RecordedTurn:
    """Return a turn whose answer has at most ``most`` tokens, without a repetition at its end.

    The tokens of a repetition do not count in records either. At least 8 tokens are kept.
    """
    answer = turn.answer[:most]
    loop = loop_of(answer.tolist())
    return turn if loop is None else replace(turn, answer=answer[: max(loop[0], FEWEST_TOKENS)])


class ReplayBench(Bench):
    """A bench that replays a recording. The best trials are confirmed live if the models can be loaded.

    A fixed tree with a draft model is evaluated from a table of ranks in about a millisecond. All other candidates are
    replayed step by step.

    Attributes:
        live: The bench that confirms on the models; None if they cannot be loaded, or there is nothing to confirm.
    """

    # A W&B run takes a thousand times as long as a replayed trial, so trials are rows in the study's run.
    tracks_trials = False
    latency: LatencyProfile

    def __init__(self, config: StudyConfig, latency: LatencyProfile, *, confirms: bool) -> None:
        self.recording = config.open_recording()
        super().__init__(config, ReplayBackend(self.recording), latency)
        self.live: Bench | None = None
        self.no_models = ""
        try:
            pair = config.load_models() if confirms else None
        except ConfigError as error:
            pair = None
            self.no_models = str(error)
        if pair is not None:
            config.check_models(self.recording, pair)
            self.live = self.confirming = live_bench(config, pair, config.live_latency)

    @property
    @override
    def device(self) -> str:
        recorded = self.recording.manifest.made_of["pair"]["device"]
        return str(recorded) if self.live is None else self.live.device

    @override
    def _read_data(self, stage: str | None) -> LoadedPrompts:
        if stage == "confirm" and self.live is not None:  # a live confirmation needs no recorded prompts
            return self.live.data(stage)
        return self.config.load_prompts(stage, None if self.live is None else self.live.pair, self.recording)

    @override
    def plain_seconds_per_token(self, prompt: Prompt) -> float:
        most = self.config.generation.max_new_tokens
        sizes = [(turn.prompt.size, min(turn.answer.size, most)) for turn in self._turns_of[prompt.prompt_id]]
        seconds = sum(self.latency.plain_seconds(before, tokens) for before, tokens in sizes)
        return seconds / sum(tokens for _, tokens in sizes)

    @override
    def measure(self, candidate: Candidate, should_stop: ShouldStop, trial: int) -> Measurement:
        shape = static_shape(candidate.arm.parts)
        if shape is None:
            return super().measure(candidate, should_stop, trial)
        # All prompts are evaluated at once, so pruning would save nothing and no value is reported to the pruner.
        counts = self.table.evaluate(shape, self.latency.of(candidate.arm.parts.label))
        starts = np.cumsum([0, *map(len, self._turns_of.values())])[:-1]
        seconds = np.add.reduceat(counts.seconds, starts) / np.add.reduceat(counts.tokens, starts)
        plain = [self.reference.seconds_per_token[prompt.prompt_id] for prompt in self.data().prompts]
        tokens = int(counts.tokens.sum())
        total = Counted(
            steps=int(counts.steps.sum()),
            new_tokens=tokens,
            accepted_drafts=int(counts.accepted.sum()),
            draft_passes=int(counts.draft_passes.sum()),
            drafted_nodes=int(counts.drafted.sum()),
            decode_seconds=float(counts.seconds.sum()),
            decode_tokens=tokens,
        )
        log_speedups = dict(enumerate(np.log(np.array(plain) / seconds).tolist()))
        return Measurement(log_speedups, figures_of_counts(total, self.latency.label))

    @override
    def predict(self, overrides: Mapping[str, Any] | None) -> Predicted | None:
        if self.live is None:
            return None
        _, searched = self._predicted_prompts
        records, over_plain = self._plain_records, None
        if overrides is not None:
            arm = self.compose("predicted", overrides)
            arm = self.warm_started(arm) if searched else self.deployed(arm)
            arm.reset()
            records = self._decoded(arm)
            over_plain = paired_speedup([*self._plain_records, *records], arm.name, self.plain().name)
        figures = figures_of(records)
        return Predicted(figures["tokens_per_step"], figures["modelled_tokens_per_second"], searched, over_plain)

    @cached_property
    def _predicted_prompts(self) -> tuple[Sequence[Prompt], bool]:
        """The confirmation's prompts and False, or the search's prompts and True if the former were not recorded."""
        prompts = self.data("confirm").prompts
        searched = first_not_recorded(prompts, self.recording, self.samples) is not None
        return (self.data().prompts if searched else prompts), searched

    @cached_property
    def _plain_records(self) -> list[PromptRecord]:
        return self._decoded(self.plain())

    def _decoded(self, arm: LearningArm) -> list[PromptRecord]:
        return [record for prompt in self._predicted_prompts[0] for record in self.decode(arm, prompt)]

    @override
    def sentences(self, winner: Confirmed) -> list[str]:
        note = fidelity_note(winner.attributes["fidelity"], self.recording.manifest)
        found = [f"Replayed counts of {winner.label} are {note}."]
        if self.live is None:
            why = f"the models cannot be loaded ({self.no_models})"
            found.append(f"Nothing was confirmed live, because {why}: these figures are replayed too.")
        return found

    @override
    def exported_metrics(self, best: Confirmed, metrics: Mapping[str, Any]) -> dict[str, Any]:
        if best.predicted is None:  # the confirmation was replayed as well
            return {f"predicted_{name}": value for name, value in metrics.items()}
        return {
            "predicted_tokens_per_step": best.predicted.tokens_per_step,
            "predicted_modelled_tokens_per_second": best.predicted.tokens_per_second,
            **{f"confirmed_{name}": value for name, value in metrics.items()},
        }

    @override
    def provenance(self, best: Confirmed) -> dict[str, Any]:
        fidelity = best.attributes["fidelity"]
        return {
            **({} if self.live is None else self.live.provenance(best)),
            "recording": {
                "folder": str(self.recording.folder),
                "sha256": self.config.recording_digest(),
                "profile": self.latency.label,
                "fidelity": fidelity,
                "live_sample_error": self.recording.manifest.live_error(fidelity),
            },
        }

    @cached_property
    def table(self) -> RankTable:
        """The table of ranks for the search's prompts; raises NotRecordedError if the recording has no draft model."""
        limit = self.recording.manifest.context_limits["target"]
        turns = [turn for turns in self._turns_of.values() for turn in turns]
        return RankTable(turns, self.config.generation.max_new_tokens, limit)

    @cached_property
    def _turns_of(self) -> dict[str, list[RecordedTurn]]:
        most = self.config.generation.max_new_tokens
        return {
            prompt.prompt_id: [
                before_repetition(turn, most)
                for sample in range(self.samples)
                for turn in recorded_turns(self.recording, prompt, sample)
            ]
            for prompt in self.data().prompts
        }
