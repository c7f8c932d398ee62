"""Who did what when under every execution strategy (SEED, Figs. 1 and 3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

from matplotlib.figure import Figure
from pydantic import Field
from typing_extensions import override

from specexp.bench.analysis import MultiSequenceAnalysis, over
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.bench.time_line_picture import draw_time_line
from specexp.core.parts import Parts
from specexp.scheduling.timeline import TimeLine
from specexp.scheduling.trace import chrome_trace


class TimeLines(MultiSequenceAnalysis):
    """Time lines of the first prompts: the arms beside each other as a picture, and a trace of each arm for Perfetto
    (ui.perfetto.dev) or chrome://tracing, in which every prompt is a process.

    Args:
        items: Prompts to keep, of every arm.
        window_ms: A first picture shows only so much, from the first target pass on, so that single passes can be seen;
            a second one shows everything. None leaves the first out.
    """

    name: ClassVar[str] = "time_lines"

    def __init__(
        self,
        items: Annotated[int, Field(ge=1)] = 1,
        window_ms: Annotated[float, Field(gt=0)] | None = 250.0,
    ) -> None:
        self.items = items
        self.window_ms = window_ms
        self._kept: dict[str, dict[str, TimeLine]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._kept = {arm: {} for arm in arms}

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        kept = self._kept[arm]
        if len(kept) < self.items and len(timeline):
            kept.setdefault(prompt_id, timeline)  # of several samples of a prompt the first

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        kept = {arm: lines for arm, lines in self._kept.items() if lines}
        files = {
            f"{self.name}_trace_{name}.json": chrome_trace(
                {f"{arm}: {prompt}": line for prompt, line in kept[arm].items()}
            )
            for arm, name in file_names(kept).items()
        }
        return Report({self.name: self._table()}, self._draw(kept), files)

    def _draw(self, kept: Mapping[str, Mapping[str, TimeLine]]) -> dict[str, Figure]:
        figures = {}
        prompts = dict.fromkeys(prompt for lines in kept.values() for prompt in lines)
        for number, prompt in enumerate(prompts, start=1):
            name = self.name if number == 1 else f"{self.name}_{number}"
            lines = {arm: found[prompt] for arm, found in kept.items() if prompt in found}
            longest_ms = 1000 * max(line.seconds for line in lines.values())
            if self.window_ms is not None and longest_ms > self.window_ms:
                title = f"{self.window_ms:g} ms of {prompt}"
                figures[name] = draw_time_line(lines, title, self.window_ms / 1000)
                name = f"{name}_whole"
            figures[name] = draw_time_line(lines, f"All of {prompt}")
        return figures

    def _table(self) -> Table:
        table = Table(
            "The time lines kept",
            columns("arm | prompt | ms:.0 | target passes | sequences/pass | target busy:.1%"),
            notes=[
                "Traces open in ui.perfetto.dev and chrome://tracing.",
                "Target busy: share of the time in which it runs a pass or a prefill.",
            ],
        )
        for arm, lines in self._kept.items():
            for prompt, line in lines.items():
                passes = sum(span.what == "target" for span in line)
                decisions = sum(span.what in ("verify", "resample") for span in line)
                facts = [1000 * line.seconds, passes, over(decisions, passes), line.utilisation()]
                table.rows.append([arm, prompt, *facts])
            if not lines:
                table.add({"arm": arm, "prompt": "none kept"})
        return table


def file_names(arms: Iterable[str]) -> dict[str, str]:
    """A different name for the files of every arm, of lower-case letters, digits and underscores.

    Example:
        >>> file_names(["SEED, n=3", "SEED (n=3)"])
        {'SEED, n=3': 'seed_n_3', 'SEED (n=3)': 'seed_n_3_2'}
    """
    found: dict[str, str] = {}
    for arm in arms:
        plain = re.sub(r"[^a-z0-9]+", "_", arm.lower()).strip("_") or "arm"
        name, number = plain, 1
        while name in found.values():
            number += 1
            name = f"{plain}_{number}"
        found[arm] = name
    return found
