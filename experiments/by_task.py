"""The fastest setup of each category of prompts: one row a task, plain decoding where nothing is faster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from experiments.papers.shared import check_arms
from specexp.bench import clock
from specexp.bench.equality import token_equality
from specexp.bench.record import by_position
from specexp.bench.statistics import Speedup, arm_names, categories, paired_speedup, summarize
from specexp.report.analysis import Analysis, drafting, over
from specexp.report.publish import Report
from specexp.report.table import Table, columns
from specexp.tracking.names import PLAIN

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.core.parts import Parts


_BARS, _POSITIONS = "▁▂▃▄▅▆▇█", 5
_COUNTS = ("drafted_at", "accepted_at")


def sparkline(drafted: Sequence[int], accepted: Sequence[int]) -> str:
    """Return a bar for each of the first five depths: the share of steps that accepted a token there.

    Args:
        drafted: ``[depths]`` steps that drafted a token at this depth.
        accepted: ``[depths]`` steps that accepted one.

    Example:
        >>> sparkline((4, 4, 2), (4, 2))
        '█▅▁'
    """
    counts = zip_longest(drafted[:_POSITIONS], accepted[:_POSITIONS], fillvalue=0)
    return "".join(_BARS[round(hits / steps * (len(_BARS) - 1))] for steps, hits in counts if steps)


class FastestByTask(Analysis):
    """The fastest arm of each category, chosen on every other prompt and measured on the rest.

    If the interval of its speedup is not above 1, the best setup of the category is plain decoding. The file
    ``tasks_rule.json`` has the setup of each category, and the fields of a server's requests that switch drafts off.
    """

    name: ClassVar[str] = "tasks"

    def __init__(self, baseline: str = PLAIN) -> None:
        self.baseline = baseline

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        check_arms(self, "baseline", [self.baseline], arms)
        self._drafting = list(drafting(arms))

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        used = summarize(records, self.baseline).clock
        adjective = clock.adjective(used)
        heads = f"task | plain {adjective}tokens/s:.0 | best setup | {adjective}speedup:interval"
        table = Table(
            clock.titled("Which setup for which task?", used),
            columns(f"{heads} | accepted/step | by position | output equal"),
            notes=[
                "The setup of a task was chosen on every other prompt. All figures of a row are of the other prompts.",
                'A row with "plain" has the figures of the next setup, which is not faster.',
                "By position: the share of steps that accepted a token at depth 1 to 5, of those that drafted one.",
            ],
        )
        faster, rule = [], {}
        for task in categories(records):
            found = _fastest([one for one in records if one.category == task], self._drafting, self.baseline)
            if found is None:
                continue
            arm, speedup, measured = found
            plain = summarize(measured, self.baseline)
            equal = str(token_equality(measured, arm, self.baseline))
            setup = arm if speedup.is_faster else f"plain; next {arm}"
            counted = [one for one in measured if one.arm == arm and not one.error]
            accepted = over(sum(one.accepted_drafts for one in counted), sum(one.steps for one in counted))
            positions = sparkline(*(by_position(getattr(one, key) for one in counted) for key in _COUNTS))
            row = [task, plain.tokens_per_second, setup, speedup, accepted, positions, equal]
            table.rows.append(row)
            rule[task] = {
                "setup": arm if speedup.is_faster else self.baseline,
                "request": {"speculative": speedup.is_faster},
            }
            if speedup.is_faster:
                faster.append(f"{task} {speedup} ({arm})")
        pays = "; ".join(faster)
        answer = f"Drafting pays for {len(faster)} of {len(table.rows)} tasks{': ' if pays else ''}{pays}."
        files = {f"{self.name}_rule.json": json.dumps(rule, indent=1) + "\n"}
        return Report({self.name: table}, data={self.name: table}, files=files, answer=answer, page=self.name)


def _fastest(
    records: Sequence[PromptRecord], names: Sequence[str], baseline: str
) -> tuple[str, Speedup, list[PromptRecord]] | None:
    """Return the arm that is fastest on every other prompt, with speedup and records of the rest.

    A single prompt is both. None if no arm can be compared with the baseline.
    """
    prompts = list(dict.fromkeys(one.prompt_id for one in records))
    chosen_on, measured_on = prompts[::2], prompts[1::2] or prompts
    choosing = [one for one in records if one.prompt_id in chosen_on]
    found = {name: paired_speedup(choosing, name, baseline) for name in arm_names(records) if name in names}
    fair = {name: speedup.ratio for name, speedup in found.items() if speedup.refused is None}
    if not fair:
        return None
    best = max(fair, key=fair.__getitem__)
    measured = [one for one in records if one.prompt_id in measured_on]
    return best, paired_speedup(measured, best, baseline), measured
