"""Re-measuring the best few on prompts the search did not see, and promoting by what that says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optuna import Study
from optuna.trial import FrozenTrial

from specexp.bench import clock
from specexp.bench.arm import EngineArm
from specexp.bench.equality import Equality, token_equality
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.bench.module import EvaluationModule
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.report import clock_notes
from specexp.bench.statistics import Speedup, arm_names, paired_speedup, summarise
from specexp.bench.table import Column, Table
from specexp.sweep.live_bench import run_test
from specexp.sweep.objective import confirmable
from specexp.sweep.prediction import Predicted

if TYPE_CHECKING:
    from lightning import Trainer

    from specexp.data.prompts import PromptDataModule

AR = "engine"
EAGER = "hf-eager"


@dataclass(frozen=True)
class Confirmed:
    """One candidate on the prompts of the confirmation.

    Attributes:
        name: of the known configuration, or ``trial 7``.
        trial: number of the trial it comes from.
        chosen: names of the parts that were chosen for it, e.g. ``fitted``; of what no fixed tree tells also the
            numbers, e.g. ``threshold=0.03`` or ``n=3``.
        attributes: its tree, see :class:`~specexp.sweep.objective.Candidate`.
        searched: speedup over AR that the search measured.
        tokens_per_step: micro mean.
        tokens_per_second: all tokens / all decode seconds.
        over_ar: paired speedup over plain decoding in the same loop.
        over_eager: paired speedup over Hugging Face's plain ``generate``; None where it was not run.
        choice: its choice of the key whose choices are compared; None where the confirmation compares none.
        predicted: what replay says of it; None where nothing was replayed, or nothing else.
    """

    name: str
    trial: int
    chosen: tuple[str, ...]
    attributes: dict[str, Any]
    searched: float | None
    tokens_per_step: float
    tokens_per_second: float
    over_ar: Speedup
    over_eager: Speedup | None
    choice: str | None = None
    predicted: Predicted | None = None

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling: ordinary speculative decoding."""
        paths = self.attributes.get("rank_paths")
        return paths is not None and all(rank == 0 for path in paths for rank in path)

    @property
    def label(self) -> str:
        """Name with the parts chosen for it, for a table."""
        return f"{self.name} ({', '.join(self.chosen)})" if self.chosen else self.name


def select(study: Study, best: int, of_each: str | None = None) -> list[FrozenTrial]:
    """The trials to confirm: the ``best`` fastest of the search, then the fastest of every choice of the key
    ``of_each`` or, without such a key, every known configuration.

    Only trials measured on every prompt and within the constraints are asked; a known configuration that
    failed is left out as well. Of a study with several objectives the trials that none dominates come first.
    """
    finished = confirmable(study)
    if len(study.directions) > 1:
        front = {trial.number for trial in study.best_trials}
        ranked = sorted(finished, key=lambda trial: (trial.number not in front, -trial.values[0]))
    else:
        sign = -1 if study.direction.name == "MAXIMIZE" else 1
        ranked = sorted(finished, key=lambda trial: sign * trial.values[0])
    if of_each is None:
        others = [trial for trial in finished if "known" in trial.user_attrs]
    else:
        others = list(
            {trial.params.get(of_each, trial.number): trial for trial in reversed(ranked)}.values()
        )[::-1]
    return ranked[:best] + [trial for trial in others if trial not in ranked[:best]]


