"""SGLang's flags."""

from __future__ import annotations

from typing_extensions import override

from specexp.deploy.export.formats._chain import ChainDraft, ChainFormat
from specexp.engines.settings.settings import Settings
from specexp.engines.settings.sglang import SglangSettings


class Sglang(ChainFormat):
    """Flags of its server. Its adaptive file is for EAGLE heads, and exported from a study of SGLang alone."""

    settings = SglangSettings
    read_for = SglangSettings.read_for
    deployment = "python -m sglang.launch_server --model-path MODEL $(head -n 1 {file})"

    @override
    def drafted(self, chain: ChainDraft, draft: str) -> Settings:
        return SglangSettings(
            "STANDALONE", draft, chain.length, eagle_topk=1, num_draft_tokens=chain.length + 1
        )

    @override
    def looked_up(self, chain: ChainDraft, shortest: int, longest: int) -> tuple[Settings, tuple[str, ...]]:
        made = SglangSettings(
            "NGRAM",
            num_draft_tokens=chain.length + 1,
            ngram_max_bfs_breadth=1,
            ngram_max_trie_depth=longest + chain.length,
        )
        return made, (f"min_ngram={shortest} and the order of matches, for SGLang keeps a trie",)
