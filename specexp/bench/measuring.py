"""The measurement itself: every arm decodes every prompt, and the arms take turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from specexp.bench.arm import Arm, LearningArm, decode_safely
from specexp.bench.equality import compare
from specexp.bench.observers import Observer
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import IMPOSSIBLE, deviating, pass_ratio
from specexp.data import Prompt
from specexp.tracking.names import PLAIN

WARM_UP_TOKENS = 16


def plain_of(arms: Sequence[Arm], baseline: str | None) -> LearningArm | None:
    """Return the arm named ``baseline``. Raises ValueError if it is missing or if two arms have the same name."""
    names = [arm.name for arm in arms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"names of arms must be unique, but two arms are named {twice[0]!r}")
    plain = next((arm for arm in arms if arm.name == baseline and isinstance(arm, LearningArm)), None)
    if baseline is not None and plain is None:
        raise ValueError(f"baseline must be an arm with parts of ours, got {baseline!r}; arms are {', '.join(names)}")
    return plain


def records_by_prompt(
    arms: Sequence[Arm],
    prompts: Iterable[Prompt],
    *,
    baseline: str | None = PLAIN,
    samples: int = 1,
    orders: Mapping[str, Sequence[Prompt]] | None = None,
    every: Mapping[str, int] | None = None,
    most: Mapping[str, int] | None = None,
    analyses: Sequence[Observer] = (),
) -> Iterator[list[PromptRecord]]:
    """Yield the records of each prompt on demand. The caller may stop after any prompt.

    With a ``baseline``, every arm first decodes one prompt as an unrecorded warm-up and is reset. Outputs are compared
    with the baseline's, and a prompt that fails is recorded with the reason. Without a baseline, there is no warm-up
    and no comparison, and the first error is raised.

    Args:
        arms: Arms with distinct names. They are reset at the start but not closed.
        baseline: Name of the plain-decoding arm that outputs are compared with.
        orders: All prompts in an arm's own order, keyed by arm name. If an earlier record is later found to differ from
            plain decoding, it is yielded again.
        every: For each arm name, n if the arm decodes only every n-th prompt; 1 by default.
        most: For each arm name, the number of first prompts that the arm decodes; all by default.
        analyses: Observers of every step of our arms after the warm-up.
    """
    plain = plain_of(arms, baseline)
    for arm in arms:
        arm.reset()
        if isinstance(arm, LearningArm):
            arm.observers = arm.timeline_observers = ()
    orders = orders or {}
    every, most = every or {}, most or {}
    records: dict[tuple[str, str, int], PromptRecord] = {}
    decoded: dict[str, Prompt] = {}
    for number, prompt in enumerate(prompts):
        if number == 0 and plain is not None:
            _warm_up(arms, prompt, analyses)
        new: list[PromptRecord] = []
        due = [arm for arm in arms if number % every.get(arm.name, 1) == 0 and number < most.get(arm.name, number + 1)]
        for sample in range(samples):
            shift = (number * samples + sample) % len(due)
            for place, arm in enumerate(due[shift:] + due[:shift]):
                own = orders[arm.name][number] if arm.name in orders else prompt
                decoded[own.prompt_id] = own
                decode = arm.decode if plain is None else partial(decode_safely, arm)
                new.append(replace(decode(own, sample), turn_in_rotation=place))
        records |= by_key(new)
        changed: dict[tuple[str, str, int], PromptRecord] = {}
        for arm, key in product(arms if plain is not None else (), {record.key for record in new}):
            assert plain is not None
            reference, record = (records.get((name, *key)) for name in (plain.name, arm.name))
            if reference is not None and record is not None and record.difference is None:
                compared = compare(record, reference, plain, decoded[record.prompt_id])
                if compared is not record:
                    changed[arm.name, *key] = compared
        records |= changed
        yield [changed.pop((record.arm, *record.key), record) for record in new] + [*changed.values()]


def decoded_again(
    arms: Sequence[Arm],
    prompts: Iterable[Prompt],
    records: Sequence[PromptRecord],
) -> list[PromptRecord]:
    """Decode prompts with impossible or deviating times again, and return the records with the new times.

    All arms whose drafts do not depend on earlier prompts take part. The second time replaces the first. If the run's
    noise reaches the impossible, nothing is decoded again, because second chances for the extremes alone would narrow
    the interval; see :func:`~specexp.bench.statistics.paired_speedup`. A deviation that repeats is the prompt's own
    cost and counts. One that neither repeats nor goes away makes the record ``unsteady``. Impossible speedups never
    count.
    """
    before = by_key(records)
    known = {prompt.prompt_id: prompt for prompt in prompts}
    names = [arm.name for arm in arms if arm.name != PLAIN]
    odd = {name: deviating(records, name, PLAIN) for name in names}
    if any(cut for _, cut in odd.values()):
        return list(records)
    # a drafter that learned from the answer would draft it perfectly
    again = [arm for arm in arms if isinstance(arm, LearningArm) and not arm.parts.keeps_learning]
    kept = dict(before)
    for key, arm in product(sorted(set().union(*(keys for keys, _ in odd.values()))), again):
        old = before.get((arm.name, *key))
        if old is None or old.error or key[0] not in known:
            continue
        arm.observers = arm.timeline_observers = ()
        new = decode_safely(arm, known[key[0]], key[1])
        if (new.token_ids, new.steps) == (old.token_ids, old.steps) and new.decode_seconds:
            times = {one: getattr(new, one) for one in ("decode_seconds", "seconds", "loop_seconds")}
            kept[arm.name, *key] = replace(old, **times)
    for name in names:
        for key in odd[name][0] & deviating([*kept.values()], name, PLAIN)[0]:
            first, second = (pass_ratio(found[name, *key], found[PLAIN, *key]) or 1.0 for found in (before, kept))
            if not 1 / IMPOSSIBLE < first / second < IMPOSSIBLE:
                kept[name, *key] = replace(kept[name, *key], unsteady=True)
    return [*kept.values()]


def _warm_up(arms: Sequence[Arm], prompt: Prompt, analyses: Sequence[Observer]) -> None:
    for arm in arms:
        decode_safely(arm, prompt, 0, min(WARM_UP_TOKENS, arm.generation.max_new_tokens))
        arm.reset()
    watched = [arm for arm in arms if isinstance(arm, LearningArm)]
    for analysis in analyses:
        analysis.begin({arm.name: arm.parts for arm in watched})
    for arm in watched:
        arm.observers = [partial(analysis.observe, arm.name) for analysis in analyses]
        arm.timeline_observers = [partial(analysis.observe_run, arm.name) for analysis in analyses]


def by_key(records: Iterable[PromptRecord]) -> dict[tuple[str, str, int], PromptRecord]:
    """Return the last record for each arm, prompt id and sample."""
    return {(record.arm, *record.key): record for record in records}
