"""vLLM's ``--speculative-config``."""

from __future__ import annotations

from typing_extensions import override

from specexp.engines.settings.settings import Settings
from specexp.engines.settings.vllm import VllmSettings
from specexp.export.formats._chain import ChainDraft, ChainFormat


class Vllm(ChainFormat):
    """One JSON object. A length by batch size is exported from a study of vLLM alone: ours says nothing of its
    costs.
    """

    settings = VllmSettings
    read_for = VllmSettings.read_for

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return VllmSettings("draft_model", chain.length, draft)

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = VllmSettings("ngram", chain.length, prompt_lookup_min=shortest, prompt_lookup_max=longest)
        return made, ("the order of matches, for vLLM has its own",)
