"""llama.cpp's server: a preset, the file of ``--models-preset``, whose keys are its flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from specexp.engines.settings.settings import Settings, SettingsError

_DRAFT = (
    "spec_draft_model",
    "spec_draft_n_max",
    "spec_draft_n_min",
    "spec_draft_p_min",
    "spec_draft_p_split",
)
_Ngram = Annotated[int, Field(ge=1, le=1024)]
_Least = Annotated[int, Field(ge=0, le=1024)]
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
        spec_ngram_simple_size_n: tokens looked up, exactly so many.
        spec_ngram_simple_size_m: length of the chain.
        spec_ngram_simple_min_hits: occurrences needed.
        spec_ngram_map_k_size_n: the same of n-grams kept in a map.
        spec_ngram_map_k_size_m: length of the chain.
        spec_ngram_map_k_min_hits: occurrences needed.
        spec_ngram_map_k4v_size_n: the same of a map with up to four continuations.
        spec_ngram_map_k4v_size_m: length of the chain.
        spec_ngram_map_k4v_min_hits: occurrences needed.
        spec_ngram_mod_n_match: tokens looked up in what all requests share.
        spec_ngram_mod_n_min: shortest chain worth verifying.
        spec_ngram_mod_n_max: length of the chain.

    Raises:
        SettingsError: flags contradict one another.
    """

    engine: ClassVar[str] = "llama-cpp"
    read_for: ClassVar[str] = "llama.cpp 0c1e570 (llama-cpp-python 0.3.36)"

    spec_type: Literal["none", "draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"]
    spec_draft_model: str | None = None
    spec_draft_n_max: _Positive | None = None
    spec_draft_n_min: Annotated[int, Field(ge=0)] | None = None
    spec_draft_p_min: _Share | None = None
    spec_draft_p_split: _Share | None = None
    spec_ngram_simple_size_n: _Ngram | None = None
    spec_ngram_simple_size_m: _Ngram | None = None
    spec_ngram_simple_min_hits: _Positive | None = None
    spec_ngram_map_k_size_n: _Ngram | None = None
    spec_ngram_map_k_size_m: _Ngram | None = None
    spec_ngram_map_k_min_hits: _Positive | None = None
    spec_ngram_map_k4v_size_n: _Ngram | None = None
    spec_ngram_map_k4v_size_m: _Ngram | None = None
    spec_ngram_map_k4v_min_hits: _Positive | None = None
    spec_ngram_mod_n_match: _Ngram | None = None
    spec_ngram_mod_n_min: _Least | None = None
    spec_ngram_mod_n_max: _Least | None = None

    def __post_init__(self) -> None:
        if self.spec_type == "draft-simple" and not self.spec_draft_model:
            raise SettingsError("llama-cpp: spec_type draft-simple needs spec_draft_model, and none is given")
        self.refuse_unless("spec_type", ("draft-simple",), _DRAFT)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
            prefix = f"spec_{kind.replace('-', '_')}"
            names = [f"{prefix}_size_n", f"{prefix}_size_m", f"{prefix}_min_hits"]
            self.refuse_unless("spec_type", (kind,), names)
        mod = [f"spec_ngram_mod_{name}" for name in ("n_match", "n_min", "n_max")]
        self.refuse_unless("spec_type", ("ngram-mod",), mod)
        for prefix in ("spec_draft", "spec_ngram_mod"):
            least, most = getattr(self, f"{prefix}_n_min"), getattr(self, f"{prefix}_n_max")
            if least is not None and most is not None and least > most:
                raise SettingsError(f"llama-cpp: {prefix}_n_min is {least}, above {prefix}_n_max {most}")

    @override
    def deployed(self) -> str:
        """The preset: its settings hold for every model it is used with."""
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in self.given().items()]
        return "\n".join(["version = 1", "", "[*]", *lines, ""])