def confirm(
    trials: Sequence[FrozenTrial],
    arms: Sequence[EngineArm],
    engine: EngineArm,
    eager: HuggingFaceArm | None,
    data: PromptDataModule,
    trainer: Trainer,
    records_path: Path,
    samples: int,
    tick: Callable[[], None],
    of_each: str | None = None,
) -> tuple[list[Confirmed], list[PromptRecord]]:
    """Decode the prompts by every arm, interleaved, AR and (where it can follow the verifier) Hugging Face's
    ``generate`` on all of them.

    Args:
        trials: what is confirmed.
        arms: one for each, in the same order, named as :func:`~specexp.sweep.trial_table.name_of_trial`
            says.
        engine: AR in our loop.
        eager: plain ``generate``; None where it cannot follow the verifier, or decodes no groups.
        data: the prompts.
        trainer: drives the test.
        records_path: where every prompt's records go; what an earlier confirmation left there is removed.
        samples: continuations of every prompt.
        tick: called after every prompt.
        of_each: key of the space whose choices are compared.

    Returns:
        The candidates, fastest first, and the records of all arms.
    """
    records_path.unlink(missing_ok=True)
    module = EvaluationModule(
        [engine, *([] if eager is None else [eager]), *arms],
        baseline=AR,
        records_path=records_path,
        samples=samples,
        on_records=lambda records: tick(),
    )
    try:
        run_test(trainer, module, data)
    finally:
        module.close()
    confirmed = []
    for trial, arm in zip(trials, arms, strict=True):
        summary = summarise(module.records, arm.name)
        attributes = dict(trial.user_attrs.get("attributes", {}))
        confirmed.append(
            Confirmed(
                name=arm.name,
                trial=trial.number,
                chosen=tuple(_chosen(trial.params, "rank_paths" in attributes)),
                attributes=attributes,
                searched=trial.values[0] if trial.values else None,
                tokens_per_step=summary.tokens_per_step,
                tokens_per_second=summary.tokens_per_second,
                over_ar=paired_speedup(module.records, arm.name, AR),
                over_eager=None if eager is None else paired_speedup(module.records, arm.name, EAGER),
                choice=None if of_each is None else str(trial.params.get(of_each, arm.name)),
            )
        )
    return rank(confirmed), module.records


def _chosen(params: Mapping[str, Any], fixed_tree: bool) -> Iterator[str]:
    for key, value in params.items():
        if isinstance(value, str):
            yield value
        elif not fixed_tree or key.startswith("execution."):
            yield f"{key.rpartition('.')[2]}={value:.3g}"


def rank(confirmed: Sequence[Confirmed]) -> list[Confirmed]:
    """Fastest first by the confirmed speedup over AR; those whose speedup was refused last."""
    return sorted(confirmed, key=lambda one: (one.over_ar.refused is not None, -one.over_ar.mean_log_ratio))


def table(
    name: str,
    question: str | None,
    confirmed: Sequence[Confirmed],
    records: Sequence[PromptRecord],
    predicted_ar: Predicted | None = None,
) -> Table:
    """The candidates, fastest first, then the baselines; of trees that differ from step to step the mean nodes.

    Args:
        name: of the study.
        question: of the experiment.
        confirmed: fastest first.
        records: of all arms.
        predicted_ar: what replay says of plain decoding.
    """
    baselines = {AR: "AR (engine)", EAGER: "hf-eager"}
    if EAGER not in arm_names(records):
        del baselines[EAGER]
    used = summarise(records, AR).clock
    grouped = _is_grouped(records)
    predicts = any(one.predicted is not None for one in confirmed)
    columns = [
        Column(_noun(confirmed, records)),
        Column("nodes", digits=1),
        Column("depth"),
        Column("tokens per step"),
        Column(f"{clock.word(used)}tokens/s", digits=0 if used == MEASURED else 2),
        *(Column(f"predicted {what}") for what in ("tokens per step", "tokens/s") if predicts),
        *([Column("target busy")] if grouped else []),
        *(Column(f"{clock.word(used)}speedup over {name}") for name in ("AR", EAGER)[: len(baselines)]),
    ]
    title = question or f"{name}: confirmed on prompts the search did not see"
    confirmation = Table(clock.title(title, used), columns)
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
                *(speedup.unlabelled for speedup in (one.over_ar, one.over_eager) if speedup is not None),
            ]
        )
    for baseline, meaning in baselines.items():
        summary = summarise(records, baseline)
        over = [
            "1" if name == baseline else paired_speedup(records, baseline, name).unlabelled
            for name in baselines
        ]
        figures = [
            summary.tokens_per_step,
            summary.tokens_per_second,
            *(_predictions(predicted_ar if baseline == AR else None) if predicts else ()),
            *_busy(records, baseline),
        ]
        confirmation.rows.append([meaning, 0, 0, *figures, *over])
    prompts = len({record.prompt_id for record in records})
    own = summarise(records, AR)
    confirmation.notes = [
        f"{prompts} prompts the search did not see, {own.verifier}, target {own.dtype}, state "
        f"{_states(records)}; "
        "speedups are geometric means of paired per-prompt ratios with 95 % bootstrap intervals",
        f"of plain decoding's answers {100 * own.eos_share:.0f} % end by EOS, {100 * own.loop_share:.0f} % in a "
        "loop (which flatters every method)",
        _equality(confirmed, records),
        *clock_notes([record for record in records if not record.error]),
    ]
    return confirmation


