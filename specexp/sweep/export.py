"""The winner of a study as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench import clock
from specexp.config.sweep import Export
from specexp.core.parts import Parts
from specexp.sweep.backend import StudyBackend
from specexp.sweep.confirm import Confirmation
from specexp.sweep.confirmed import Confirmed
from specexp.sweep.output import StudyOutput

if TYPE_CHECKING:
    from specexp.bench.statistics import Speedup


def export_best(
    export: Export, confirmation: Confirmation, backend: StudyBackend, output: StudyOutput
) -> Path | None:
    """Write the winner, or else the best of the kind asked for, as the next version of the study's artifact.

    Args:
        export: The kind of the artifact, and the folder ``to`` which it goes.
        confirmation: What was measured.
        backend: Who answered the search.
        output: Its console is told what was written.

    Returns:
        The version's folder; None where no candidate is of the kind asked for.

    Raises:
        ArtifactError: It cannot be written.
    """
    from specexp.artifacts import kind_named
    from specexp.config.artifacts import save_artifact

    kind = kind_named(export.kind)
    study_config, winner = backend.study_config, confirmation.winner
    for best in confirmation.confirmed:
        resolved = best.attributes["resolved"]
        parts = {family: study_config.config.get(family) for family in Parts._fields}
        parts |= {family: resolved[family] for family in Parts._fields if family in resolved}
        payloads = kind.payloads_of(parts, {**best.attributes, **_learned(best, confirmation, backend)})
        if payloads is not None:
            break
    else:
        output.say(f"{winner.label} is no {kind.kind}, nor is another one, so nothing was exported.")
        return None
    artifact = save_artifact(
        Path(export.to),
        kind.kind,
        payloads,
        provenance={
            "study": study_config.name,
            "trial": best.trial,
            "command": output.command,
            "device": backend.device,
            "config": {**study_config.config.to_dict(), **resolved},
            "metrics": backend.exported_metrics(best, _metrics(best)),
            **backend.provenance(best),
        },
        fingerprint=backend.confirming.backend.fingerprint(),
        name=study_config.name,
    )
    if best is winner:
        output.say(f"The winner, {winner.label}, is in {artifact.folder}.")
    else:
        output.say(
            f"The winner, {winner.label}, is no {kind.kind}; the best that is, {best.label}, is in {artifact.folder}."
        )
    return artifact.folder


def _learned(best: Confirmed, confirmation: Confirmation, backend: StudyBackend) -> dict[str, Any]:
    """Under ``learned``, what a candidate's drafter and controller knew before they were measured."""
    if not backend.warm_start_prompts:
        return {}
    arm = confirmation.arms[best.name]
    return {"learned": {"controller": arm.controller_state, "drafter": arm.drafter_state}}


def _metrics(best: Confirmed) -> dict[str, Any]:
    intervals = {"speedup_over_engine": best.over_ar, "speedup_over_hf_eager": best.over_eager}
    before = clock.metric_prefix(best.over_ar.clock)
    return {
        "tokens_per_step": best.tokens_per_step,
        f"{before}tokens_per_second": best.tokens_per_second,
        **{
            f"{before}{name}": {"value": speedup.ratio, **_interval(speedup)}
            for name, speedup in intervals.items()
            if speedup is not None and speedup.refused is None
        },
    }


def _interval(speedup: Speedup) -> dict[str, float]:
    return {"low": speedup.low, "high": speedup.high} if speedup.has_interval else {}
