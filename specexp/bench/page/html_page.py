"""The page itself: the answer first, then tables that sort, charts that answer to the mouse, pictures, how to go on."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specexp.artifacts.atomic_write import atomic_write
from specexp.core.folders import cache_folder

if TYPE_CHECKING:
    from specexp.bench.table import Table


def bundle() -> str:
    """JavaScript that defines ``window.vegaEmbed``: Vega, Vega-Lite and its embedding, from vl-convert-python.

    It takes some seconds to make, and is kept in the cache folder.
    """
    file = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    if file.exists():
        return file.read_text(encoding="utf-8")
    import vl_convert

    made: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, made)
    return made


_HERE = Path(__file__).parent
_LONG = 8
"""Rows from which a table has a field to filter them."""


class Content(Protocol):
    """What a page shows: a report, as it is published."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """Tables by name."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """Pictures by name."""

    @property
    def sentences(self) -> Sequence[object]:
        """What is said below the tables."""

    @property
    def title(self) -> str:
        """The heading."""

    @property
    def answer(self) -> str:
        """What it comes to."""

    @property
    def charts(self) -> Mapping[str, Mapping[str, Any]]:
        """Vega-Lite specifications by name."""

    @property
    def fragments(self) -> Mapping[str, str]:
        """HTML of further sections."""

    @property
    def onward(self) -> Mapping[str, str]:
        """What to type next, by what it does."""


def html_page(
    whole: Sequence[Content],
    pictures: Mapping[str, bytes],
    *,
    config: str = "",
    made_by: Sequence[str] = (),
    again: str = "",
) -> str:
    """One file with everything in it: opened from a disk it asks no network for anything.

    Args:
        whole: What there is to say, the first with title and answer, and its parts.
        pictures: PNG by the figure's name.
        config: The resolved experiment as YAML; empty leaves the section out.
        made_by: Lines on how it was made: commit, versions, device.
        again: The command that made it.
    """
    report = whole[0]
    charts = {name: chart for part in whole for name, chart in part.charts.items()}
    tables = [table for part in whole for table in part.tables.values()]
    title = report.title or (tables[0].title if tables else "specexp")
    if report.answer:
        pieces = [f"<h1>{escape(title)}</h1>", f'<p class="answer">{escape(report.answer)}</p>']
    else:
        pieces = [f'<h1 class="answer">{escape(title)}</h1>']
    for number, table in enumerate(tables):
        pieces.append(_table(table, f"table{number}", heading=table.title != title))
        if number == 0:
            pieces += [_chart(name, chart) for name, chart in charts.items()]
    said = [
        str(sentence)
        for part in whole
        for sentence in part.sentences
        if str(sentence) not in (report.answer, title)
    ]
    if said:
        pieces.append(_listed(said))
    pieces += [fragment for part in whole for fragment in part.fragments.values()]
    for part in whole:
        pieces += [_picture(name, pictures[name]) for name in part.figures if name in pictures]
    onward = {**report.onward, **({"make it again": again} if again else {})}
    if onward:
        pieces.append('<section aria-label="Go on"><h2>Go on</h2>')
        pieces += [f"<p>To {escape(what)}:</p><pre>{escape(typed)}</pre>" for what, typed in onward.items()]
        pieces.append("</section>")
    if made_by:
        pieces.append("<h2>How it was made</h2>\n<pre>" + escape("\n".join(made_by)) + "</pre>")
    if config:
        pieces.append(
            "<details><summary>The resolved experiment, which runs it again</summary>"
            f"<pre>{escape(config)}</pre></details>"
        )
    scripts = f"<script>{_read('page.js')}</script>"
    if charts:
        scripts += f'<script type="module">{bundle()}\n{_embeds(charts)}</script>'
    return _document(title, "\n".join(pieces), scripts)


def alone(fragment: str) -> str:
    """A page of one section, without charts: what a panel of W&B shows."""
    return _document("specexp", fragment, f"<script>{_read('page.js')}</script>")


def _document(title: str, body: str, scripts: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>{_read('page.css')}</style></head>\n<body><main>\n"
        f"{body}\n</main>\n{scripts}</body></html>\n"
    )


def _table(table: Table, name: str, *, heading: bool) -> str:
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(column.title)}</button></th>'
        for column in table.columns
    )
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.shown()
    )
    label = escape(table.title, quote=True)
    found = f"<h2>{escape(table.title)}</h2>\n" if heading else ""
    if len(table.rows) >= _LONG:
        found += (
            f'<input type="search" data-table="{name}" placeholder="filter rows" '
            f'aria-label="filter rows of {label}">\n'
        )
    found += (
        f'<div class="wide"><table id="{name}" aria-label="{label}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    return found + ("\n" + _listed(table.notes) if table.notes else "")


def _listed(sentences: Sequence[str]) -> str:
    return '<ul class="notes">' + "".join(f"<li>{escape(one)}</li>" for one in sentences) + "</ul>"


def _chart(name: str, chart: Mapping[str, Any]) -> str:
    words = escape(str(chart.get("description", name)), quote=True)
    return (
        f'<figure><div class="chart" id="chart-{escape(name)}" role="img" aria-label="{words}"></div>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def _picture(name: str, png: bytes) -> str:
    words = escape(name.replace("_", " "), quote=True)
    data = b64encode(png).decode()
    return f'<figure><img alt="{words}" src="data:image/png;base64,{data}"><figcaption>{words}</figcaption></figure>'


def _embeds(charts: Mapping[str, Mapping[str, Any]]) -> str:
    """What draws the charts, in the colours of the page."""
    drawn = []
    for name, chart in charts.items():
        text = json.dumps(chart).replace("<", "\\u003c")  # "</script" and "<!--" mean something to HTML
        drawn.append(f"draw({json.dumps('chart-' + name)}, {text});")
    return (
        'const dark = matchMedia("(prefers-color-scheme: dark)").matches;\n'
        "function draw(id, chart) {\n"
        '  window.vegaEmbed("#" + id, chart, {renderer: "svg", actions: false, theme: dark ? "dark" : undefined,\n'
        '    config: {background: "transparent", font: "system-ui, sans-serif", axis: {gridColor: "#8883"}}});\n}\n'
        + "\n".join(drawn)
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
