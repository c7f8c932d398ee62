"""llama.cpp's preset."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.formats._chain import ChainDraft, ChainFormat
from specexp.engines.settings.llama_cpp import LlamaCppSettings
from specexp.engines.settings.settings import Settings


class LlamaCpp(ChainFormat):
    """An INI file for ``--models-preset``. The draft is a GGUF file."""

    settings = LlamaCppSettings
    read_for = LlamaCppSettings.read_for
    deployment = "llama-server --models-dir FOLDER --models-preset {file}"

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return LlamaCppSettings("draft-simple", draft, chain.length, spec_draft_p_min=0.0)

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = LlamaCppSettings(
            "ngram-simple", spec_ngram_simple_size_n=longest, spec_ngram_simple_size_m=chain.length
        )
        shorter = f"n-grams of {shortest} to {longest - 1}, for llama.cpp looks up exactly {longest} tokens"
        return made, (shorter,) if shortest < longest else ()
