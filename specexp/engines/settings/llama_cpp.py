"""llama.cpp's server: a preset, the file of ``--models-preset``, whose keys are its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_DRAFT = (
    "spec_draft_n_max",
    "spec_draft_n_min",
    "spec_draft_p_min",
    "spec_draft_p_split",
    "spec_draft_sampling",
)
_SIMPLE = ("spec_ngram_simple_size_n", "spec_ngram_simple_size_m", "spec_ngram_simple_min_hits")
_Positive = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class LlamaCppSettings(Settings):
    """Its flags with underscores; what is None is left to llama.cpp.

    Args:
        spec_type: how drafts are made.
        spec_draft_model: the draft's GGUF file.
        spec_draft_n_max: length of the chain.
        spec_draft_n_min: shortest chain worth verifying.
        spec_draft_p_min: least probability of a drafted token, by itself; 0 drafts all.
        spec_draft_p_split: probability from which a second branch is tried.
        spec_draft_sampling: how the draft model chooses.
        spec_ngram_simple_size_n: tokens looked up, exactly so many.
        spec_ngram_simple_size_m: length of the chain.
        spec_ngram_simple_min_hits: occurrences needed.

    Raises:
        SettingsError: flags contradict one another.
    """

    engine: ClassVar[str] = "llama-cpp"
    read_for: ClassVar[str] = "llama.cpp 00dc8057"

    spec_type: Literal["none", "draft-simple", "ngram-simple"]
    spec_draft_model: str | None = None
    spec_draft_n_max: _Positive | None = None
    spec_draft_n_min: Annotated[int, Field(ge=0)] | None = None
    spec_draft_p_min: _Share | None = None
    spec_draft_p_split: _Share | None = None
    spec_draft_sampling: Literal["greedy", "probabilistic"] | None = None
    spec_ngram_simple_size_n: _Positive | None = None
    spec_ngram_simple_size_m: _Positive | None = None
    spec_ngram_simple_min_hits: _Positive | None = None

    def __post_init__(self) -> None:
        if self.spec_type == "draft-simple" and not self.spec_draft_model:
            raise SettingsError("llama-cpp: spec_type draft-simple needs spec_draft_model, and none is given")
        self.refuse_unless("spec_type", ("draft-simple",), ("spec_draft_model", *_DRAFT))
        self.refuse_unless("spec_type", ("ngram-simple",), _SIMPLE)
        least, most = self.spec_draft_n_min, self.spec_draft_n_max
        if least is not None and most is not None and least > most:
            raise SettingsError(f"llama-cpp: spec_draft_n_min is {least}, above spec_draft_n_max {most}")

    @override
    def deployed(self) -> str:
        """The preset: its settings hold for every model it is used with."""
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in self.given().items()]
        return "\n".join(["version = 1", "", "[*]", *lines, ""])
