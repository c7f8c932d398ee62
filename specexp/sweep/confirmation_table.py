"""A confirmation as a table, and in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from specexp.bench import clock
from specexp.bench.busy_machine import busy_machine_of
from specexp.bench.equality import Equality, near_tie_sentence, token_equality
from specexp.bench.experiment import EAGER
from specexp.bench.failures import failed_answers
from specexp.bench.float32 import InFloat32
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.report import clock_notes
from specexp.bench.short_answers import short_answers
from specexp.bench.statistics import arm_names, paired_speedup, summarise
from specexp.bench.table import Cell, Column, Table
from specexp.core.latency import MOST_OFF
from specexp.sweep.confirm import AR, Confirmed, Predicted

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
        name: The study's name.
        question: The experiment's question; None where it asks none.
        confirmed: The candidates, fastest first.
        records: Records of all arms.
        predicted_ar: What replay says of plain decoding; None where it says nothing.
        confirmations: How many were pooled.
        warm: Whether what is carried from prompt to prompt was learned on the search's prompts first.
        float32: The outputs compared once more in float32; None where they were not.
    """
    baselines = {AR: "AR (engine)", EAGER: "hf-eager"}
    if EAGER not in arm_names(records):
        del baselines[EAGER]
    used = summarise(records, AR).clock
    multi_sequence = _is_multi_sequence(records)
    predicts = any(one.predicted is not None for one in confirmed)
    columns = [
        Column(noun_of(confirmed, records)),
        Column("nodes", digits=1),
        Column("depth"),
        Column("tokens per step"),
        Column(f"{clock.adjective(used)}tokens/s", digits=0 if used == MEASURED else 2),
        *(Column(f"predicted {what}") for what in _PREDICTED if predicts),
        *([Column("target busy")] if multi_sequence else []),
        *(
            Column(f"{clock.adjective(used)}speedup over {name}", interval=True)
            for name in ("AR", EAGER)[: len(baselines)]
        ),
    ]
    title = question or f"{name}: confirmed on prompts the search did not see"
    confirmation = Table(clock.titled(title, used), columns)
    for one in confirmed:
        fixed = "rank_paths" in one.attributes
        confirmation.rows.append(
            [
                one.label,
                one.attributes["nodes"] if fixed else summarise(records, one.name).nodes_per_step,
                one.attributes.get("depth"),
                one.tokens_per_step,
                one.tokens_per_second,
                *(_predictions(one.predicted) if predicts else ()),
                *_busy(records, one.name),
                *(speedup for speedup in (one.over_ar, one.over_eager) if speedup is not None),
            ]
        )
    of_baselines: list[list[Cell]] = []
    for baseline, meaning in baselines.items():
        summary = summarise(records, baseline)
        over: list[Cell] = [
            1 if name == baseline else paired_speedup(records, baseline, name) for name in baselines
        ]
        figures = [
            summary.tokens_per_step,
            summary.tokens_per_second,
            *(_predictions(predicted_ar if baseline == AR else None) if predicts else ()),
            *_busy(records, baseline),
        ]
        of_baselines.append([meaning, 0, 0, *figures, *over])
    pays = confirmed[0].over_ar.is_faster
    confirmation.rows = [*confirmation.rows, *of_baselines] if pays else [*of_baselines, *confirmation.rows]
    prompts = len({record.prompt_id for record in records})
    own = summarise(records, AR)
    failed, short = failed_answers(records), short_answers(records, AR)
    pooled = "" if confirmations == 1 else f" in {confirmations} confirmations"
    taught = ", begun with what the search's prompts taught" if warm else ""
    confirmation.notes = [
        *([] if (wrong := misprediction(confirmed)) is None else [wrong]),
        *([] if pays else [about_plain(confirmed[0], noun_of(confirmed, records))]),
        f"{prompts} prompts the search did not see{pooled}, {own.verifier}, target {own.dtype}, state "
        f"{_states(records)}{taught}; "
        "speedups are geometric means of paired per-prompt ratios with 95 % bootstrap intervals",
        f"of plain decoding's answers {100 * own.eos_share:.0f} % end by EOS, {100 * own.loop_share:.0f} % in a "
        "loop (which flatters every method)",
        *_equality(confirmed, records, float32),
        *([] if short is None else [short]),
        *([] if failed is None else [f"{failed}; the figures are of the others"]),
        *filter(None, [busy_machine_of(records, AR)]),
        *clock_notes([record for record in records if not record.error]),
    ]
    return confirmation


