"""The report of a command: printed, written to a folder as tables, pictures and one page, and tracked in W&B."""

from __future__ import annotations

import json
import os
import shlex
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from markupsafe import Markup

from specexp.artifacts.atomic_write import atomic_write, held
from specexp.artifacts.environment import device_name, machine_line, package_versions
from specexp.artifacts.store import BEST_TREE
from specexp.base.kernels import cache_folder
from specexp.base.messages import counted
from specexp.config import CommandError, ConfigError
from specexp.config.check import Checker
from specexp.config.command import current_result
from specexp.config.schema import Pair, Tracking
from specexp.models.smollm2 import described
from specexp.report.table import Table
from specexp.tracking.tracker import TrackedRun, Tracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console
    from rich.text import Text

_LONGEST_TAG = 64  # maximum length of a W&B tag, in characters
PAGE = "report.html"
"""The HTML page to open, with the answer, tables, charts and pictures in one file."""
PIPE_WIDTH = 160
"""The line width in characters if the output is not a terminal."""
RECORDS = "records.jsonl"
"""The file with a run's records. Studies have no such file."""
_LOCK = ".lock"  # holds the id of the process that writes to the folder
OF_A_STUDY = ("trials.csv", "reference.json", "journal.log")  # a study has at least one of these files
_NOT_COMPARED = ("output", "tracking")  # sections that may differ between runs of the same experiment
_MISSING = object()  # a default that differs from every configured value


class Attached(NamedTuple):
    """An exported artifact to attach to the tracked run: its folder, its name in W&B, its kind and its aliases."""

    folder: Path
    name: str
    kind: str
    aliases: Sequence[str] = ("latest", "best")  # latest is W&B's own


@dataclass(frozen=True)
class Report:
    """The results of a command or an analysis, before they are printed, written and tracked.

    The names of tables and pictures are their file names without a suffix and their keys in the tracked run.
    """

    # printed, written and tracked. Each becomes ``NAME.md`` and ``NAME.csv``, unless there is a ``page``
    tables: Mapping[str, Table] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)  # written as ``NAME.png`` and tracked
    files: Mapping[str, str] = field(default_factory=dict)  # contents of additional files, by file name
    # for programs: written as ``NAME.csv`` and tracked, but not printed
    data: Mapping[str, Table] = field(default_factory=dict)
    sentences: Sequence[str | Text] = ()
    summary: Mapping[str, Any] = field(default_factory=dict)  # metrics for comparing tracked runs
    drawing: str = ""  # text printed after the sentences, but not written to files
    title: str = ""
    answer: str = ""  # the result in a sentence: the first line of the HTML page
    limits: Sequence[str] = ()  # sentences that limit the answer; ``--quiet`` prints them too
    proof: str = ""  # sentence below the answer: whether the outputs equal those of plain decoding
    charts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Vega-Lite, for the HTML page
    fragments: Mapping[str, str] = field(default_factory=dict)  # more sections of the page, as HTML
    # next commands by purpose, the most useful first
    next_steps: Mapping[str, str] = field(default_factory=dict)
    # file name without suffix of one markdown file with all tables and sentences; None writes one file per table
    page: str | None = None
    artifacts: Sequence[Attached] = ()  # exported artifacts, for the tracked run
    parts: Sequence[Report] = ()  # reports published together with this one, after it

    def whole(self) -> Iterator[Report]:
        """Yield this report, followed by all of its parts, recursively."""
        yield self
        for part in self.parts:
            yield from part.whole()

    def closing(self) -> Iterator[str | Text]:
        """Yield the text printed below the tables: answer and proof, the other sentences, and the drawing."""
        later = [*self.sentences, *(part.answer for part in self.parts)]
        yield from (one for one in (self.answer, *self.limits, self.proof) if one and one not in later)
        yield from [*self.sentences, *filter(None, [self.drawing])]

    def to_markdown(self) -> str:
        """Return the report as a Markdown page: heading, tables, sentences, and links to the pictures."""
        pieces = [f"# {self.title}\n"] if self.title else []
        pieces += [table.to_markdown() for table in self.tables.values()]
        if sentences := [*self.limits, *self.sentences]:
            pieces.append("".join(f"{sentence}  \n" for sentence in sentences))
        pieces += [f"![{name.replace('_', ' ')}]({name}.png)\n" for name in self.figures]
        return "\n".join(pieces)


