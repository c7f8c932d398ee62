"""A study whose models decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.bench.equality import InFloat32, in_float32
from specexp.bench.experiment import check_prompts
from specexp.bench.live import LiveBackend
from specexp.config import build_data, prompts_error
from specexp.config.stages import with_prompts_of
from specexp.core.cache import context_limit
from specexp.core.language_model import placement
from specexp.data import PromptSetError
from specexp.sweep.backend import StudyBackend
from specexp.sweep.study_config import StudyConfig

if TYPE_CHECKING:
    from specexp.bench.arm import EngineArm
    from specexp.bench.record import PromptRecord
    from specexp.core.latency import LatencyProfile
    from specexp.data import Prompt
    from specexp.data.prompts import PromptDataModule
    from specexp.models.pair import ModelPair
    from specexp.sweep.confirmed import Confirmed


class LiveStudyBackend(StudyBackend):
    """Models, loaded once for all candidates.

    Args:
        study_config: The experiment.
        pair: Its models.
        latency: The profile by which seconds are modelled; None where they are measured.

    Raises:
        ConfigError: Several sequences are decoded for every prompt, and a latency profile is to model their seconds.
        ConfigError: A task's file cannot be read.
    """

    def __init__(self, study_config: StudyConfig, pair: ModelPair, latency: LatencyProfile | None) -> None:
        config = study_config.config
        if study_config.multi_sequence and latency is not None:
            raise config.checker.error(
                ("latency",),
                f" {latency.name!r} cannot model the seconds of several sequences decoded for a prompt: leave it out",
            )
        problems = study_config.problems() if study_config.multi_sequence else None
        backend = LiveBackend.of(config, pair, problems)
        super().__init__(study_config, backend, latency)
        self.pair = pair
        self.model = backend.model
        if study_config.multi_sequence and not problems:
            self.samples = 1

    @property
    @override
    def device(self) -> str:
        return placement(self.pair.target)

    @override
    def load_data(self, stage: str | None) -> PromptDataModule:
        config = self.study_config.config
        staged = with_prompts_of(config, stage)
        data = build_data(staged, self.pair.tokenizer)
        try:
            check_prompts(config, data.prompts, self.pair)
        except PromptSetError as error:
            raise prompts_error(staged, error) from error
        return data

    @override
    def in_float32(self, confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> InFloat32 | None:
        parted = {record.arm for record in records if record.difference is not None}
        parted &= {one.name for one in confirmed}
        if not parted:
            return None
        if self.study_config.multi_sequence:
            return InFloat32(left_out="several sequences are decoded for a prompt")

        def arms_of(pair: ModelPair) -> tuple[EngineArm, list[EngineArm]]:
            exact = LiveStudyBackend(self.study_config, pair, self.latency)
            return exact.plain(), [
                exact.compose(one.name, self.study_config.with_overrides(one.attributes["resolved"]))
                for one in confirmed
                if one.name in parted
            ]

        most = self.study_config.config.get("float32_prompts")
        return in_float32(self.pair, arms_of, self.data("confirm").prompts, records, most)

    @override
    def provenance(self, best: Confirmed) -> dict[str, Any]:
        return self.model.provenance()

    @override
    def plain_seconds_per_token(self, prompt: Prompt) -> float | None:
        """By the latency profile, for answers of full length, where a token is a plain step."""
        if self.latency is None:
            return None
        size = len(prompt.token_ids)
        room = context_limit(self.pair.target.config) - size
        tokens = max(min(self.generation.max_new_tokens, room), 1)
        return self.latency.plain_seconds(size, tokens) / tokens