def sentences(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> list[str]:
    """What the winner is compared with the best of every other choice; where no choices are compared, with the best
    chain, and with every known tree that is no chain.
    """
    winner = confirmed[0]
    multi_sequence = _is_multi_sequence(records)
    said = []
    if winner.choice is not None:
        chains: list[Confirmed] = []
        others = list(
            {one.choice: one for one in reversed(confirmed) if one.choice != winner.choice}.values()
        )[::-1]
    else:
        known = [one for one in confirmed if not one.name.startswith("trial ")]
        chains = [] if multi_sequence else [one for one in confirmed if one.is_chain]
        others = [*chains[:1], *(one for one in known if one not in chains)]
    for other in others:
        if other.choice is not None:
            kind = f"the best of {other.choice} ({other.name})"
        else:
            kind = f"the best chain ({other.name})" if other in chains else f"the {other.name}"
        if other is winner:
            said.append(f"The fastest {noun_of(confirmed, records)} is {kind} itself.")
            continue
        paired = paired_speedup(records, winner.name, other.name)
        if paired.refused is not None:
            said.append(f"{winner.label} cannot be compared with {kind}: {paired.refused}.")
            continue
        verdict = (
            "faster"
            if paired.is_faster
            else "slower"
            if paired.is_slower
            else "not told apart on these prompts"
        )
        said.append(f"{winner.label} against {kind}, prompt by prompt: {paired}, {verdict}.")
    return said


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
    worst = (
        wrong[0] if wrong[0] is confirmed[0] else max(wrong, key=lambda one: abs(one.predicted_error or 0))
    )
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
    """How the confirmed speedup was timed."""
    return "live" if one.over_ar.clock == MEASURED else "with live steps, timed by the same profile,"


def about_plain(best: Confirmed, noun: str) -> str:
    """Why the best that was found is not put above plain decoding.

    Args:
        best: The fastest.
        noun: What the candidates are.
    """
    speedup = best.over_ar
    if speedup.refused is not None:
        return f"{best.label} cannot be compared with plain decoding: {speedup.refused}."
    if speedup.is_slower:
        return f"No {noun} is faster than plain decoding here: the best, {best.label}, reaches {speedup}."
    return f"{best.label} is not told apart from plain decoding on these prompts: {speedup}."


def _equality(
    confirmed: Sequence[Confirmed], records: Sequence[PromptRecord], float32: InFloat32 | None
) -> list[str]:
    """How many outputs are plain decoding's, in float32 first where they were compared so."""
    names = [one.name for one in confirmed]
    total = Equality.sum(token_equality(records, name, AR) for name in names)
    said = [] if float32 is None else [float32.sentence(names, AR)]
    said.append(f"outputs of the {noun_of(confirmed, records)}s that equal plain decoding's: {total}")
    if total.near_ties:
        said.append(near_tie_sentence(summarise(records, AR).dtype))
    return said


def _predictions(predicted: Predicted | None) -> tuple[float | str | None, ...]:
    if predicted is None:
        return (None,) * len(_PREDICTED)
    speedup = None if predicted.over_ar is None else predicted.over_ar.unlabelled
    return predicted.tokens_per_step, predicted.tokens_per_second, speedup


def noun_of(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> str:
    """What the candidates are."""
    if any(one.choice is not None for one in confirmed):
        return "method"
    return "setting" if _is_multi_sequence(records) else "tree"


def _is_multi_sequence(records: Sequence[PromptRecord]) -> bool:
    """Whether several sequences were decoded for every prompt."""
    return any(record.group is not None for record in records)


def _busy(records: Sequence[PromptRecord], arm: str) -> list[float | None]:
    """The share of the time in which the target was busy with an arm's groups; nothing where none are decoded."""
    if not _is_multi_sequence(records):
        return []
    groups = [record.group for record in records if record.arm == arm and record.group is not None]
    wall = sum(group.wall_seconds for group in groups)
    return [sum(group.busy_seconds for group in groups) / wall if wall else None]


def _states(records: Sequence[PromptRecord]) -> str:
    return " and ".join(sorted({record.state for record in records} - {"stateless"})) or "stateless"