def sentences(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> list[str]:
    """What the winner is compared with plain decoding, where it is not faster, and with the best of every other
    choice; where no choices are compared, with the best chain, and with every known tree that is no chain.
    """
    winner = confirmed[0]
    grouped = _is_grouped(records)
    speedup = winner.over_ar
    said: list[str] = []
    if speedup.is_slower:
        said.append(
            f"No {_noun(confirmed, records)} is faster than plain decoding here: the best, {winner.label}, "
            f"reaches {speedup}."
        )
    elif speedup.refused is None and not speedup.is_faster:
        said.append(f"{winner.label} is not told apart from plain decoding on these prompts: {speedup}.")
    if winner.choice is not None:
        chains: list[Confirmed] = []
        others = list(
            {one.choice: one for one in reversed(confirmed) if one.choice != winner.choice}.values()
        )[::-1]
    else:
        known = [one for one in confirmed if not one.name.startswith("trial ")]
        chains = [] if grouped else [one for one in confirmed if one.is_chain]
        others = [*chains[:1], *(one for one in known if one not in chains)]
    for other in others:
        if other.choice is not None:
            kind = f"the best of {other.choice} ({other.name})"
        else:
            kind = f"the best chain ({other.name})" if other in chains else f"the {other.name}"
        if other is winner:
            said.append(f"The fastest is {kind} itself.")
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


def _equality(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> str:
    found = [token_equality(records, one.name, AR) for one in confirmed]
    total = Equality(
        sum(one.compared for one in found),
        sum(one.equal for one in found),
        sum(one.near_ties for one in found),
        sum(one.wrong for one in found),
    )
    return f"outputs of the {_noun(confirmed, records)}s that equal plain decoding's: {total}"


def _predictions(predicted: Predicted | None) -> tuple[float | None, float | None]:
    return (None, None) if predicted is None else (predicted.tokens_per_step, predicted.tokens_per_second)


def _noun(confirmed: Sequence[Confirmed], records: Sequence[PromptRecord]) -> str:
    """What the candidates are."""
    if any(one.choice is not None for one in confirmed):
        return "method"
    return "setting" if _is_grouped(records) else "tree"


def _is_grouped(records: Sequence[PromptRecord]) -> bool:
    """Whether several sequences were decoded for every prompt."""
    return any(record.group is not None for record in records)


def _busy(records: Sequence[PromptRecord], arm: str) -> list[float | None]:
    """The share of the time in which the target was busy with an arm's groups; nothing where none are decoded."""
    if not _is_grouped(records):
        return []
    groups = [record.group for record in records if record.arm == arm and record.group is not None]
    wall = sum(group.wall_seconds for group in groups)
    return [sum(group.busy_seconds for group in groups) / wall if wall else None]


def _states(records: Sequence[PromptRecord]) -> str:
    return " and ".join(sorted({record.state for record in records} - {"stateless"})) or "stateless"
