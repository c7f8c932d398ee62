"""The winner of a study as an artifact, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.artifacts.atomic_write import write_whole
from specexp.artifacts.fingerprint import Fingerprint, fingerprint, target_fingerprint
from specexp.bench import clock
from specexp.bench.acceptance_counts import HitCounter
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.sweep.bench import CompositionBench
from specexp.sweep.confirm import Confirmed
from specexp.sweep.live_bench import WARM_UP_TOKENS, LiveBench
from specexp.sweep.replay_bench import ReplayBench

if TYPE_CHECKING:
    from specexp.bench.statistics import Speedup
    from specexp.data import Prompt
    from specexp.scheduling import TimeLine
    from specexp.sweep.session import Session

SECONDS_SHOWN = 0.5
"""Of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""


def draw_winner(
    winner: Confirmed, bench: CompositionBench, prompts: Sequence[Prompt], path: Path
) -> Path | None:
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
    from specexp.bench.tree_picture import draw_tree

    counter = HitCounter()
    arm = bench.arm("picture", bench.prepare(winner.attributes["resolved"]).parts)
    for prompt in prompts:
        arm.replay(prompt, 0, counter.observe)
    shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
    rates = {rank_path: counter.hits[rank_path] / counter.steps for rank_path in shape.rank_paths[1:]}
    draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR").savefig(path)
    return path


def draw_winners_time_line(
    winner: Confirmed, bench: CompositionBench, prompt: Prompt, folder: Path
) -> Path | None:
    """Draw who did what when under the winner and under plain decoding; None where no groups are decoded.

    Args:
        winner: of the study.
        bench: decodes the prompt once more by both.
        prompt: of the confirmation.
        folder: gets ``time_line.png``, and ``time_line.json`` for Perfetto.
    """
    from specexp.bench.execution_arm import ExecutionArm
    from specexp.bench.time_line_picture import draw_time_line
    from specexp.scheduling.trace import chrome_trace

    arm = bench.arm(winner.label, bench.prepare(winner.attributes["resolved"]).parts)
    lines: dict[str, TimeLine] = {}
    for one, name in ((bench.engine, "AR (engine)"), (arm, winner.label)):
        if not isinstance(one, ExecutionArm):
            return None
        try:
            one.decode(prompt, max_new_tokens=WARM_UP_TOKENS)
            one.timeline_observers = [partial(_keep, lines, name)]
            one.decode(prompt)
        finally:
            one.timeline_observers = ()
            one.close()
    write_whole(folder / "time_line.json", chrome_trace(lines))
    path = folder / "time_line.png"
    title = f"prompt {prompt.prompt_id}: {winner.over_ar} over AR"
    draw_time_line(lines, title, SECONDS_SHOWN).savefig(path)
    return path


def _keep(lines: dict[str, TimeLine], name: str, prompt_id: str, line: TimeLine) -> None:
    lines[name] = line


def export_best(session: Session, confirmed: Sequence[Confirmed], bench: CompositionBench) -> Path | None:
    """Write the winner, or else the best of the kind asked for, as the next version of the study's artifact.

    Args:
        session: of the study; its console is told what was written.
        confirmed: fastest first.
        bench: that confirmed it; what a candidate learns is learned once more.

    Returns:
        The version's folder; None where the experiment exports nothing or no candidate is of the kind asked for.

    Raises:
        ArtifactError: it cannot be written.
    """
    export = session.settings.export
    if export is None:
        return None
    from specexp.artifacts import Artifact, kinds, save_artifact
    from specexp.artifacts.plugins import class_in

    kind = class_in(kinds, export.kind, Artifact)
    winner = confirmed[0]
    for best in confirmed:
        resolved = best.attributes["resolved"]
        parts = {family: session.composition.config.get(family) for family in Parts._fields}
        parts |= {family: resolved[family] for family in Parts._fields if family in resolved}
        payloads = kind.payloads_of(parts, {**best.attributes, **_learned(best, bench)})
        if payloads is not None:
            break
    else:
        _say(session, f"{winner.label} is no {kind.kind}, nor is another one, so nothing was exported.")
        return None
    artifact = save_artifact(
        Path(export.to),
        kind.kind,
        payloads,
        provenance={
            "study": session.name,
            "trial": best.trial,
            "command": session.command,
            "device": session.device,
            "config": session.composition.to_dict(resolved),
            "metrics": _metrics(best) if session.replay is None else _replayed_metrics(best, bench),
            **({} if session.replay is None else {"recording": _origin(best, session.replay)}),
        },
        fingerprint=_fingerprint(bench),
        name=session.name,
    )
    if best is winner:
        _say(session, f"The winner, {winner.label}, is in {artifact.folder}.")
    else:
        _say(
            session,
            f"The winner, {winner.label}, is no {kind.kind}; the best that is, {best.label}, is in {artifact.folder}.",
        )
    return artifact.folder


def _learned(best: Confirmed, bench: CompositionBench) -> dict[str, Any]:
    """Under ``learned``, what a candidate's drafter and controller know before they are measured."""
    if not bench.lessons:
        return {}
    arm = bench.taught(bench.arm("export", bench.prepare(best.attributes["resolved"]).parts))
    return {"learned": {"controller": arm.controller_state, "drafter": arm.drafter_state}}


def _fingerprint(bench: CompositionBench) -> Fingerprint:
    """Of target and tokenizer."""
    if isinstance(bench, LiveBench):
        return fingerprint(bench.pair.target, bench.pair.tokenizer)
    assert isinstance(bench, ReplayBench)
    return target_fingerprint(bench.recording.manifest.fingerprint)


def _origin(best: Confirmed, bench: ReplayBench) -> dict[str, Any]:
    """Where predicted figures come from."""
    recording = bench.recording
    return {
        "folder": str(recording.folder),
        "sha256": bench.composition.recording_digest(),
        "profile": bench.profile.label,
        "fidelity": best.attributes["fidelity"],
        "live_sample_error": recording.manifest.live_error(best.attributes["fidelity"]),
    }


def _replayed_metrics(best: Confirmed, bench: CompositionBench) -> dict[str, Any]:
    """What was predicted, and what was confirmed live."""
    if not isinstance(bench, LiveBench):
        return {f"predicted_{name}": value for name, value in _metrics(best).items()}
    assert best.predicted is not None
    return {
        "predicted_tokens_per_step": best.predicted.tokens_per_step,
        "predicted_modelled_tokens_per_second": best.predicted.tokens_per_second,
        **{f"confirmed_{name}": value for name, value in _metrics(best).items()},
    }


def _say(session: Session, sentence: str) -> None:
    session.console.print(sentence, soft_wrap=True, highlight=False)


def _metrics(winner: Confirmed) -> dict[str, Any]:
    intervals = {"speedup_over_engine": winner.over_ar, "speedup_over_hf_eager": winner.over_eager}
    before = clock.key(winner.over_ar.clock)
    return {
        "tokens_per_step": winner.tokens_per_step,
        f"{before}tokens_per_second": winner.tokens_per_second,
        **{
            f"{before}{name}": {"value": speedup.ratio, **_interval(speedup)}
            for name, speedup in intervals.items()
            if speedup is not None and speedup.refused is None
        },
    }


def _interval(speedup: Speedup) -> dict[str, float]:
    return {"low": speedup.low, "high": speedup.high} if speedup.has_interval else {}
