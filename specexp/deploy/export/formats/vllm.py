"""vLLM's ``--speculative-config``."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.formats._chain import ChainDraft, ChainFormat, suffixes_lost
from specexp.engines.settings.settings import Settings
from specexp.engines.settings.vllm import VllmSettings


class Vllm(ChainFormat):
    """One JSON object. A length by batch size is exported from a study of vLLM alone: ours says nothing of its
    costs.
    """

    settings = VllmSettings
    read_for = VllmSettings.read_for
    deployment = 'vllm serve MODEL --speculative-config "$(cat {file})"'

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return VllmSettings("draft_model", chain.length, draft)

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = VllmSettings("ngram", chain.length, prompt_lookup_min=shortest, prompt_lookup_max=longest)
        return made, ("the order of matches, for vLLM has its own",)

    @override
    def suffixed(self, chain: ChainDraft) -> tuple[Settings, tuple[str, ...]]:
        reach = chain.arguments.get("reach")
        made = VllmSettings(
            "suffix",
            chain.length,
            suffix_decoding_max_cached_requests=None if chain.arguments.get("state") == "carry" else 0,
            # Without a reach ours drafts as far behind a run of one token as behind a longer one.
            suffix_decoding_max_spec_factor=float(chain.length if reach is None else reach),
            suffix_decoding_min_token_prob=0.0,
        )
        return made, (
            *suffixes_lost(chain, "corpus", "min_run"),
            "how followers are weighed, for vLLM counts them",
        )
