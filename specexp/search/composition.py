"""Candidates as overrides of an experiment's composition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import (
    Config,
    ConfigError,
    Generation,
    apply_overrides,
    build_data,
    build_generation,
    build_latency,
    build_pair,
    build_parts,
    build_verifier,
    has_key,
)
from specexp.config.composed import HITS, with_hits

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from specexp.data.prompts import PromptDataModule
    from specexp.decoder import Decoder
    from specexp.latency import LatencyProfile
    from specexp.models.language_model import LanguageModel
    from specexp.models.pair import ModelPair
    from specexp.verifiers import Verifier

VARIED = ("drafter", "builder", "controller")
SHARED = ("pair", "data", "verifier", "generation")


class Composition:
    """The experiment's composition; every candidate of a study is the composition with overrides.

    Args:
        config: the experiment, with its sweep section.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.name: str = config.get("name")
        self.question: str | None = config.get("question")
        self.folder = Path(config.get("output")) / self.name

    @property
    def hits(self) -> Path | None:
        """Hits file of the study's recording, None where it has none."""
        return self.folder / HITS if self.config.get("sweep.record_hits", None) else None

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Whether a dotted key exists in the composition with these overrides."""
        return has_key(self.with_overrides(overrides), key)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Config:
        """The configuration of a candidate; a fitted tree that names no hits gets the study's.

        Raises:
            ConfigError: a value is not allowed.
        """
        filled = {
            key: with_hits(value, str(self.hits)) if key == "builder" and self.hits else value
            for key, value in overrides.items()
        }
        return apply_overrides(self.config, filled, "sweep")

    def resolved(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Everything a candidate may differ in, defaults filled in."""
        config = self.with_overrides(overrides)
        return {section: config.get(section) for section in VARIED}

    def decoder(
        self, overrides: Mapping[str, Any], model: LanguageModel, draft: PreTrainedModel | None = None
    ) -> Decoder:
        """A new decoder of a candidate, in its initial state.

        Args:
            overrides: of the candidate.
            model: the target.
            draft: the pair's draft model, for a drafter that needs one.

        Raises:
            ValueError: its parts cannot be made, or do not go together or with the target.
        """
        from specexp.decoder import Decoder

        return Decoder(model, *build_parts(self.with_overrides(overrides), draft))

    def verifier(self) -> Verifier:
        """A new verifier: the same for all candidates."""
        return build_verifier(self.config)

    def generation(self) -> Generation:
        """How much is generated."""
        return build_generation(self.config)

    def latency(self) -> LatencyProfile | None:
        """By which the seconds of a study are modelled; None where they are measured."""
        profile = build_latency(self.config)
        return profile if profile is not None and profile.modelled else None

    def load_pair(self) -> ModelPair:
        """Load the models.

        Raises:
            ConfigError: they cannot be loaded.
        """
        return build_pair(self.config)

    def data(self, tokenizer: PreTrainedTokenizerBase, stage: str | None = None) -> PromptDataModule:
        """The prompts of the search, or of its stage ``confirm``, ``record_hits`` or ``learn``.

        Unless a stage names ``prompts`` or an ``offset`` of its own, it takes those of the same set that come
        next: after the search's the confirmation's, after these the recording's, or those that are learned from.

        Raises:
            ConfigError: the search takes all prompts, so that none are left.
        """
        if stage is None:
            return build_data(self.config, tokenizer)
        own = dict(self.config.get(f"sweep.{stage}.data"))
        if "prompts" not in own and "offset" not in own:
            own["offset"] = self._end_of(None if stage == "confirm" else "confirm")
        return build_data(apply_overrides(self.config, {"data": own}, f"sweep.{stage}.data"), tokenizer)

    def _end_of(self, stage: str | None) -> int:
        """Where the prompts of the search end, or of a stage that follows it."""
        search: dict[str, Any] = self.config.get("data")
        if search["max_prompts"] is None:
            raise ConfigError(
                f"{self.config.file}: data.max_prompts is null, so the search takes all prompts and leaves "
                "none for "
                "sweep.confirm and sweep.record_hits: set it, or give them prompts of their own"
            )
        end: int = search["offset"] + search["max_prompts"]
        follows = self.config.get(f"sweep.{stage}.data", None) if stage is not None else None
        if follows is None or "prompts" in follows or "offset" in follows:
            return end
        return end + int(follows.get("max_prompts") or search["max_prompts"])

    def workload(self) -> dict[str, Any]:
        """What all candidates have in common: their seconds can be compared where this is the same."""
        shared = {section: self.config.get(section) for section in SHARED}
        if self.config.get("latency") is not None:
            shared["latency"] = self.config.get("latency")
        return shared

    def to_dict(self, resolved: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole configuration, with the parts of a candidate in the place of its own."""
        return {**self.config.to_dict(), **(resolved or {})}
