"""Interactive sections of the HTML report: Vega-Lite charts, a collapsible draft tree, and decoded prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import pandas as pd

from specexp.bench.observers import BONUS, CORRECTED, steps_of
from specexp.bench.record import PromptRecord
from specexp.report.publish import Report, render
from specexp.report.table import Cell, Table, columns

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specexp.data import Prompt

_MOST_PROMPTS, _MOST_TOKENS, _MOST_CHARACTERS = 24, 400, 1200
_MARKS = {CORRECTED: ("u", ""), BONUS: ("b", ""), 0: ("i", "")}
"""The HTML element and CSS class of a token, by its source. Accepted drafts with a rank above 0 get ``("i", "r")``."""
alt.data_transformers.consolidate_datasets = False  # keep each chart's rows inline, in its own layer

_POINT = "#4c8ed9"
_RULE = alt.Chart().mark_rule(strokeDash=[4, 4], color="#888")

Spec = dict[str, Any]


def _spec(chart: Any, rows: Sequence[Spec], about: str, height: Any) -> Spec | None:
    """Return ``chart``'s Vega-Lite specification with ``rows`` as its data, or None if there are no rows."""
    data = alt.InlineData(values=list(rows))
    spec: Spec = chart.properties(data=data, description=about, width="container", height=height).to_dict()
    # major version only: the page's Vega-Lite may be an older minor version than altair's and would warn
    return {**spec, "$schema": "https://vega.github.io/schema/vega-lite/v6.json"} if rows else None


def _tips(*names: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(field=name, type="nominal") for name in names]