def terminal(width: int = PIPE_WIDTH) -> Console:
    """Return the console of a command. It is ``width`` characters wide if the output is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, force_jupyter=False, emoji=False)


def publish(
    report: Report,
    folder: str | Path,
    tracker: Tracker | None = None,
    console: Console | None = None,
    *,
    kind: str = "run",
    config: Mapping[str, Any] | None = None,
) -> None:
    """Print a report, write its files into a folder, track it as one run, and print where everything is.

    Tables are printed first, so that they are not lost if the disk is full.
    """
    console = console or terminal()
    folder = Path(folder)
    parts = list(report.whole())
    plain: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
    for part in parts:
        for table in part.tables.values():
            console.print(table.to_rich())
        for text in part.closing():
            console.print(text, **plain)
    conditions = conditions_of(folder) if any(part.tables for part in parts) else []
    for line in conditions[:2]:
        console.print(line, style="dim", **plain)
    folder.mkdir(parents=True, exist_ok=True)
    files = files_of(report)
    if conditions and report.page is not None:
        files[f"{report.page}.md"] = "\n".join([report.to_markdown(), *conditions, ""])
    for name, content in files.items():
        atomic_write(folder / name, content)
    atomic_write(folder / PAGE, html_page(report, files, folder))
    if tracker is not None:
        with tracker.run(tracker.name, job_type=kind, config=config) as run:
            for part in parts:
                track(part, folder, run)
    result = current_result()
    result.next = next(iter(report.next_steps.values()), "")
    result.answer = report.answer
    result.folder = str(folder)
    result.page = str(folder / PAGE)
    result.limits = [*report.limits]
    for part in parts:
        result.summary |= part.summary
        result.tables |= {name: table.records() for name, table in part.tables.items()}
    console.print(f"Results in {folder}; open {PAGE} to see them", **plain)
    if tracker is not None and (hint := tracker.sync_hint()):
        console.print(f"W&B: {hint}", **plain)


def conditions_of(folder: Path) -> list[str]:
    """Return the conditions of a folder's results in two lines to paste with a table, and a line with the command.

    There are none if they are unknown.
    """
    if not (folder / "environment.json").exists():
        return []
    known = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    pair, prompts = config["pair"], config["data"]["prompts"]
    target = Path(pair["target"]).name if Path(pair["target"]).exists() else pair["target"]
    kind = prompts["class_path"] if isinstance(prompts, dict) else prompts
    export = (config.get("sweep") or {}).get("export")
    artifact = f"{export['to']}/{BEST_TREE}" if export else config.get("artifact")
    how = [pair["target_dtype"], *([] if pair["mode"] == "auto" else [pair["mode"]])]
    if (engine := config.get("engine")) is not None:
        how.append(engine["class_path"].rpartition(".")[2])
    return [
        machine_line(known),
        f"{described(target)}, {', '.join(how)}; prompts of {kind.rpartition('.')[2]}; "
        f"at most {counted(config['generation']['max_new_tokens'], 'token')} each, {known['time'][:10]}",
        f"`{shlex.join(known['command'])}`" + (f"; artifact `{artifact}`" if artifact else ""),
    ]


def html_page(report: Report, files: Mapping[str, str | bytes], folder: Path) -> str:
    """Return the report as a self-contained HTML page that works offline.

    It includes the pictures among ``files``, the folder's ``config.yaml``, and its results' conditions.
    """
    parts = list(report.whole())
    tables = {name: table for part in parts for name, table in part.tables.items()}
    charts = {name: chart for part in parts for name, chart in part.charts.items()}
    title = report.title or next((table.title for table in tables.values()), "specexp")
    config = folder / "config.yaml"
    made_by = conditions_of(folder)
    sentences = [str(sentence) for part in parts for sentence in (*part.limits, *part.sentences)]
    pictures = {name.removesuffix(".png"): content for name, content in files.items() if name.endswith(".png")}
    return render(
        "page.html.j2",
        title=title,
        answer=report.answer,
        proof=report.proof,
        conditions=made_by[1] if made_by else "",
        names=list(tables),
        tables=list(tables.values()),
        charts=charts,
        sentences=[sentence for sentence in sentences if sentence not in (report.answer, report.proof, title)],
        fragments={name: Markup(text) for part in parts for name, text in part.fragments.items()},
        pictures={
            name.replace("_", " "): b64encode(content).decode()
            for name, content in pictures.items()
            if isinstance(content, bytes)
        },
        next_steps=report.next_steps,
        made_by=made_by,
        config=config.read_text(encoding="utf-8") if config.exists() else "",
        bundle=_chart_library() if charts else "",
    )


def render(template: str, **values: Any) -> Markup:
    """Render a template from ``page/`` as HTML. String values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("specexp.report", "page")
    look: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    templates = Environment(loader=loader, undefined=StrictUndefined, **look)
    return Markup(templates.get_template(template).render(values))


def _chart_library() -> Markup:
    """Return the JavaScript that defines ``window.vegaEmbed``: Vega, Vega-Lite and vega-embed, from vl-convert-python.

    Building the bundle takes a few seconds, so it is kept in the cache folder.
    """
    file = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    if not file.exists():
        import vl_convert

        made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, made)
    return Markup(file.read_text(encoding="utf-8"))


