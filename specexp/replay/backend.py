"""The replay backend: opens an experiment's recording and prompts, and makes arms that decode from the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from specexp.artifacts.fingerprint import Fingerprint, target_fingerprint
from specexp.base.messages import first_line, restated
from specexp.bench.arm import Arm, Generation, LearningArm, ModelledSeconds, StepTimes, in_loops, sequence_name
from specexp.bench.arm_spec import ArmSpec, Backend
from specexp.config import (
    Config,
    ConfigError,
    prompt_errors,
)
from specexp.core.outcome import PHASES
from specexp.core.parts import Parts, check_composition
from specexp.data import LoadedPrompts, Prompt, Workload
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recording import RecordedTurn, Recording, hash_of, recording_fingerprint
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.fidelity import Grade, fidelity, fidelity_note, models_in, static_shape
from specexp.replay.play.player import Player, RecordedSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.bench.record import PromptRecord
    from specexp.core.latency import LatencyProfile
    from specexp.core.loop import OutcomeObserver
    from specexp.models.pair import ModelPair

NO_CLOCK = "none: replayed without a latency profile"


class ReplayArm(LearningArm):
    """An arm that replays recorded prompts. Its timings come from a latency profile; without one, they are 0.

    A draft model in ``parts`` must use a source from :func:`source_for`. Raises RecordingError if the recording cannot
    replay the parts.
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
        manifest = recording.manifest
        if parts.verifier.sampling_settings is not None:  # without settings, fidelity() raises below
            recording.check_made_of("law", parts.verifier.sampling_settings)
        super().__init__(name, parts, generation)
        self.recording = recording
        self.latency = None if latency is None else latency.of(parts.label)
        self.fidelity = fidelity(parts)
        self.dtype = manifest.made_of["pair"]["target_dtype"]
        self.device = manifest.made_of["pair"]["device"]
        if parts.drafter is not None:
            parts.drafter.check_vocabulary(manifest.vocab_size)
        lenient = self.fidelity.grade is Grade.APPROXIMATE
        source = source_in(parts)
        if source is not None:
            source.missing = "unknown" if static_shape(parts) is not None else "none" if lenient else "refuse"
        seed = manifest.made_of["generation"]["seed"]
        self._player = Player(parts, source, manifest.context_limits["target"], seed, lenient)

    @property
    @override
    def clock(self) -> str:
        return NO_CLOCK if self.latency is None else self.latency.label

    @property
    @override
    def stated(self) -> dict[str, Any]:
        return {**super().stated, "fidelity": str(self.fidelity)}

    @property
    @override
    def fidelity_note(self) -> str | None:
        if self.parts.drafter is None:
            return None  # plain decoding is the recorded output itself
        return fidelity_note(str(self.fidelity), self.recording.manifest)

    @override
    def decode(self, prompt: Prompt, sample: int = 0, max_new_tokens: int | None = None) -> PromptRecord:
        turns = recorded_turns(self.recording, prompt, sample)
        turns = turns[:1] if max_new_tokens else turns  # later turns build on the complete first answer
        modelled = None if self.latency is None else ModelledSeconds(self.latency)
        limit = max_new_tokens or self.generation.max_new_tokens
        times = StepTimes()  # the player's clock gives the steps their modelled seconds
        observers: list[OutcomeObserver] = [*self.observers, times]
        counts = self._player.play(turns, limit, sequence_name(prompt, sample), modelled, observers)
        seconds = dict.fromkeys(PHASES, 0.0) if modelled is None else modelled.seconds
        known = [0, *(turn.prompt.size + turn.answer.size for turn in turns[:-1])]  # tokens before each turn
        return self.record(
            prompt,
            sample,
            counts,
            prompt_tokens=sum(turn.prompt.size - before for turn, before in zip(turns, known, strict=True)),
            seconds=seconds,
            **in_loops([one.token_ids for one in counts], times.steps, sum(seconds.values())),
            beyond_profile=0 if modelled is None else modelled.beyond,
        )


def recorded_turns(recording: Recording, prompt: Prompt, sample: int = 0) -> list[RecordedTurn]:
    """Return the recorded turns of a prompt. Raises RecordingError if it was not recorded or has changed since."""
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
    """Return a source of the recorded draft model's candidates, or None if no draft model was recorded."""
    manifest = recording.manifest
    scoring = manifest.made_of.get("scoring")
    if scoring is None:
        return None
    return RecordedSource(manifest.vocab_size, manifest.context_limits["draft"], Scoring(**scoring))


def source_in(parts: Parts) -> RecordedSource | None:
    """Return the recorded source that the drafter uses, or None. Raises RecordingError if their scorings differ."""
    source = None
    for drafter in models_in(parts.drafter):
        source = drafter.source
        assert isinstance(source, RecordedSource)
        for name, recorded in asdict(source.scoring).items():
            given = getattr(drafter.scoring, name)
            if given != recorded:
                raise RecordingError(
                    f"{type(drafter).__name__} must have {name} {recorded!r} as in the recording, got {given!r}: set "
                    "the recorded value, or record again"
                )
    return source


