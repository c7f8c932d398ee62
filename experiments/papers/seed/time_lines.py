"""Time lines of target and drafters (SEED, Figs. 1 and 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from experiments.papers.shared import MultiSequenceAnalysis, table_of
from specexp.bench.record import PromptRecord
from specexp.core.parts import Parts
from specexp.report.analysis import over
from specexp.report.pictures import draw_time_line
from specexp.report.publish import Report
from specexp.scheduling.timeline import TimeLine, What, chrome_trace

DECISIONS: tuple[What, ...] = ("verify", "resample")


class TimeLines(MultiSequenceAnalysis):
    """Time lines of the first prompt: the arms in one picture, and a trace of each arm for Perfetto (ui.perfetto.dev)
    or chrome://tracing.
    """

    name: ClassVar[str] = "time_lines"
    window_ms = 250.0
    """The picture shows only so many milliseconds of a time line, so that single passes are visible."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, TimeLine] = {}
        self._prompt: str | None = None

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        self._kept, self._prompt = {}, None

    @override
    def observe_run(self, arm: str, prompt_id: str, timeline: TimeLine) -> None:
        if len(timeline) and prompt_id == (self._prompt or prompt_id):
            self._prompt = prompt_id
            self._kept.setdefault(arm, timeline)  # the first of several samples of the prompt

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "The time lines kept",
            "arm | prompt | ms:.0 | target passes | sequences/pass | target busy:.1%",
            "Target busy: share of the time in which it runs a pass or a prefill.",
        )
        files = {}
        for arm, line in self._kept.items():
            passes, decisions = (sum(span.what in kinds for span in line) for kinds in (("target",), DECISIONS))
            facts = [1000 * line.seconds, passes, over(decisions, passes), line.utilisation()]
            table.rows.append([arm, self._prompt, *facts])
            plain = re.sub(r"[^a-z0-9]+", "_", arm.lower()).strip("_")
            files[f"{self.name}_trace_{plain}.json"] = chrome_trace({f"{arm}: {self._prompt}": line})
        if not self._kept:
            return Report({self.name: table})
        longest = 1000 * max(line.seconds for line in self._kept.values())
        title = f"{min(longest, self.window_ms):.0f} ms of {self._prompt}"
        figure = draw_time_line(self._kept, title, self.window_ms / 1000 if longest > self.window_ms else None)
        return Report({self.name: table}, {self.name: figure}, files)