def tracker_of(tracking: Tracking, pair: Pair, name: str, folder: str | Path) -> Tracker:
    """Return a command's W&B tracker as configured in the ``tracking`` section, with tags for model and device."""
    given = tracking.model_dump()
    tags = dict.fromkeys([*given.pop("tags"), Path(pair.target).name, pair.device])
    return Tracker(name, folder, tags=[tag[:_LONGEST_TAG] for tag in tags if tag], **given)


def tracked_config(whole: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration's values, and more for comparing tracked runs: model, data, parts, device and versions."""
    device, prompts = whole["pair"]["device"], whole["data"]["prompts"]
    return {
        **whole,
        "model": described(whole["pair"]["target"]),
        "prompt_set": _short(prompts["class_path"] if isinstance(prompts, Mapping) else prompts),
        "parts": parts_label(whole),
        "device": device,
        "device_name": device_name(device),
        "versions": package_versions(),
    }


def parts_label(whole: Mapping[str, Any]) -> str:
    """Return the class names of drafter and builder, such as ``TokenRecycling + Chain``."""
    parts = [part["class_path"] for name in ("drafter", "builder") if (part := whole.get(name))]
    return " + ".join(map(_short, parts)) or "plain decoding"


def _short(class_path: str) -> str:
    return class_path.rpartition(".")[2]


def files_of(report: Report) -> dict[str, str | bytes]:
    """Return the contents of all files of a report and its parts, keyed by file name."""
    from specexp.report.pictures import png

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
    """Write one report, without its parts, to a tracked run. Pictures are read from the folder."""
    for name, table in {**report.tables, **report.data}.items():
        run.table(name, table.records())
    for name in report.figures:
        run.picture(name, folder / f"{name}.png")
    for name, fragment in report.fragments.items():
        run.html(f"{name}_view", render("page.html.j2", title="specexp", fragments={name: Markup(fragment)}))
    if report.summary:
        run.summary(report.summary)
    for artifact in report.artifacts:
        run.artifact(*artifact)


class FolderBusyError(CommandError):
    """Raised if another process is already writing to the folder."""


@contextmanager
def sole_writer(
    folder: Path, advice: str = "wait for it, or give this one another name (--name NEW)"
) -> Iterator[None]:
    """Lock a folder for a ``with`` block, creating it if needed. Raises FolderBusyError if another process holds it.

    If nothing was written to the folder, any folders created here are removed again.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]  # innermost first
    lock = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(lock) as mine:
            if not mine:
                holder = lock.read_text(encoding="utf-8") or "unknown"
                raise FolderBusyError(f"{folder} is being written by process {holder}: {advice}")
            lock.write_text(str(os.getpid()), encoding="utf-8")
            yield
    finally:
        if made and [path.name for path in folder.glob("*")] == [_LOCK]:
            lock.unlink()
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def check_run_folder(folder: Path, checker: Checker) -> None:
    """Raise ConfigError if a run would replace the results of a study."""
    if is_study(folder):
        raise _holds(folder, "the results of a sweep", checker)


def check_study_folder(folder: Path, checker: Checker) -> None:
    """Raise ConfigError if a study would replace the results of another command."""
    if (folder / RECORDS).exists():
        raise _holds(folder, "the results of a run", checker)
    if (folder / PAGE).exists() and not is_study(folder):
        raise _holds(folder, "the results of another command", checker)


def is_study(folder: Path) -> bool:
    """Return whether a folder holds the results of a study."""
    return any((folder / name).exists() for name in OF_A_STUDY)


def _holds(folder: Path, what: str, checker: Checker) -> ConfigError:
    advice = "choose another name (--name NEW), or remove that folder"
    return checker.error(("name",), f": {folder} already holds {what}; {advice}")


def replaced_results(whole: Mapping[str, Any], folder: Path) -> str | None:
    """Return a notice that a run replaces finished results, or None if they come from the same experiment."""
    if not (folder / PAGE).exists():
        return None  # no earlier run has finished
    owner = "another command"
    if (folder / RECORDS).exists():
        key = changed_key(whole, folder)
        if not key:
            return None
        owner = f"an earlier run ({key} differs)"
    return f"This run replaces the results of {owner} in {folder}; --name NEW keeps both."


def changed_key(whole: Mapping[str, Any], folder: Path, leave_out: Sequence[str] = _NOT_COMPARED) -> str:
    """Return the first dotted key at which values differ from those saved in a folder; empty if none does."""
    earlier = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    shared = dict.fromkeys(leave_out)
    return _difference({**earlier, **shared}, {**whole, **shared})


def _difference(one: Any, other: Any, key: str = "") -> str:
    """Return the first dotted key at which two configurations differ, or an empty string if they are equal."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return "" if one == other else key
    found = (
        _difference(one.get(name, _MISSING), other.get(name, _MISSING), f"{key}.{name}".removeprefix("."))
        for name in {**one, **other}
    )
    return next(filter(None, found), "")
