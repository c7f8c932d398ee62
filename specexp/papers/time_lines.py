"""Who did what when under every execution strategy (SEED, Figs. 1 and 3)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from specexp.bench.analysis import MultiSequenceAnalysis
from specexp.bench.publish import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.parts import Parts
    from specexp.scheduling.timeline import TimeLine

Positive = Annotated[float, Field(gt=0)]


class TimeLines(MultiSequenceAnalysis):
    """Time lines of the first prompts: the arms beside each other as a picture, and a trace of each arm for Perfetto
    (ui.perfetto.dev) or chrome://tracing, in which every prompt is a process.

    Args:
        items: prompts to keep, of every arm.
        window_ms: a first picture shows only so much, from the first target pass on, so that single passes can be seen;
            a second one shows everything. None leaves the first out.
    """

    name: ClassVar[str] = "time_lines"

    def __init__(self, items: Annotated[int, Field(ge=1)] = 1, window_ms: Positive | None = 250.0) -> None:
        self.items = items
        self.window_ms = window_ms
        self._kept: dict[str, dict[str, TimeLine]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Keep nothing of an earlier run."""
        self._kept = {arm: {} for arm in arms}

    def observe_run(self, arm: str, prompt_id: str, timeline: "TimeLine") -> None:
        """Keep it, if it is of one of the first prompts; of several samples of a prompt the first."""
        kept = self._kept[arm]
        if len(kept) < self.items and len(timeline):
            kept.setdefault(prompt_id, timeline)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """A table, one or two pictures a prompt, and a trace an arm."""
        from specexp.scheduling.trace import chrome_trace

        kept = {arm: lines for arm, lines in self._kept.items() if lines}
        files = {
            f"{self.name}_trace_{name}.json": chrome_trace(
                {f"{arm}: {prompt}": line for prompt, line in kept[arm].items()}
            )
            for arm, name in file_names(kept).items()
        }
        return Report({self.name: self._table()}, self._draw(kept), files)

    def _draw(self, kept: "Mapping[str, Mapping[str, TimeLine]]") -> "dict[str, Figure]":
        from specexp.bench.time_line_picture import draw_time_line

        figures = {}
        prompts = dict.fromkeys(prompt for lines in kept.values() for prompt in lines)
        for number, prompt in enumerate(prompts, start=1):
            name = self.name if number == 1 else f"{self.name}_{number}"
            lines = {arm: found[prompt] for arm, found in kept.items() if prompt in found}
            longest_ms = 1000 * max(line.seconds for line in lines.values())
            whole = self.window_ms is None or longest_ms <= self.window_ms
            if not whole:
                assert self.window_ms is not None
                title = f"{self.window_ms:g} ms of {prompt}"
                figures[name] = draw_time_line(lines, title, self.window_ms / 1000)
            figures[name if whole else f"{name}_whole"] = draw_time_line(lines, f"All of {prompt}")
        return figures

    def _table(self) -> "Table":
        from specexp.bench.table import Column, Table

        table = Table(
            "The time lines kept",
            [
                Column("arm"),
                Column("prompt"),
                Column("ms", 0),
                Column("target passes"),
                Column("sequences/pass"),
                Column("target busy", 1, "%"),
            ],
            notes=[
                "Traces open in ui.perfetto.dev and chrome://tracing.",
                "Target busy: share of the time in which it runs a pass or a prefill.",
            ],
        )
        for arm, lines in self._kept.items():
            for prompt, line in lines.items():
                passes = sum(span.what == "target" for span in line)
                decisions = sum(span.what in ("verify", "resample") for span in line)
                table.rows.append(
                    [
                        arm,
                        prompt,
                        1000 * line.seconds,
                        passes,
                        decisions / passes if passes else None,
                        line.utilisation(),
                    ]
                )
            if not lines:
                table.rows.append([arm, "none kept", None, None, None, None])
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
