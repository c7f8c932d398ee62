"""A confirmation as a table, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from specexp.bench import clock
from specexp.bench.equality import Equality, InFloat32, near_tie_sentence, token_equality
from specexp.bench.experiment import EAGER
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.report import busy_machine_of, clock_notes, failed_answers, short_answers
from specexp.bench.statistics import arm_names, paired_speedup, summarise
from specexp.bench.table import Cell, Column, Table
from specexp.core.latency import MOST_OFF
from specexp.sweep.confirm import AR
from specexp.sweep.trials import Confirmed, Predicted

_PREDICTED = ("tokens per step", "tokens/s", "speedup over AR")


def table(
    name: str,
    question: str | None,
    confirmed: Sequence[Confirmed],
    records: Sequence[PromptRecord],
    predicted_ar: Predicted | None = None,
    *,
    confirmations: int = 1,
    warm: bool = False,
    float32: InFloat32 | None = None,
) -> Table:
    """The candidates, fastest first, then the baselines, or the baselines first where no candidate is faster than plain
    decoding; of trees that differ from step to step the mean nodes.

    Args:
        warm: Whether what is carried from prompt to prompt was learned on the search's prompts first.
        float32: The outputs compared once more in float32; None where they were not.
    """
    baselines = {AR: "AR (engine)", EAGER: "hf-eager"}
    if EAGER not in arm_names(records):
        del baselines[EAGER]
    own = summarise(records, AR)
    predicts = any(one.predicted is not None for one in confirmed)
    adjective = clock.adjective(own.clock)
    columns = [
        Column(noun_of(confirmed, records)),
        Column("nodes", digits=1),
        Column("depth"),
        Column("tokens per step"),
        Column(f"{adjective}tokens/s", digits=0 if own.clock == MEASURED else 2),
        *(Column(f"predicted {what}") for what in _PREDICTED if predicts),
        *([Column("target busy")] if _is_multi_sequence(records) else []),
        *(
            Column(f"{adjective}speedup over {'AR' if one == AR else one}", interval=True)
            for one in baselines
        ),
    ]

    def row(
        arm: str, label: str, nodes: Cell, depth: Cell, predicted: Predicted | None, speedups: Sequence[Cell]
    ) -> list[Cell]:
        summary = summarise(records, arm)
        predictions = _predictions(predicted) if predicts else ()
        figures = (summary.tokens_per_step, summary.tokens_per_second, *predictions, *_busy(records, arm))
        return [label, nodes, depth, *figures, *speedups]

    candidates = [
        row(
            one.name,
            one.label,
            one.attributes["nodes"]
            if "rank_paths" in one.attributes
            else summarise(records, one.name).nodes_per_step,
            one.attributes.get("depth"),
            one.predicted,
            [speedup for speedup in (one.over_ar, one.over_eager) if speedup is not None],
        )
        for one in confirmed
    ]
    plain = [
        row(
            arm,
            label,
            0,
            0,
            predicted_ar if arm == AR else None,
            [1 if other == arm else paired_speedup(records, arm, other) for other in baselines],
        )
        for arm, label in baselines.items()
    ]
    pays = confirmed[0].over_ar.is_faster
    confirmation = Table(
        clock.titled(question or f"{name}: confirmed on prompts the search did not see", own.clock), columns
    )
    confirmation.rows = [*candidates, *plain] if pays else [*plain, *candidates]
    prompts = len({record.prompt_id for record in records})
    failed = failed_answers(records)
    pooled = "" if confirmations == 1 else f" in {confirmations} confirmations"
    taught = ", begun with what the search's prompts taught" if warm else ""
    states = " and ".join(sorted({record.state for record in records} - {"stateless"})) or "stateless"
    notes = [
        misprediction(confirmed),
        None if pays else about_plain(confirmed[0], noun_of(confirmed, records)),
        f"{prompts} prompts the search did not see{pooled}, {own.verifier}, target {own.dtype}, state {states}{taught}"
        "; speedups are geometric means of paired per-prompt ratios with 95 % bootstrap intervals",
        f"of plain decoding's answers {100 * own.eos_share:.0f} % end by EOS, {100 * own.loop_share:.0f} % in a "
        "loop (which flatters every method)",
        *_equality(confirmed, records, float32),
        short_answers(records, AR),
        None if failed is None else f"{failed}; the figures are of the others",
        busy_machine_of(records, AR),
        *clock_notes([record for record in records if not record.error]),
    ]
    confirmation.notes = [note for note in notes if note]
    return confirmation


def sentences(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> list[str]:
    """Compare the winner with the best of every other choice; where no choices are compared, with the best chain, and
    with every known tree that is not a chain.
    """
    winner = confirmed[0]
    if winner.choice is not None:
        best = {one.choice: one for one in reversed(confirmed) if one.choice != winner.choice}
        others = {f"the best of {one.choice} ({one.name})": one for one in reversed(best.values())}
    else:
        multi_sequence = _is_multi_sequence(records)
        chains = [] if multi_sequence else [one for one in confirmed if one.is_chain]
        others = {f"the best chain ({one.name})": one for one in chains[:1]}
        known = [one for one in confirmed if not one.name.startswith("trial ") and one not in chains]
        others |= {f"the {one.name}": one for one in known}
    return [_comparison(winner, other, kind, confirmed, records) for kind, other in others.items()]


def _comparison(
    winner: Confirmed,
    other: Confirmed,
    kind: str,
    confirmed: Sequence[Confirmed],
    records: Sequence[PromptRecord],
) -> str:
    if other is winner:
        return f"The fastest {noun_of(confirmed, records)} is {kind} itself."
    paired = paired_speedup(records, winner.name, other.name)
    if paired.refused is not None:
        return f"{winner.label} cannot be compared with {kind}: {paired.refused}."
    verdict = "not told apart on these prompts"
    if paired.is_faster or paired.is_slower:
        verdict = "faster" if paired.is_faster else "slower"
    return f"{winner.label} against {kind}, prompt by prompt: {paired}, {verdict}."


def answer(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> str:
    """Return the verdict. A misprediction of replay comes before it, a busy machine after it."""
    best = confirmed[0]
    verdict = (
        f"{best.label} decodes {best.over_ar} as fast as plain decoding, with the same output."
        if best.over_ar.is_faster
        else about_plain(best, noun_of(confirmed, records))
    )
    return " ".join(filter(None, (misprediction(confirmed), verdict, busy_machine_of(records, AR))))


def misprediction(confirmed: Sequence[Confirmed]) -> str | None:
    """Return a sentence if a replayed speedup differs from the confirmed one by more than 10 %: the winner's, or else
    the one furthest off.
    """
    wrong = [one for one in confirmed if abs(one.predicted_error or 0.0) > MOST_OFF]
    if not wrong:
        return None
    furthest = max(wrong, key=lambda one: abs(one.predicted_error or 0))
    worst = wrong[0] if wrong[0] is confirmed[0] else furthest
    assert worst.predicted is not None
    assert worst.predicted.over_ar is not None
    return (
        f"Replayed speedups are off by more than {100 * MOST_OFF:.0f} %: {worst.label} was predicted at "
        f"{worst.predicted.over_ar.unlabelled}, and {_clocked(worst)} it is {worst.over_ar}."
    )


def predicted_sentence(one: Confirmed, predicted: Predicted) -> str:
    """Compare the speedup and the tokens per step that replay predicted with the confirmed ones."""
    where = " on the search's prompts, because these were not recorded" if predicted.searched else ""
    off = one.predicted_error
    difference = "" if off is None else f" (off by {100 * off:+.1f} %)"
    return (
        f"Replay predicted a speedup of {predicted.over_ar} for {one.label}{where}; {_clocked(one)} it is "
        f"{one.over_ar}{difference}. Tokens per step: {predicted.tokens_per_step:.3f} predicted, "
        f"{one.tokens_per_step:.3f} live."
    )


def _clocked(one: Confirmed) -> str:
    return "live" if one.over_ar.clock == MEASURED else "with live steps, timed by the same profile,"


def about_plain(best: Confirmed, noun: str) -> str:
    """Return why the fastest of the candidates, which are of this noun, is not put above plain decoding."""
    speedup = best.over_ar
    if speedup.refused is not None:
        return f"{best.label} cannot be compared with plain decoding: {speedup.refused}."
    if speedup.is_slower:
        return f"No {noun} is faster than plain decoding here: the best, {best.label}, reaches {speedup}."
    return f"{best.label} is not told apart from plain decoding on these prompts: {speedup}."


def _equality(
    confirmed: Sequence[Confirmed], records: Sequence[PromptRecord], float32: InFloat32 | None
) -> list[str]:
    names = [one.name for one in confirmed]
    total = Equality.sum(token_equality(records, name, AR) for name in names)
    notes = [] if float32 is None else [float32.sentence(names, AR)]
    notes.append(f"outputs of the {noun_of(confirmed, records)}s that equal plain decoding's: {total}")
    if total.near_ties:
        notes.append(near_tie_sentence(summarise(records, AR).dtype))
    return notes


def _predictions(predicted: Predicted | None) -> tuple[Cell, ...]:
    if predicted is None:
        return (None,) * len(_PREDICTED)
    speedup = None if predicted.over_ar is None else predicted.over_ar.unlabelled
    return predicted.tokens_per_step, predicted.tokens_per_second, speedup


def noun_of(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> str:
    """The noun for the candidates."""
    if any(one.choice is not None for one in confirmed):
        return "method"
    return "setting" if _is_multi_sequence(records) else "tree"


def _is_multi_sequence(records: Sequence[PromptRecord]) -> bool:
    return any(record.group is not None for record in records)


def _busy(records: Sequence[PromptRecord], arm: str) -> list[Cell]:
    if not _is_multi_sequence(records):
        return []
    groups = [record.group for record in records if record.arm == arm and record.group is not None]
    wall = sum(group.wall_seconds for group in groups)
    return [sum(group.busy_seconds for group in groups) / wall if wall else None]