def first_words(text: str, most: int = 60) -> str:
    """Return a prompt as one line, cut to ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def ratios_chart(
    records: Iterable[PromptRecord],
    baseline: str,
    titles: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Spec | None:
    """Return a chart of each arm's speedup over the baseline on each prompt, or None if no prompt can be compared.

    ``titles`` maps arms to their displayed names; other arms are not drawn. ``texts`` maps prompt ids to prompts.
    """
    pace = {(one.arm, *one.key): (seconds, one) for one in records if (seconds := one.seconds_per_token)}
    rows: list[Spec] = [
        {
            "arm": name,
            "prompt": prompt[:60],
            "text": first_words((texts or {}).get(prompt, ""), 120),
            "speed": round(pace[baseline, prompt, sample][0] / seconds, 4),
            "tokens per step": None if one.tokens_per_step is None else round(one.tokens_per_step, 2),
            "new tokens": one.new_tokens,
            "equal": "yes" if one.difference is None else "differs",
        }
        for (arm, prompt, sample), (seconds, one) in pace.items()
        if arm != baseline
        and (baseline, prompt, sample) in pace
        and (name := arm if titles is None else titles.get(arm)) is not None
    ]
    speeds = [1.0, *(row["speed"] for row in rows)]
    order = list(dict.fromkeys(row["arm"] for row in rows) if titles is None else titles.values())
    x = alt.X("speed:Q").title(f"times as fast as {baseline}")
    x = x.scale(type="log", domain=[round(0.93 * min(speeds), 3), round(1.07 * max(speeds), 3)], nice=False)
    base = alt.Chart().encode(alt.Y("arm:N").title(None).sort(order).axis(labelLimit=220), x)
    points = base.mark_point(filled=True, opacity=0.55, size=45, color=_POINT).encode(
        tooltip=_tips(*(rows[0] if rows else ()))
    )
    means = base.mark_tick(thickness=3, size=18, color=_POINT).transform_calculate(log="log(datum.speed)")
    means = means.transform_aggregate(log="mean(log)", groupby=["arm"])
    means = means.transform_calculate(speed="exp(datum.log)")
    chart = alt.layer(_RULE.encode(x=alt.datum(1)), points, means)
    height = 30 + 26 * len({row["arm"] for row in rows})
    return _spec(chart, rows, f"Speedup over {baseline} on each prompt. Hover over a point to see it.", height)


def search_chart(trials: Sequence[Mapping[str, Any]], choice: str | None) -> Spec | None:
    """Return a chart of a study's trials, nodes per step against speedup, or None if no trial has both.

    Trials have ``name``, ``state``, ``nodes_per_step``, ``speedup`` and the searched values. ``choice`` is the searched
    key that determines the color of a point.
    """
    rows: list[Spec] = [
        # Vega reads a dot in a field name as a path
        {key.replace(".", " "): value for key, value in row.items() if value is not None}
        for row in trials
        if row.get("nodes_per_step") is not None and row.get("speedup") is not None
    ]
    columns = dict.fromkeys(key for row in rows for key in row) or dict.fromkeys(("nodes_per_step", "speedup"))
    x = alt.X("nodes_per_step:Q").title("nodes a step").scale(type="symlog")
    y = alt.Y("speedup:Q").title("times as fast as plain decoding").scale(zero=False)
    base = alt.Chart().encode(x.axis(tickCount=6, labelOverlap="greedy"), y)
    # the line joins the Pareto front: complete trials not surpassed by a trial with as few nodes
    complete = pd.DataFrame([row for row in rows if row.get("state") == "complete"], columns=[*columns])
    complete = complete.sort_values(["nodes_per_step", "speedup"], ascending=[True, False])
    front = complete[complete["speedup"] > complete["speedup"].cummax().shift(fill_value=float("-inf"))]
    line = base.mark_line(interpolate="step-after", color="#c8553d", opacity=0.7).properties(
        data=alt.InlineData(values=front[["nodes_per_step", "speedup"]].to_dict("records"))
    )
    points = base.mark_point(filled=True, size=70, opacity=0.8, color=_POINT)
    points = points.encode(alt.Shape("state:N"), tooltip=_tips(*columns))
    if choice is not None and (name := choice.replace(".", " ")) in columns:
        points = points.encode(color=alt.Color(field=name, type="nominal").legend(labelLimit=200))
    points = points.add_params(alt.selection_interval(bind="scales"))
    about = (
        "The search: nodes per step and speedup of each trial. The line joins the trials that no trial with fewer "
        "nodes surpassed. Hover over a point for its settings."
    )
    return _spec(alt.layer(_RULE.encode(y=alt.datum(1)), line, points), rows, about, 320)


def importances_chart(importances: Mapping[str, float], trials: int) -> Spec | None:
    """Return a chart of how much variance between trials each searched key explains, or None if there are no keys."""
    rows: list[Spec] = [
        {"key": key.replace(".init_args.", "."), "importance": round(share, 4)} for key, share in importances.items()
    ]
    x = alt.X("importance:Q").title("importance").axis(format=".0%")
    y = alt.Y("key:N").title(None).sort("-x").axis(labelLimit=200)
    tips = [*_tips("key"), alt.Tooltip("importance:Q", format=".1%")]
    about = f"How much the speedup depends on each key (fANOVA over {trials} trials; rough if trials are few)."
    return _spec(alt.Chart().mark_bar(color=_POINT).encode(x, y, tooltip=tips), rows, about, alt.Step(24))


def folding_tree(rank_paths: Iterable[Sequence[int]], accepted: Mapping[tuple[int, ...], float], title: str) -> str:
    """Return a static tree as collapsible HTML. ``accepted`` maps nodes to the share of steps that accepted them."""
    children = defaultdict(list)
    for node in {tuple(path) for path in rank_paths if len(path)}:
        children[node[:-1]].append(node)
    return render("tree.html.j2", children=dict(children), accepted=accepted, title=title)


def texts_of(prompts: Iterable[Prompt]) -> dict[str, str]:
    """Return the text of each prompt, keyed by the prompt's id."""
    return {prompt.prompt_id: "\n".join(prompt.turns) for prompt in prompts}


