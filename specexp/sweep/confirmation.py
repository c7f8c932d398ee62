"""The confirmation of a study, which measures the best few trials again on prompts that the search did not use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import time

import optuna
from optuna.trial import FrozenTrial
from typing_extensions import override

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench import clock
from specexp.bench.arm import LearningArm, decode_safely
from specexp.bench.equality import InFloat32, compare, near_tie_sentence, token_equality
from specexp.bench.measuring import decoded_again, records_by_prompt
from specexp.bench.observers import AcceptanceCounter, Observer
from specexp.bench.record import MEASURED, PromptRecord, line_of
from specexp.bench.statistics import WITHIN, Speedup, arm_names, paired_speedup, summarize
from specexp.bench.verdict import LEAST_GAIN, verdict_sentence
from specexp.config.sweep import Confirm
from specexp.core.latency import MOST_OFF
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.report.comparison import busy_machine_of, clock_notes, endings, failed_answers, short_answers
from specexp.report.table import Cell, Column, Table
from specexp.scheduling import TimeLine
from specexp.sweep.bench import WARM_UP_TOKENS, Bench
from specexp.sweep.trials import Confirmed, Predicted, confirmable, name_of_trial
from specexp.tracking.names import EAGER, PLAIN

BASELINES = {PLAIN: "plain decoding", EAGER: "Hugging Face's loop (hf-eager)"}
"""Labels of the arms that decode without drafting."""


COMMON = 15
"""Number of prompts that all candidates decode. Further ones are for those that are fastest on these."""


class Watch(Observer):
    """Counts each arm's accepted rank paths, and keeps each arm's time line for the first prompt.

    Attributes:
        acceptance_counts: Each arm's counts of accepted rank paths; empty if several sequences are decoded together.
        time_lines: Each arm's time line for the first prompt; empty if one sequence is decoded at a time.
    """

    def __init__(self) -> None:
        self.acceptance_counts: dict[str, AcceptanceCounter] = {}
        self.time_lines: dict[str, TimeLine] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self.acceptance_counts = {name: AcceptanceCounter() for name in arms}
        self.time_lines = {}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        self.acceptance_counts[arm].observe(outcome)

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        self.time_lines.setdefault(arm, timeline)


@dataclass(frozen=True)
class Confirmation:
    """The result of a confirmation."""

    confirmed: Sequence[Confirmed]  # fastest first
    records: Sequence[PromptRecord]  # of all arms
    arms: Mapping[str, LearningArm]  # the candidates' arms by name; already closed
    watch: Watch

    @property
    def winner(self) -> Confirmed:
        """The fastest candidate that is shown to be faster than plain decoding, or else the fastest."""
        return next((one for one in self.confirmed if one.over_plain.is_faster), self.confirmed[0])

    @property
    def is_multi_sequence(self) -> bool:
        """True if several sequences were decoded for each prompt."""
        return any(record.group is not None for record in self.records)

    @property
    def noun(self) -> str:
        """The word that sentences use for a candidate: ``method``, ``setting`` or ``tree``."""
        if any(one.choice is not None for one in self.confirmed):
            return "method"
        return "setting" if self.is_multi_sequence or "engine" in self.winner.attributes else "tree"


def select(study: optuna.Study, best: int, of_each: str | None = None) -> list[FrozenTrial]:
    """Return the trials to confirm: the ``best`` fastest, then the fastest for each choice of the key ``of_each``.

    If ``of_each`` is None, every known configuration follows instead. Only trials that were measured on every prompt
    and meet the constraints are returned. If a study has several objectives, the trials on the Pareto front come first.
    """
    finished = confirmable(study)
    several = len(study.directions) > 1
    front = {trial.number for trial in study.best_trials} if several else set()
    sign = -1 if several or study.direction.name == "MAXIMIZE" else 1
    ranked = sorted(finished, key=lambda trial: (trial.number not in front, sign * trial.values[0]))
    if of_each is None:
        others = [trial for trial in finished if "known" in trial.user_attrs]
    else:
        fastest = {trial.params.get(of_each, trial.number): trial for trial in reversed(ranked)}
        others = [*reversed(fastest.values())]
    return ranked[:best] + [trial for trial in others if trial not in ranked[:best]]


def confirm(
    trials: Sequence[FrozenTrial],
    bench: Bench,
    stage: Confirm,
    tick: Callable[[], None],
    least: int,
    until: float | None,
) -> Confirmation:
    """Decode the confirmation's prompts with every candidate, interleaved with plain decoding.

    Every candidate starts as it would be deployed; see :meth:`~specexp.sweep.bench.Bench.deployed`. After the first
    :data:`COMMON` prompts, plain decoding and the ``stage.best`` candidates that were fastest on them go on.

    Args:
        tick: Called after every prompt.
        least: Minimum number of prompts.
        until: Time, in seconds since the epoch, after which no more prompts begin. The bench keeps those decoded.
    """
    arms = {}
    for trial in trials:
        arm = bench.compose(name_of_trial(trial), trial.user_attrs["attributes"]["resolved"])
        arms[arm.name] = bench.deployed(arm)
    watch = Watch()
    data = bench.data("confirm")
    compared = [bench.plain(), *bench.other_arms(), *arms.values()]
    most = {arm.name: COMMON for arm in compared if arm.name != PLAIN}
    records: list[PromptRecord] = []
    watched = [watch] if all(arm.shows_steps for arm in arms.values()) else []
    try:
        rounds = records_by_prompt(compared, data.prompts, samples=bench.samples, most=most, analyses=watched)
        for number, new in enumerate(rounds, start=1):
            records += new
            tick()
            if number == COMMON:
                for name in sorted(arms, key=lambda name: _rank(paired_speedup(records, name, PLAIN)))[: stage.best]:
                    del most[name]
            if until is not None and number >= least and time() > until:
                data.keep(data.prompts[:number])
                break
        records = decoded_again(compared, data.prompts, records)
    finally:
        for one in compared:
            one.close()
    of_each, among = stage.of_each, len(trials)
    confirmed = [_confirmed(trial, arm, records, of_each, among) for trial, arm in zip(trials, arms, strict=True)]
    # Fastest first. A candidate that cannot be compared has the speedup NaN and comes last.
    confirmed.sort(key=lambda one: _rank(one.over_plain))
    return Confirmation(confirmed, records, arms, watch)


def _rank(speedup: Speedup) -> tuple[bool, float]:
    return speedup.refused is not None, -speedup.mean_log_ratio


def cold_figures(one: Confirmed, bench: Bench, path: Path) -> tuple[float, Speedup]:
    """Return a candidate's tokens per step and speedup if it is reset before every prompt, as for a first request.

    Decodes the first :data:`COMMON` of the confirmation's prompts and writes the records to ``path``.
    """
    arm = bench.compose(f"{one.name}, cold", one.attributes["resolved"])
    plain = bench.plain()
    records: list[PromptRecord] = []
    try:
        bench.warm_started(arm)
        prompts = bench.data("confirm").prompts[:COMMON]
        for warmed in (plain, arm):
            decode_safely(warmed, prompts[0], 0, WARM_UP_TOKENS)
        for prompt in prompts:
            for sample in range(bench.samples):
                arm.reset()
                reference = decode_safely(plain, prompt, sample)
                own = replace(decode_safely(arm, prompt, sample), state="cold")
                records += [reference, compare(own, reference, plain, prompt)]
    finally:
        arm.close()
        plain.close()
    atomic_write(path, "".join(map(line_of, records)))
    return summarize(records, arm.name).tokens_per_step, paired_speedup(records, arm.name, PLAIN)


def _confirmed(
    trial: FrozenTrial, arm: str, records: Sequence[PromptRecord], of_each: str | None, among: int
) -> Confirmed:
    summary, params = summarize(records, arm), trial.params
    attributes = dict(trial.user_attrs.get("attributes", {}))
    fixed_tree = "rank_paths" in attributes
    return Confirmed(
        name=arm,
        trial=trial.number,
        chosen=tuple(
            value if isinstance(value, str) else f"{key.rpartition('.')[2]}={value:.3g}"
            for key, value in params.items()
            # A fixed tree's numbers already have their own columns in the table.
            if isinstance(value, str) or not fixed_tree or key.startswith("execution.")
        ),
        attributes=attributes,
        tokens_per_step=summary.tokens_per_step,
        tokens_per_second=summary.tokens_per_second,
        over_plain=paired_speedup(records, arm, PLAIN, among=among),
        over_eager=paired_speedup(records, arm, EAGER) if EAGER in arm_names(records) else None,
        choice=None if of_each is None else str(params.get(of_each, arm)),
    )


def table(
    title: str, confirmation: Confirmation, predicted_plain: Predicted | None = None, float32: InFloat32 | None = None
) -> Table:
    """Return a table of candidates (fastest first) and baselines; the baselines come first if no candidate is faster.

    Args:
        predicted_plain: Figures that replay predicts for plain decoding; None if nothing was replayed.
        float32: Result of comparing outputs again in float32; None if this was not done.
    """
    confirmed, records = confirmation.confirmed, confirmation.records
    own = summarize(records, PLAIN)
    predicts = any(one.predicted is not None for one in confirmed)
    several = confirmation.is_multi_sequence
    adjective = clock.adjective(own.clock)
    predictions = ["predicted tokens per step", "predicted tokens/s", "predicted speedup"] if predicts else []
    heads = [
        Column(confirmation.noun),
        Column("nodes", digits=1),
        Column("tokens per step"),
        Column(f"{adjective}tokens/s", digits=0 if own.clock == MEASURED else 2),
        *map(Column, predictions + ["target busy"] * several),
        Column(f"{adjective}speedup", interval=True),
        Column("equal outputs"),
    ]

    def row(arm: str, label: str, predicted: Predicted | None, nodes: Cell, speedup: Cell) -> list[Cell]:
        summary = summarize(records, arm)
        cells: list[Cell] = [label, nodes, summary.tokens_per_step, summary.tokens_per_second]
        if predicted is not None:
            over_plain = None if predicted.over_plain is None else predicted.over_plain.unlabeled
            cells += [predicted.tokens_per_step, predicted.tokens_per_second, over_plain]
        else:
            cells += [None] * len(predictions)
        if several:
            cells.append(summary.target_utilisation)
        return [*cells, speedup, "reference" if arm == PLAIN else str(token_equality(records, arm, PLAIN))]

    candidates = []
    for one in confirmed:
        # For a tree that changes from step to step, this is the mean number of nodes.
        fixed = "rank_paths" in one.attributes
        nodes = one.attributes["nodes"] if fixed else summarize(records, one.name).nodes_per_step
        candidates.append(row(one.name, one.label, one.predicted, nodes, one.over_plain))
    plain = [row(PLAIN, BASELINES[PLAIN], predicted_plain if predicts else None, 0, 1)]
    if EAGER in arm_names(records):
        plain.append(row(EAGER, BASELINES[EAGER], None, 0, paired_speedup(records, EAGER, PLAIN)))
    shown = Table(clock.titled(title, own.clock), heads)
    shown.rows = [*candidates, *plain] if confirmation.winner.over_plain.is_faster else [*plain, *candidates]
    prompts = len({record.prompt_id for record in records})
    fewest = min(len({record.prompt_id for record in records if record.arm == one.name}) for one in confirmed)
    failed = failed_answers(records)
    warm = any(arm.parts.keeps_learning for arm in confirmation.arms.values())
    states = " and ".join(sorted({record.state for record in records} - {"stateless"})) or "stateless"
    state = f"state {states}{', learned also from the search prompts' if warm else ''}"
    names = [one.name for one in confirmed]
    notes = [
        "predictions are for the search's prompts, because the confirmation's prompts were not recorded"
        if any(one.predicted is not None and one.predicted.searched for one in confirmed)
        else None,
        f"{prompts} prompts the search did not see, {own.verifier}, target {own.dtype}, {state}",
        f"all but the best candidates decoded only the first {fewest}" if fewest < prompts else None,
        f"speedups are geometric means of paired per-prompt ratios, with 95 % intervals ({WITHIN})"
        + (f" that hold for all {len(confirmed)} candidates at once" if len(confirmed) > 1 else ""),
        "outputs are compared in the same dtype and passes; the text of other programs may differ at near ties",
        f"of plain decoding's answers, {endings(own, records)}",
        None if float32 is None else float32.sentence(names, PLAIN),
        near_tie_sentence(records),
        short_answers(records, PLAIN),
        None if failed is None else f"{failed}; the figures are of the others",
        *clock_notes([record for record in records if not record.error]),
    ]
    shown.notes = [note for note in notes if note]
    return shown


def sentences(confirmation: Confirmation) -> list[str]:
    """Compare the winner with the best of each other choice, or with the best chain and every known configuration."""
    confirmed, winner = confirmation.confirmed, confirmation.winner
    if winner.choice is not None:
        best = {one.choice: one for one in reversed(confirmed) if one.choice != winner.choice}
        others = {f"the best confirmed of {one.choice} ({one.name})": one for one in reversed(best.values())}
    else:
        chains = [] if confirmation.is_multi_sequence else [one for one in confirmed if one.is_chain]
        others = {f"the best chain ({one.name})": one for one in chains[:1]}
        known = [one for one in confirmed if not one.name.startswith("trial ") and one not in chains]
        others |= {one.name: one for one in known if one is not winner}
    found = []
    for kind, other in others.items():
        if other is winner:
            found.append(f"The fastest {confirmation.noun} is {kind}.")
            continue
        paired = paired_speedup(confirmation.records, winner.name, other.name)
        if paired.refused is not None:
            found.append(f"{winner.label} cannot be compared with {kind}: {paired.refused}.")
        else:
            verdict = "faster than" if paired.is_faster else "slower than" if paired.is_slower else None
            verdict = verdict or "not told apart from"
            found.append(f"{winner.label} is {verdict} {kind}: {paired}, prompt by prompt.")
    return found


def answer(confirmation: Confirmation, least_gain: float = LEAST_GAIN) -> str:
    """Return the verdict on the winner, with warnings if replay mispredicted a speedup or the machine was busy."""
    best = confirmation.winner
    verdict = verdict_sentence(best.label, best.over_plain, least_gain=least_gain)
    if best.over_plain.is_faster:
        verdict = f"{verdict.removesuffix('.')}, with the same output."
    return " ".join(filter(None, (misprediction(confirmation), verdict, busy_machine_of(confirmation.records, PLAIN))))


def misprediction(confirmation: Confirmation) -> str | None:
    """Return a warning if replay was wrong about a speedup by more than 10 %, otherwise None.

    It names the winner if the winner's prediction is wrong, otherwise the candidate with the largest error.
    """
    wrong = [one for one in confirmation.confirmed if abs(one.predicted_error or 0.0) > MOST_OFF]
    if not wrong:
        return None
    furthest = max(wrong, key=lambda one: abs(one.predicted_error or 0))
    worst = next((one for one in wrong if one is confirmation.winner), furthest)
    assert worst.predicted is not None
    assert worst.predicted.over_plain is not None
    clocked = "live" if worst.over_plain.clock == MEASURED else "with live steps timed by the same profile"
    return (
        f"Replayed speedups are off by more than {100 * MOST_OFF:.0f} %: {worst.label} was predicted at "
        f"{worst.predicted.over_plain.unlabeled}, but {clocked} it is {worst.over_plain}."
    )
