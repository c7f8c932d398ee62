"""An arm that replays a recording instead of running models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.bench.arm import EngineArm, Generation, describe, sequence_name
from specexp.bench.record import PromptRecord
from specexp.core.outcome import PHASES
from specexp.core.parts import Parts, check_composition
from specexp.replay.format.recorded_turn import RecordedTurn
from specexp.replay.format.recording import Recording, hash_of
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import (
    Fidelity,
    Grade,
    fidelity,
    fidelity_note,
    is_plain_static,
    models_in,
    recorded_scoring,
)
from specexp.replay.play.player import Missing, Player, RecordedSource, RecordedTarget

if TYPE_CHECKING:
    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import OutcomeObserver
    from specexp.core.outcome import Outcome
    from specexp.data import Prompt

NO_CLOCK = "none: replayed without a latency profile"


class ReplayArm(EngineArm):
    """Parts that decode prompts of a recording; seconds are those of a latency profile.

    The draft model of the parts must be a source of :func:`source_for`. Without ``latency`` there are only counts.

    Raises:
        RecordingError: The recording cannot replay the parts.
    """

    def __init__(
        self,
        name: str,
        recording: Recording,
        parts: Parts,
        generation: Generation,
        latency: LatencyProfile | None = None,
    ) -> None:
        check_composition(*parts)
        made_of = recording.manifest.made_of
        for key, value in (parts.verifier.sampling_settings or {}).items():
            if made_of["law"].get(key) != value:
                raise RecordingError(
                    f"recording: {recording.folder} was made with verifier {key} {made_of['law'].get(key)!r}, and "
                    f"{describe(parts.verifier)} is to be replayed: record with it, or verify as recorded"
                )
        super().__init__(name, parts, generation)
        self.recording = recording
        self.latency = None if latency is None else latency.of(parts.label)
        self.fidelity: Fidelity = fidelity(parts)
        self.dtype, self.device = made_of["pair"]["target_dtype"], made_of["pair"]["device"]
        if parts.drafter is not None:
            parts.drafter.check_vocabulary(recording.manifest.vocab_size)
        self._source = source_in(parts)
        limits = recording.manifest.context_limits
        self._target = RecordedTarget(limits["target"])
        lenient = self.fidelity.grade is Grade.APPROXIMATE
        if self._source is not None:
            self._source.missing = missing_answers(parts, lenient)
        seed = recording.manifest.made_of["generation"]["seed"]
        fallback = recording.fallback if lenient else None
        self._player = Player(parts, self._source, self._target, seed, lenient, fallback)

    @property
    @override
    def clock(self) -> str:
        return NO_CLOCK if self.latency is None else self.latency.label

    @property
    @override
    def fidelity_note(self) -> str | None:
        if self.parts.drafter is None:
            return None  # plain decoding is what was recorded
        return fidelity_note(str(self.fidelity), self.recording.manifest)

    @override
    def decode_observed(self, prompt: Prompt, sample: int, observe: OutcomeObserver) -> None:
        turns = recorded_turns(self.recording, prompt, sample)
        limit = self.generation.max_new_tokens
        self._player.play(turns, limit, sequence_name(prompt, sample), self._clock(), (observe,))

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        whole = recorded_turns(self.recording, prompt, sample)
        turns = whole[:1] if max_new_tokens else whole
        limit = max_new_tokens or self.generation.max_new_tokens
        seconds = dict.fromkeys(PHASES, 0.0)
        clock = self._clock()
        counts = self._player.play(turns, limit, sequence_name(prompt, sample), clock, self.observers)
        if clock is not None:
            seconds |= clock.seconds
        before = [0, *(turn.prompt.size + turn.answer.size for turn in whole[:-1])]
        return PromptRecord.of(
            self,
            prompt,
            sample,
            answers=[turn.answer[:limit].tolist() for turn in whole],
            finish_reasons=["length" if turn.answer.size > limit else turn.finish_reason for turn in whole],
            counts=counts,
            prompt_tokens=sum(turn.prompt.size - known for turn, known in zip(whole, before, strict=True)),
            seconds=seconds,
            beyond_profile=0 if clock is None else clock.beyond_profile,
        )

    def _clock(self) -> _ModelledClock | None:
        return None if self.latency is None else _ModelledClock(self.latency)


class _ModelledClock:
    """Models seconds of steps, and keeps their sums by phase and the number of steps that exceed the profile."""

    def __init__(self, latency: LatencyProfile) -> None:
        self.latency = latency
        self.seconds = dict.fromkeys(("draft", "target", "update"), 0.0)
        self.beyond_profile = 0

    def __call__(self, outcome: Outcome) -> Mapping[str, float]:
        target, draft, beside = self.latency.outcome_parts(outcome)
        step = {"draft": draft, "target": target, "update": beside}
        for phase, spent in step.items():
            self.seconds[phase] += spent
        self.beyond_profile += self.latency.exceeded_by(outcome.tree.num_nodes + 1)
        return step


def recorded_turns(recording: Recording, prompt: Prompt, sample: int = 0) -> list[RecordedTurn]:
    """Return the recorded turns of a prompt; raises RecordingError if it was not recorded, or with other tokens."""
    turns = recording.conversation(prompt.prompt_id, sample)
    mark = hash_of(prompt)
    known = recording.manifest.made_of.get("prompts", {}).get(prompt.prompt_id, mark)
    is_same = tuple(turns[0].prompt.tolist()) == prompt.token_ids
    if is_same and len(turns) == len(prompt.turns) and known == mark:
        return turns
    raise RecordingError(
        f"recording: {recording.folder}: prompt {prompt.prompt_id!r} has other {'turns' if is_same else 'tokens'} than "
        "were recorded: the data set, its chat template or its truncation changed, so record again"
    )


def source_for(recording: Recording) -> RecordedSource | None:
    """Return the recorded answers of the draft model; None if there are none."""
    manifest = recording.manifest
    scoring = recorded_scoring(manifest.made_of)
    if scoring is None:
        return None
    return RecordedSource(manifest.vocab_size, manifest.context_limits["draft"], scoring)


def source_in(parts: Parts) -> RecordedSource | None:
    """Return the source of a draft model among the parts; raises RecordingError if its scoring was not recorded."""
    source = None
    for drafter in models_in(parts.drafter):
        source = drafter.source
        assert isinstance(source, RecordedSource)
        for name, recorded in asdict(source.scoring).items():
            given = getattr(drafter.scoring, name)
            if given != recorded:
                raise RecordingError(
                    f"{type(drafter).__name__} has {name} {given!r} and the recording's had {recorded!r}: record with "
                    "it, or draft as recorded"
                )
    return source


def missing_answers(parts: Parts, lenient: bool) -> Missing:
    """Return the treatment of the draft's answers that were not recorded."""
    if is_plain_static(parts):
        return "unknown"
    return "none" if lenient else "refuse"
