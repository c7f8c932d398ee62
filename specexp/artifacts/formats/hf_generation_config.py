"""``generation_config.json`` for Hugging Face's assisted generation and prompt lookup, which draft chains."""

from __future__ import annotations

from typing import Any

from specexp.artifacts.artifact import Artifact
from specexp.artifacts.export_format import Export, ExportFormat
from specexp.artifacts.kinds.static_tree import StaticTreeArtifact


class HfGenerationConfig(ExportFormat):
    """The tree's chain of best candidates, as a fixed number of drafted tokens.

    A tree tuned with ``PromptLookup`` becomes prompt lookup; any other one assisted generation, which needs
    an ``assistant_model``.
    """

    kinds = ("static-tree",)
    updates = True  # a model's own file also holds its EOS tokens

    def export(self, artifact: Artifact) -> Export:
        """Keys of ``transformers.GenerationConfig``."""
        assert isinstance(artifact, StaticTreeArtifact)
        paths = artifact.rank_paths
        length = max((len(path) for path in paths if not any(path)), default=0)
        spec = artifact.part_specs.get("drafter") or {}
        drafter = spec.get("class_path", "").rpartition(".")[2]
        lost = []
        content: dict[str, Any]
        if drafter == "PromptLookup":
            content = {
                "prompt_lookup_num_tokens": max(length, 1),
                "max_matching_ngram_size": spec.get("init_args", {}).get("max_ngram", 3),
            }
        else:
            content = {
                "num_assistant_tokens": max(length, 1),
                "num_assistant_tokens_schedule": "constant",
                "assistant_confidence_threshold": 0.0,
            }
            if drafter:
                lost.append(f"the {drafter} drafter (give generate an assistant_model instead)")
        if rest := len(paths) - length:
            lost.append(f"{rest} of {len(paths)} nodes")
        what = (
            f"the tree's best chain of {length}" if length else "one drafted token, for the tree has no chain"
        )
        return Export(
            content, f"hf-generation-config: kept {what}; dropped {' and '.join(lost)}" if lost else ""
        )
