"""``generation_config.json`` for Hugging Face's assisted generation and prompt lookup, which draft chains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from specexp.artifacts.export_format import ExportedFile, ExportFormat, Tuned
from specexp.artifacts.formats._fixed_tree import controller_lost, drafter_of, rank_paths_of


class HfGenerationConfig(ExportFormat):
    """The tree's chain of best candidates, as a fixed number of drafted tokens.

    A tree tuned with ``PromptLookup`` becomes prompt lookup; any other one assisted generation, which needs
    an ``assistant_model``. Of a schedule the drafts alone are left: Hugging Face drafts for one sequence at a time.
    """

    kinds = ("static-tree", "composition", "schedule")
    updates = True  # a model's own file also holds its EOS tokens

    @override
    def export(self, artifact: Tuned) -> ExportedFile:
        paths = rank_paths_of(artifact, "hf-generation-config")
        length = max((len(path) for path in paths if not any(path)), default=0)
        drafter = drafter_of(artifact)
        lost = controller_lost(artifact)
        if artifact.execution_spec is not None:
            lost.append(f"the strategy {_describe(artifact.execution_spec)}")
        content: dict[str, Any]
        if drafter == "PromptLookup":
            arguments = artifact.recorded["drafter"].get("init_args", {})
            content = {
                "prompt_lookup_num_tokens": max(length, 1),
                "max_matching_ngram_size": arguments.get("max_ngram", 3),
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
        return ExportedFile(
            content, f"hf-generation-config: kept {what}; dropped {' and '.join(lost)}" if lost else ""
        )


def _describe(schedule: Mapping[str, Any]) -> str:
    """A strategy with its arguments, e.g. ``Scheduled(n=3, verify_batch=1)``; what is null is left out."""
    given = {name: value for name, value in schedule["init_args"].items() if value is not None}
    shown = (
        f"{name}={value['class_path'] if isinstance(value, Mapping) else value}"
        for name, value in given.items()
    )
    return f"{schedule['class_path']}({', '.join(shown)})"
