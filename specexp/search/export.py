"""The winner of a study as an artifact, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.hits import HitCounter
from specexp.search.confirm import Confirmed
from specexp.search.live_bench import LiveBench
from specexp.tree import TreeShape

if TYPE_CHECKING:
    from specexp.data import Prompt
    from specexp.models.pair import ModelPair
    from specexp.search.session import Session


def draw_winner(winner: Confirmed, bench: LiveBench, prompts: Sequence[Prompt], path: Path) -> Path | None:
    """Draw the winner's tree with the share of steps in which each node is accepted; None where it has no
    tree.

    Args:
        winner: whose tree.
        bench: decodes the prompts once more, counting.
        prompts: of the confirmation.
        path: PNG file.
    """
    if "rank_paths" not in winner.attributes:
        return None
    from specexp.figures.tree import draw_tree

    counter = HitCounter()
    arm = bench.arm("picture", bench.prepare(winner.attributes["resolved"]).parts)
    for prompt in prompts:
        arm.conversation(prompt, 0, observers=[counter.observe])
    shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
    rates = {rank_path: counter.hits[rank_path] / counter.steps for rank_path in shape.rank_paths[1:]}
    draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR").savefig(path)
    return path


def export_winner(session: Session, winner: Confirmed, pair: ModelPair) -> Path | None:
    """Write the winner as the next version of the study's artifact.

    Returns:
        The version's folder; None where the experiment exports nothing or the winner is not of the kind asked
        for.

    Raises:
        ArtifactError: it cannot be written.
    """
    export = session.settings.export
    if export is None:
        return None
    if export["kind"] != "static-tree" or "rank_paths" not in winner.attributes:
        session.console.print(f"{winner.label} is no {export['kind']}, so nothing was exported.")
        return None
    from specexp.artifacts import save_artifact
    from specexp.artifacts.fingerprint import fingerprint

    rank_paths = winner.attributes["rank_paths"]
    resolved = winner.attributes["resolved"]
    parts = {
        "drafter": resolved["drafter"],
        "builder": {"class_path": "StaticTree", "init_args": {"rank_paths": rank_paths}},
        "verifier": session.composition.config.get("verifier"),
        "controller": resolved["controller"],
    }
    artifact = save_artifact(
        Path(export["to"]),
        "static-tree",
        {"tree.json": rank_paths, "parts.json": parts},
        provenance={
            "study": session.name,
            "trial": winner.trial,
            "command": session.command,
            "device": str(pair.target.device),
            "config": session.composition.to_dict(resolved),
            "metrics": _metrics(winner),
        },
        fingerprint=fingerprint(pair.target, pair.tokenizer),
        name=session.name,
    )
    return artifact.folder


def _metrics(winner: Confirmed) -> dict[str, Any]:
    intervals = {"speedup_over_engine": winner.over_ar, "speedup_over_hf_eager": winner.over_eager}
    return {
        "tokens_per_step": winner.tokens_per_step,
        "tokens_per_second": winner.tokens_per_second,
        **{
            name: {"value": speedup.ratio, "low": speedup.low, "high": speedup.high}
            for name, speedup in intervals.items()
            if speedup.refused is None
        },
    }
