"""The backend that replays: a recording answers for the models."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from specexp.artifacts.fingerprint import target_fingerprint
from specexp.replay.configured import open_recording, recorded_data, tokenizer_of
from specexp.replay.play.replay_arm import ReplayArm, source_for

if TYPE_CHECKING:
    from specexp.artifacts.fingerprint import Fingerprint
    from specexp.bench.arm import Arm
    from specexp.bench.arm_spec import ArmSpec
    from specexp.config import Config
    from specexp.data.prompts import PromptDataModule
    from specexp.replay.format.recording import Recording
    from specexp.replay.play.source import RecordedSource


class ReplayBackend:
    """A recording of target and draft.

    Args:
        recording: What answers.
    """

    runs_models = False
    references: Collection[str] = ()

    tokenizer = None  # the recorded prompts are tokens already

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    @property
    def draft(self) -> RecordedSource | None:
        """The recorded answers of the draft model, which every arm goes through by itself."""
        return source_for(self.recording)

    def arm(self, spec: ArmSpec) -> ReplayArm:
        """Parts that answer the prompts of the recording.

        Raises:
            RecordingError: The recording cannot say what the parts would do.
            ValueError: The parts do not go together.
        """
        assert spec.parts is not None
        return ReplayArm(spec.name, self.recording, spec.parts, spec.generation, spec.latency)

    def fingerprint(self) -> Fingerprint:
        """Of the recorded target and its tokenizer."""
        return target_fingerprint(self.recording.manifest.fingerprint)

    def provenance(self, arm: Arm) -> dict[str, Any]:
        """The recording, the profile of the seconds, and what the figures are worth."""
        assert isinstance(arm, ReplayArm)
        profile = None if arm.latency is None else arm.latency.label
        folder = str(self.recording.folder)
        return {"recording": {"folder": folder, "profile": profile, "fidelity": str(arm.fidelity)}}


def open_replay(config: Config) -> tuple[ReplayBackend, PromptDataModule]:
    """The recording that an experiment asks for, and its prompts.

    Raises:
        ConfigError: It is missing or of something else, or a prompt was not recorded.
    """
    recording = open_recording(config)
    return ReplayBackend(recording), recorded_data(config, recording, tokenizer_of(config))
