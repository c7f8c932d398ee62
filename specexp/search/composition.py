"""Candidates as overrides of an experiment's composition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.config import Config, apply_overrides, build_data, build_pair, build_parts, has_key

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.data.prompts import PromptDataModule
    from specexp.decoder import Decoder
    from specexp.evaluation.arm import Generation
    from specexp.models.language_model import LanguageModel
    from specexp.models.pair import ModelPair
    from specexp.verifiers import Verifier

VARIED = ("drafter", "builder", "controller")
SHARED = ("pair", "data", "verifier", "generation")
HITS = "hits.json"


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
            key: self._with_hits(value) if key == "builder" else value for key, value in overrides.items()
        }
        return apply_overrides(self.config, filled, "sweep")

    def resolved(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Everything a candidate may differ in, defaults filled in."""
        config = self.with_overrides(overrides)
        return {section: config.get(section) for section in VARIED}

    def decoder(self, overrides: Mapping[str, Any], model: LanguageModel, pair: ModelPair) -> Decoder:
        """A new decoder of a candidate, in its initial state.

        Raises:
            ValueError: its parts cannot be made, or do not go together or with the target.
        """
        from specexp.decoder import Decoder

        parts = build_parts(self.with_overrides(overrides))
        return Decoder(model, parts.drafter, parts.builder, parts.verifier, parts.controller)

    def verifier(self) -> Verifier:
        """A new verifier: the same for all candidates."""
        return build_parts(apply_overrides(self.config, {"drafter": None, "builder": None}, "sweep")).verifier

    def generation(self) -> Generation:
        """How much is generated."""
        from specexp.evaluation.arm import Generation

        return Generation(**self.config.get("generation"))

    def load_pair(self) -> ModelPair:
        """Load the models.

        Raises:
            ConfigError: they cannot be loaded.
        """
        return build_pair(self.config)

    def data(
        self, tokenizer: PreTrainedTokenizerBase, overrides: Mapping[str, Any] | None = None
    ) -> PromptDataModule:
        """The prompts of the search, or with overrides of the ``data`` section those of another stage."""
        return build_data(apply_overrides(self.config, {"data": dict(overrides or {})}, "sweep"), tokenizer)

    def workload(self) -> dict[str, Any]:
        """What all candidates have in common: their seconds can be compared where this is the same."""
        return {section: self.config.get(section) for section in SHARED}

    def to_dict(self, resolved: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The whole configuration, with the parts of a candidate in the place of its own."""
        return {**self.config.to_dict(), **(resolved or {})}

    def _with_hits(self, value: Any) -> Any:
        if self.hits is None or not isinstance(value, Mapping):
            return value
        if str(value.get("class_path")).rpartition(".")[2] != "FittedTree":
            return value
        arguments = value.get("init_args") or {}
        named = arguments.get("hits", HITS)
        return {**value, "init_args": {**arguments, "hits": str(self.hits) if named == HITS else named}}
