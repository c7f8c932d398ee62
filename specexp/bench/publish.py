"""What a command or an analysis has to say, and the one way it reaches a person, a folder and W&B."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specexp.artifacts.atomic_write import atomic_write
from specexp.config.told import told

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text

    from specexp.bench.table import Table
    from specexp.config import Config
    from specexp.tracking import TrackedRun, Tracker

_LONGEST_TAG = 64  # that W&B takes
PAGE = "report.html"
"""The file one opens: answer, tables, charts and pictures in one."""
PIPE_WIDTH = 160
"""Characters of a line where the output is no terminal."""


class Attached(NamedTuple):
    """An exported artifact, to be attached to the tracked run.

    Attributes:
        folder: Folder of the artifact.
        name: Its name in W&B.
        kind: Its artifact kind.
    """

    folder: Path
    name: str
    kind: str


@dataclass(frozen=True)
class Report:
    """What there is to say, before it is known where.

    Names of tables and pictures are file names without their ends, and the keys of the tracked run.

    Attributes:
        tables: Tables for a person: printed, written and tracked. Each becomes ``NAME.md`` and ``NAME.csv``; with a
            ``page`` they stand there together, and have no files of their own.
        figures: Pictures, written as ``NAME.png`` and tracked.
        files: Further files: content by whole file name, e.g. ``acceptance.json``.
        data: Tables for a program: written as ``NAME.csv`` and tracked, not printed.
        sentences: Lines printed below the tables, and written below those of the page.
        summary: Figures to compare runs by, for the tracked run.
        title: Heading of the pages.
        answer: What it comes to, in a sentence: the first line of the page one opens.
        charts: Vega-Lite specifications, for that page.
        fragments: HTML of further sections of it.
        onward: What to do with the result: what is typed by what it does, the most useful first.
        page: Name without its end of one markdown file with all tables, sentences and pictures; None writes none.
        artifacts: What was exported, for the tracked run.
        parts: Reports published together with this one, after it.
    """

    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Table] = field(default_factory=dict)
    sentences: Sequence[str | Text] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    answer: str = ""
    charts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fragments: Mapping[str, str] = field(default_factory=dict)
    onward: Mapping[str, str] = field(default_factory=dict)
    page: str | None = None
    artifacts: Sequence[Attached] = ()
    parts: Sequence[Report] = ()

    def whole(self) -> Iterator[Report]:
        """This report, then its parts and theirs."""
        yield self
        for part in self.parts:
            yield from part.whole()

    def to_markdown(self) -> str:
        """The page: heading, tables, sentences, pictures by their file names."""
        pieces = [f"# {self.title}\n"] if self.title else []
        pieces += [table.to_markdown() for table in self.tables.values()]
        if self.sentences:
            pieces.append("".join(f"{sentence}  \n" for sentence in self.sentences))
        pieces += [f"![{name.replace('_', ' ')}]({name}.png)\n" for name in self.figures]
        return "\n".join(pieces)


def terminal(width: int = PIPE_WIDTH) -> Console:
    """The console of a command: as wide as the terminal, or as stated where the output goes into a file or a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, force_jupyter=False)