def prompts_shown(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    tokenizer: PreTrainedTokenizerBase | None,
) -> Report:
    """Return the part of the report on individual prompts: a CSV table for programs and a section of the HTML page.

    ``texts`` maps prompt ids to prompts, and ``titles`` maps arms to displayed names. The section shows the first arm's
    output and compares its cost with the last arm's. Without a tokenizer, there is no section.
    """
    single = [record for record in records if record.group is None]
    section = "" if tokenizer is None else prompt_section(texts, single, titles, tokenizer.decode)
    heads = "prompt | text | arm | sample | new tokens | tokens per step | seconds per token | equal"
    table = Table("Prompts", columns(heads))
    for one in records:
        if not one.error and one.arm in titles:
            row: list[Cell] = [one.prompt_id, texts.get(one.prompt_id, ""), titles[one.arm], one.sample]
            equal = "yes" if one.difference is None else "differs"
            row += [one.new_tokens, one.tokens_per_step, one.seconds_per_token, equal]
            table.rows.append(row)
    return Report(data={"prompts": table}, fragments={"prompts": section} if section else {})


def prompt_section(
    texts: Mapping[str, str],
    records: Sequence[PromptRecord],
    titles: Mapping[str, str],
    decode: Callable[[Sequence[int]], str],
) -> str:
    """Return the HTML of prompts with the first arm's output, shown token by token if its steps were observed."""
    found = {(one.arm, one.prompt_id): one for one in records if one.sample == 0 and not one.error}
    first, last = ([*titles] or [""])[0], ([*titles] or [""])[-1]
    prompts = []
    for prompt in [prompt for prompt in texts if (first, prompt) in found][:_MOST_PROMPTS]:
        own = found[first, prompt]
        compared = [(arm, found.get((arm, prompt))) for arm in dict.fromkeys([first, last])]
        cost = "; ".join(
            f"{titles[arm]}: {one.tokens_per_step:.2f} tokens a step, {1e3 * one.seconds_per_token:.2f} ms a token"
            for arm, one in compared
            if one is not None and one.tokens_per_step and one.seconds_per_token
        )
        prompts.append(
            {
                "name": prompt,
                "words": first_words(texts[prompt]),
                "cost": cost,
                "text": _cut(texts[prompt]),
                "steps": list(_boxes(own, decode)),
                "left": max(0, own.new_tokens - _MOST_TOKENS),
                "output": _cut(decode(own.token_ids)),
            }
        )
    heading = f"Prompts, and the output of {titles.get(first, '')}"
    return render("prompts.html.j2", heading=heading, prompts=prompts) if prompts else ""


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"… {text[-_MOST_CHARACTERS:]}"


def _boxes(record: PromptRecord, decode: Callable[[Sequence[int]], str]) -> Iterator[dict[str, Any]]:
    """Yield one box per step: a title, and the text, HTML element and CSS class of each of the step's tokens."""
    texts = list(pieces(record.token_ids[:_MOST_TOKENS], decode))
    for number, step in enumerate(steps_of(record.sources, record.turn_tokens), start=1):
        if step.stop > len(texts):
            return
        sources = [record.sources[place] for place in step]
        ranks = ", ".join(str(source) for source in sources if source >= 0)
        drafted = f"accepted drafts of rank {ranks}" if ranks else "no draft accepted"
        yield {
            "title": f"step {number}: {len(step)} token{'s' * (len(step) != 1)}, {drafted}",
            "tokens": [
                (texts[place].replace("\n", "⏎\n"), *_MARKS.get(source, ("i", "r")))
                for place, source in zip(step, sources, strict=True)
            ],
        }


def pieces(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text that each token adds. A character split across several tokens is added by the last one."""
    first, shown = 0, ""
    for end in range(1, len(token_ids) + 1):
        text = decode(token_ids[first:end])
        if text.endswith("�"):  # the last character is incomplete
            yield ""
            continue
        yield text[len(shown) :]
        first, shown = end - 1, decode(token_ids[end - 1 : end])
