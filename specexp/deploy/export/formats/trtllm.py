"""TensorRT-LLM's ``speculative_config``."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.formats._chain import ChainDraft, ChainFormat, suffixes_lost
from specexp.engines.settings.settings import Settings
from specexp.engines.settings.trtllm import TrtllmSettings


class Trtllm(ChainFormat):
    """A YAML block. ``draft_len_schedule`` is exported from a study of TensorRT-LLM alone."""

    settings = TrtllmSettings
    read_for = TrtllmSettings.read_for
    deployment = "trtllm-serve MODEL --config {file}"

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return TrtllmSettings("Draft_Target", chain.length, draft)

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = TrtllmSettings("NGram", chain.length, max_matching_ngram_size=longest, is_use_oldest=False)
        return made, () if shortest == 1 else (f"min_ngram={shortest}",)

    @override
    def suffixed(self, chain: ChainDraft) -> tuple[Settings, tuple[str, ...]]:
        carried = chain.arguments.get("state") == "carry"
        made = TrtllmSettings("SA", chain.length, enable_global_pool=carried)
        lost = ("texts of requests that have ended, for its pool is of active ones",) if carried else ()
        return made, (*suffixes_lost(chain, "corpus", "min_run", "reach"), *lost)