def publish(
    report: Report,
    folder: str | Path,
    tracker: Tracker | None = None,
    console: Console | None = None,
    *,
    kind: str = "run",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Print a report, write its files, track it as one run, and say where everything is.

    Tables are printed first, so that a full disk does not keep them from a person.

    Args:
        report: What there is to say.
        folder: Folder of the files; it exists or is made.
        tracker: W&B's bridge, whose hint how to sync is the last line; None tracks nothing.
        console: What is printed to; :func:`terminal` if None.
        kind: W&B's job type of the run.
        config: Resolved configuration, for the tracked run.

    Raises:
        OSError: A file cannot be written, because the disk is full.

    Example:
        >>> report = Report({"arms": results_table(records)}, figures={"speedup": picture})  # doctest: +SKIP
        >>> publish(report, "runs/train_free", tracker, kind="run")  # doctest: +SKIP
    """
    console = console or terminal()
    folder = Path(folder)
    for part in report.whole():
        for table in part.tables.values():
            console.print(table.to_rich())
        for sentence in part.sentences:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    files = files_of(report)
    for name, content in files.items():
        atomic_write(folder / name, content)
    atomic_write(folder / PAGE, _page(report, files, folder))
    if tracker is not None:
        with tracker.run(tracker.name, job_type=kind, config=config) as run:
            for part in report.whole():
                track(part, folder, run)
    known = told()
    known.next = next(iter(report.onward.values()), "")
    known.answer, known.folder, known.page = report.answer, str(folder), str(folder / PAGE)
    for part in report.whole():
        known.summary |= part.summary
        known.tables |= {name: table.records() for name, table in part.tables.items()}
    console.print(f"Results in {folder}; {PAGE} shows them", highlight=False, markup=False, soft_wrap=True)
    if tracker is not None and (hint := tracker.sync_hint()):
        console.print(f"W&B: {hint}", highlight=False, markup=False, soft_wrap=True)


def _page(report: Report, files: Mapping[str, str | bytes], folder: Path) -> str:
    """The page, with what the folder says of the run's file and environment."""
    from specexp.bench.page.html_page import html_page

    pictures = {
        name.removesuffix(".png"): content for name, content in files.items() if isinstance(content, bytes)
    }
    config, made_by, again = folder / "config.yaml", [], ""
    if (folder / "environment.json").exists():
        known = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        again = shlex.join(known["command"])
        packages = ", ".join(f"{name} {version}" for name, version in known["packages"].items())
        made_by = [
            f"commit {known['git_commit'] or 'unknown'}, {known['time']}",
            f"{known['device_name']} ({known['device']}), {known['threads']} threads, Python {known['python']}",
            packages,
        ]
    text = config.read_text(encoding="utf-8") if config.exists() else ""
    return html_page(list(report.whole()), pictures, config=text, made_by=made_by, again=again)


def tracker_of(config: Config, name: str, folder: str | Path) -> Tracker:
    """W&B's bridge of a command: its ``tracking`` section, and the model and device as tags beside its own.

    Args:
        config: Configuration of the command.
        name: Group of its runs.
        folder: Of its results.
    """
    from specexp.tracking import Tracker

    tracking = dict(config.get("tracking"))
    model = Path(config.get("pair.target")).name
    tags = dict.fromkeys([*tracking.pop("tags"), model, config.get("pair.device")])
    return Tracker(name, folder, tags=[tag[:_LONGEST_TAG] for tag in tags if tag], **tracking)


def files_of(report: Report) -> dict[str, str | bytes]:
    """The content of every file of a report and its parts, by file name."""
    from specexp.bench.pictures import png

    files: dict[str, str | bytes] = {}
    for part in report.whole():
        if part.page is not None:
            files[f"{part.page}.md"] = part.to_markdown()
        else:
            files |= {f"{name}.md": table.to_markdown() for name, table in part.tables.items()}
            files |= {f"{name}.csv": table.to_csv() for name, table in part.tables.items()}
        files |= {f"{name}.csv": table.to_csv() for name, table in part.data.items()}
        files |= {f"{name}.png": png(figure) for name, figure in part.figures.items()}
        files |= part.files
    return files


def track(report: Report, folder: Path, run: TrackedRun) -> None:
    """Write one report, its parts left out, into a tracked run: its pictures as they are in the folder of its files."""
    for name, table in {**report.tables, **report.data}.items():
        run.table(name, table.records())
    for name in report.figures:
        run.picture(name, folder / f"{name}.png")
    if report.fragments:
        from specexp.bench.page.html_page import alone

        for name, fragment in report.fragments.items():
            run.html(f"{name}_view", alone(fragment))
    if report.summary:
        run.summary(report.summary)
    for artifact in report.artifacts:
        run.artifact(*artifact)
