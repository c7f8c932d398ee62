"""Hugging Face: fields of ``generation_config.json`` for assisted generation and prompt lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_ASSISTED = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")


@dataclass(frozen=True)
class HuggingFaceSettings(Settings):
    """Its fields by their own names; what is None is left to transformers.

    Args:
        prompt_lookup_num_tokens: length of the chain that prompt lookup drafts.
        max_matching_ngram_size: longest n-gram looked up.
        num_assistant_tokens: length of the chain that an assistant drafts.
        num_assistant_tokens_schedule: how that length moves.
        assistant_confidence_threshold: least probability of a drafted token, by itself, with the one that fell below;
            with scikit-learn installed it moves by itself.
        cache_implementation: how keys and values are kept.

    Raises:
        SettingsError: fields contradict one another.
    """

    engine: ClassVar[str] = "hf-generation-config"
    read_for: ClassVar[str] = "transformers 5.23"

    prompt_lookup_num_tokens: Annotated[int, Field(ge=1)] | None = None
    max_matching_ngram_size: Annotated[int, Field(ge=1)] | None = None
    num_assistant_tokens: Annotated[int, Field(ge=1)] | None = None
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] | None = None
    assistant_confidence_threshold: Annotated[float, Field(ge=0, lt=1)] | None = None
    cache_implementation: Literal["static"] | None = None

    def __post_init__(self) -> None:
        assisted = [name for name in _ASSISTED if getattr(self, name) is not None]
        if self.prompt_lookup_num_tokens is not None and assisted:
            raise SettingsError(
                f"hf-generation-config: prompt_lookup_num_tokens and {assisted[0]} exclude each other: give one of them"
            )
        lookup = ["prompt_lookup_num_tokens"] if self.prompt_lookup_num_tokens is not None else []
        if self.cache_implementation is not None and (drafted := [*assisted, *lookup]):
            raise SettingsError(
                f"hf-generation-config: cache_implementation static does not go with {drafted[0]}, for generate drafts "
                "with a dynamic cache alone: leave one of them out"
            )
        if self.max_matching_ngram_size is not None and self.prompt_lookup_num_tokens is None:
            raise SettingsError(
                "hf-generation-config: max_matching_ngram_size needs prompt_lookup_num_tokens, and none is given"
            )

    @override
    def deployed(self) -> dict[str, Any]:
        """Keys of ``generation_config.json``."""
        return self.given()
