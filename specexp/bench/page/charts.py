"""The charts of the page, which answer to the mouse: Vega-Lite specifications, made by altair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from specexp.bench.record import PromptRecord

alt.data_transformers.consolidate_datasets = False  # the rows of a chart stay where its marks are

_POINT = "#4c8ed9"
_RULE = alt.Chart().mark_rule(strokeDash=[4, 4], color="#888")

Spec = dict[str, Any]


def _spec(chart: Any, rows: Sequence[Spec], about: str, height: Any) -> Spec | None:
    """Return the specification of a chart of these rows; None without rows."""
    data = alt.InlineData(values=list(rows))
    spec: Spec = chart.properties(data=data, description=about, width="container", height=height).to_dict()
    # the page's Vega-Lite may be an older minor version than altair's, of which it would complain
    return {**spec, "$schema": "https://vega.github.io/schema/vega-lite/v6.json"} if rows else None


def _tips(*names: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(field=name, type="nominal") for name in names]


def first_words(text: str, most: int = 60) -> str:
    """Return a prompt as one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def ratios_chart(
    records: Iterable[PromptRecord],
    baseline: str,
    titles: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Spec | None:
    """Chart how many times as fast as the baseline each arm decoded each prompt; None if nothing can be compared.

    Arms without a displayed name in ``titles`` are not drawn; ``texts`` are prompts by id.
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
            "equal": "yes" if one.difference is None else "parts at a near tie",
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
    return _spec(chart, rows, f"Speed over {baseline}, prompt by prompt: hover for the prompt.", height)


def search_chart(trials: Sequence[Mapping[str, Any]], choice: str | None) -> Spec | None:
    """Chart the trials of a study, nodes against speedup; None if no trial has both.

    Trials have ``name``, ``state``, ``nodes_per_step``, ``speedup`` and the searched values; ``choice`` is the searched
    key that colours them.
    """
    rows: list[Spec] = [
        # a dot in a name is a path in Vega
        {key.replace(".", " "): value for key, value in row.items() if value is not None}
        for row in trials
        if row.get("nodes_per_step") is not None and row.get("speedup") is not None
    ]
    columns = dict.fromkeys(key for row in rows for key in row) or dict.fromkeys(
        ("nodes_per_step", "speedup")
    )
    x = alt.X("nodes_per_step:Q").title("nodes a step").scale(type="symlog")
    y = alt.Y("speedup:Q").title("times as fast as plain decoding").scale(zero=False)
    base = alt.Chart().encode(x.axis(tickCount=6, labelOverlap="greedy"), y)
    # the line joins the complete trials that none with as few nodes surpassed
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
        "The search: every trial's nodes and speedup on the search's prompts, and the line of those that no smaller "
        "tree reached; hover for settings."
    )
    return _spec(alt.layer(_RULE.encode(y=alt.datum(1)), line, points), rows, about, 320)


def importances_chart(importances: Mapping[str, float], trials: int) -> Spec | None:
    """Chart how much of the variance between ``trials`` trials each searched key explains; None without any."""
    rows: list[Spec] = [
        {"key": key.replace(".init_args.", "."), "importance": round(share, 4)}
        for key, share in importances.items()
    ]
    x = alt.X("importance:Q").title("importance").axis(format=".0%")
    y = alt.Y("key:N").title(None).sort("-x").axis(labelLimit=200)
    tips = [*_tips("key"), alt.Tooltip("importance:Q", format=".1%")]
    about = f"Which searched keys the speedup depends on, by fANOVA over {trials} trials: of few trials a rough guess."
    return _spec(alt.Chart().mark_bar(color=_POINT).encode(x, y, tooltip=tips), rows, about, alt.Step(24))
