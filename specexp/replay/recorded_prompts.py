"""Prompts for a replay: those of the workload, if they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from specexp.config import Config, ConfigError, build_workload
from specexp.core.messages import first_line
from specexp.data import Prompt, PromptSetError, Workload
from specexp.data.prompts import PromptDataModule
from specexp.replay.play.replay_arm import recorded_turns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.replay.format.recording import Recording


class RecordedPrompts(PromptDataModule):
    """The prompts of a workload with the tokens that were recorded, where there is no tokenizer.

    Args:
        workload: which prompts.
        recording: that holds them.
    """

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
    """The target's tokenizer, by which prompts can be held against the recorded ones; None where it is not here."""
    from specexp.pairs.pair import PairError, load_tokenizer

    try:
        return load_tokenizer(config.get("pair.target"))
    except PairError:
        return None


def recorded_data(
    config: Config, recording: Recording, tokenizer: PreTrainedTokenizerBase | None
) -> PromptDataModule:
    """The prompts of ``data``.

    Args:
        config: of the experiment.
        recording: that is replayed.
        tokenizer: the target's; None takes the recorded tokens.

    Raises:
        ConfigError: they cannot be read, or one was not recorded, or with other tokens.
    """
    workload = build_workload(config)
    data = (
        RecordedPrompts(workload, recording) if tokenizer is None else PromptDataModule(workload, tokenizer)
    )
    try:
        missing = first_not_recorded(data.prompts, recording, config.get("generation.samples"))
    except PromptSetError as error:
        raise ConfigError(f"{config.source_of(('data', *error.key))}: data: {error}") from error
    except ValueError as error:  # without tokenizer, a prompt is not there
        missing = first_line(error).removeprefix("recording: ")
    if missing is not None:
        raise ConfigError(f"{config.source_of(('data',))}: data: {missing}")
    return data


def first_not_recorded(prompts: Sequence[Prompt], recording: Recording, samples: int) -> str | None:
    """Why the prompts cannot be replayed, as a sentence; None where all can."""
    for prompt in prompts:
        for sample in range(samples):
            try:
                recorded_turns(recording, prompt, sample)
            except ValueError as error:
                return first_line(error).removeprefix("recording: ")
    return None
