"""The recording of an experiment file, and the backend that replays it in place of models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, cast

from specexp.artifacts.fingerprint import target_fingerprint
from specexp.config import (
    Config,
    ConfigError,
    Generation,
    build_generation,
    build_verifier,
    build_workload,
    is_replayed,
    prompts_error,
    recording_folder,
)
from specexp.core.messages import first_line
from specexp.data import Prompt, PromptSetError, Workload
from specexp.data.prompts import PromptDataModule
from specexp.replay.format.recording import Recording, recording_fingerprint
from specexp.replay.format.trie import RecordingError
from specexp.replay.play.replay_arm import ReplayArm, recorded_turns, source_for

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.artifacts.fingerprint import Fingerprint
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import ArmSpec
    from specexp.models.pair import ModelPair
    from specexp.replay.play.player import RecordedSource

_SAME_PAIR = ("target", "target_dtype")
_SAME_DRAFT = ("draft", "draft_dtype")
_SAME_GENERATION = ("seed", "stop_at_eos")
"""Settings besides models and verifier that change the recorded output."""


def open_recording(config: Config) -> Recording:
    """Return the recording that ``backend: replay`` reads.

    Raises:
        ConfigError: There is none, it is incomplete or damaged, or the experiment has another output.
    """
    key = "recording" if config.get("recording") is not None or not is_replayed(config) else "backend"
    if config.get("recording") is None and config.get("record.to") is not None:
        key = "record.to"
    try:
        recording = Recording(recording_folder(config))
        drafted = recording.manifest.made_of.get("scoring") is not None
        same_pair = _SAME_PAIR + (_SAME_DRAFT if drafted else ())
        for section, keys in (("pair", same_pair), ("generation", _SAME_GENERATION)):
            recording.check_made_of(section, config.get(section), keys)
        _check_length(recording, build_generation(config))
        settings = build_verifier(config).sampling_settings
        if settings is not None:  # otherwise the arm refuses the verifier
            recording.check_made_of("law", settings)
    except RecordingError as error:
        raise ConfigError(
            f"{config.source_of(tuple(key.split('.')))}: {key}: {first_line(error).removeprefix('recording: ')}"
        ) from error
    return recording


def _check_length(recording: Recording, wanted: Generation) -> None:
    """Raise RecordingError if more or longer answers are configured than were recorded."""
    made = recording.manifest.made_of["generation"]
    several = any(turns[0].turns > 1 for turns in recording.turns.values())
    for key in ("max_new_tokens", "samples"):
        recorded, given = made[key], getattr(wanted, key)
        # A later turn depends on the whole earlier answer.
        exactly = several and key == "max_new_tokens"
        if given > recorded or (exactly and given != recorded):
            raise RecordingError(
                f"{recording.folder} was made with generation.{key} {recorded}, and the configured one is {given}: "
                + (
                    f"conversations of several turns replay only with {recorded}"
                    if given < recorded
                    else f"record again with it, or ask for at most {recorded}"
                )
            )


def check_models(config: Config, recording: Recording, pair: ModelPair) -> None:
    """Raise ConfigError if a recording was made with other models."""
    try:
        recording.check_fingerprint(recording_fingerprint(pair))
    except RecordingError as error:
        key = "recording" if config.get("recording") is not None else "backend"
        raise ConfigError(f"{config.source_of((key,))}: {first_line(error)}") from error


class RecordedPrompts(PromptDataModule):
    """The prompts of a workload with the recorded tokens, where there is no tokenizer."""

    def __init__(self, workload: Workload, recording: Recording) -> None:
        super().__init__(workload, cast("PreTrainedTokenizerBase", None))
        self._recording = recording

    def setup(self, stage: str | None = None) -> None:
        """Read the prompts, once; raises PromptSetError, or RecordingError where one was not recorded."""
        if not self._prompts:
            self._prompts = [
                Prompt(
                    prompt_id=row["prompt_id"],
                    category=row["category"],
                    turns=tuple(row["turns"]),
                    token_ids=tuple(self._recording.conversation(row["prompt_id"])[0].prompt.tolist()),
                    index=row["index"],
                )
                for row in self.workload.rows()
            ]


def tokenizer_of(config: Config) -> PreTrainedTokenizerBase | None:
    """Return the target's tokenizer, to compare prompts with the recorded ones; None if it is not here."""
    from specexp.models.pair import load_tokenizer
    from specexp.models.sources import PairError

    try:
        return load_tokenizer(config.get("pair.target"))
    except PairError:
        return None


def recorded_data(
    config: Config, recording: Recording, tokenizer: PreTrainedTokenizerBase | None
) -> PromptDataModule:
    """Return the prompts of ``data``, with the recorded tokens if there is no tokenizer.

    Raises:
        ConfigError: They cannot be read, or one was not recorded, or with other tokens.
    """
    workload = build_workload(config)
    data = (
        RecordedPrompts(workload, recording) if tokenizer is None else PromptDataModule(workload, tokenizer)
    )
    try:
        missing = first_not_recorded(data.prompts, recording, config.get("generation.samples"))
    except PromptSetError as error:
        raise prompts_error(config, error) from error
    except ValueError as error:  # without tokenizer, a prompt is not there
        missing = first_line(error).removeprefix("recording: ")
    if missing is not None:
        raise config.checker.error(("data",), f": {missing}")
    return data


def first_not_recorded(prompts: Sequence[Prompt], recording: Recording, samples: int) -> str | None:
    """Return the reason why prompts cannot be replayed; None if all can."""
    for prompt in prompts:
        for sample in range(samples):
            try:
                recorded_turns(recording, prompt, sample)
            except ValueError as error:
                return first_line(error).removeprefix("recording: ")
    return None


class ReplayBackend:
    """A recording of target and draft in place of models."""

    runs_models = False
    references: Collection[str] = ()

    tokenizer = None  # the recorded prompts are tokens already

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @property
    def draft(self) -> RecordedSource | None:
        """The recorded answers of the draft model, a new source for every arm."""
        return source_for(self.recording)

    def arm(self, spec: ArmSpec) -> ReplayArm:
        """Return an arm for the prompts of the recording; raises ValueError if its parts cannot be replayed."""
        assert spec.parts is not None
        return ReplayArm(spec.name, self.recording, spec.parts, spec.generation, spec.latency)

    def fingerprint(self) -> Fingerprint:
        """Return the marks of the recorded target and its tokenizer."""
        return target_fingerprint(self.recording.manifest.fingerprint)

    def provenance(self, arm: Arm) -> dict[str, Any]:
        """Return the recording, the latency profile, and the fidelity of the figures."""
        assert isinstance(arm, ReplayArm)
        profile = None if arm.latency is None else arm.latency.label
        folder = str(self.recording.folder)
        return {"recording": {"folder": folder, "profile": profile, "fidelity": str(arm.fidelity)}}


def open_replay(config: Config) -> tuple[ReplayBackend, PromptDataModule]:
    """Return the replay of an experiment's recording, and its prompts.

    Raises:
        ConfigError: The recording is missing or another one, or a prompt was not recorded.
    """
    recording = open_recording(config)
    return ReplayBackend(recording), recorded_data(config, recording, tokenizer_of(config))