class ReplayBackend(Backend):
    """Backend that reads the predictions of both models from a recording. Its prompts are already tokenized."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @property
    @override
    def draft(self) -> RecordedSource | None:
        return source_for(self.recording)  # a new source for every arm, since it has state

    @override
    def arm(self, spec: ArmSpec) -> ReplayArm:
        return ReplayArm(spec.name, self.recording, spec.parts, spec.generation, spec.latency)

    @override
    def fingerprint(self) -> Fingerprint:
        return target_fingerprint(self.recording.manifest.fingerprint)

    @override
    def provenance(self, arm: Arm) -> dict[str, Any]:
        assert isinstance(arm, ReplayArm)
        profile = None if arm.latency is None else arm.latency.label
        folder = str(self.recording.folder)
        return {"recording": {"folder": folder, "profile": profile, "fidelity": str(arm.fidelity)}}


def open_replay(config: Config) -> tuple[ReplayBackend, LoadedPrompts]:
    """Return the replay backend and prompts of an experiment. Raises ConfigError if a prompt was not recorded."""
    recording = open_recording(config)
    return ReplayBackend(recording), recorded_data(config, recording, tokenizer_of(config.pair.target))


def open_recording(config: Config) -> Recording:
    """Return the recording that ``backend: replay`` reads.

    Raises ConfigError if it is missing, incomplete or damaged, or was recorded with settings that change the output.
    """
    with restated(RecordingError, lambda error: _error(config, error)):
        recording = Recording(config.recording_folder)
        pair = ["target", "target_dtype"]
        if recording.manifest.made_of.get("scoring") is not None:  # the draft model was recorded too
            pair += ["draft", "draft_dtype"]
        recording.check_made_of("pair", config.get("pair"), pair)
        same = ("seed", "stop_at_eos", "stop_at_repetition")
        recording.check_made_of("generation", config.generation.model_dump(), same)
        made = recording.manifest.made_of["generation"]
        several = any(turns[0].turns > 1 for turns in recording.turns.values())
        for key in ("max_new_tokens", "samples"):
            given = getattr(config.generation, key)
            # A later turn depends on the whole earlier answer.
            exactly = several and key == "max_new_tokens"
            if given > made[key] or (exactly and given != made[key]):
                raise RecordingError(
                    f"{recording.folder} was made with generation.{key} {made[key]}, and the configured one is "
                    f"{given}: record again with it, or set {'exactly' if exactly else 'at most'} {made[key]}"
                )
        settings = config.verifier.sampling_settings
        if settings is not None:  # without settings, ReplayArm raises
            recording.check_made_of("law", settings)
    return recording


def _error(config: Config, error: RecordingError) -> ConfigError:
    """Convert the error to a ConfigError that points to the config key of the recording."""
    folders = {"recording": config.get("recording"), "record.to": config.record.to}
    named = (key for key, folder in folders.items() if folder is not None)
    key = next(named, "backend" if config.is_replayed else "recording")
    sentence = first_line(error).removeprefix("recording: ")
    return ConfigError(f"{config.source_of(tuple(key.split('.')))}: {key}: {sentence}")


def check_models(config: Config, recording: Recording, pair: ModelPair) -> None:
    """Raise ConfigError if the recording was not made with the models of ``pair``."""
    with restated(RecordingError, lambda error: _error(config, error)):
        recording.check_fingerprint(recording_fingerprint(pair))


def tokenizer_of(target: str) -> PreTrainedTokenizerBase | None:
    """Return a target's tokenizer, for comparing prompts with the recorded ones, or None if it cannot be loaded."""
    from specexp.models.pair import load_tokenizer
    from specexp.models.sources import PairError

    try:
        return load_tokenizer(target)
    except PairError:
        return None


class RecordedPrompts(LoadedPrompts):
    """The prompts of a workload with their recorded tokens, for use without a tokenizer."""

    def __init__(self, workload: Workload, recording: Recording) -> None:
        super().__init__(workload, cast("PreTrainedTokenizerBase", None))
        self._recording = recording

    @cached_property
    @override
    def prompts(self) -> list[Prompt]:
        """The selected prompts. Raises PromptSetError if they cannot be read, RecordingError if one is not recorded."""
        return [
            Prompt(
                prompt_id=row["prompt_id"],
                category=row["category"],
                turns=tuple(row["turns"]),
                token_ids=tuple(self._recording.conversation(row["prompt_id"])[0].prompt.tolist()),
                index=row["index"],
            )
            for row in self.workload.rows()
        ]


def recorded_data(config: Config, recording: Recording, tokenizer: PreTrainedTokenizerBase | None) -> LoadedPrompts:
    """Return the prompts of ``data``, with their recorded tokens if there is no tokenizer.

    Raises ConfigError if the prompts cannot be read, or if one of them was not recorded with the same tokens.
    """
    workload = config.workload
    data = RecordedPrompts(workload, recording) if tokenizer is None else LoadedPrompts(workload, tokenizer)
    with prompt_errors(config):
        try:
            missing = first_not_recorded(data.prompts, recording, config.generation.samples)
        except RecordingError as error:  # without a tokenizer: a prompt was not recorded
            missing = first_line(error).removeprefix("recording: ")
    if missing is not None:
        raise config.checker.error(("data",), f": {missing}")
    return data


def first_not_recorded(prompts: Sequence[Prompt], recording: Recording, samples: int) -> str | None:
    """Find the first prompt that cannot be replayed. Return the reason, or None if all can be replayed."""
    for prompt in prompts:
        for sample in range(samples):
            try:
                recorded_turns(recording, prompt, sample)
            except ValueError as error:
                return first_line(error).removeprefix("recording: ")
    return None
