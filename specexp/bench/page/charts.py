"""Charts that answer to the mouse, as Vega-Lite specifications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specexp.bench.page.sections import first_words
from specexp.bench.record import PromptRecord

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Names the language; nothing is loaded from there."""
_WORDS = 60
_POINT = "#4c8ed9"
_RULE = {"type": "rule", "strokeDash": [4, 4], "color": "#888"}


def ratios_chart(
    records: Iterable[PromptRecord],
    baseline: str,
    titles: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> dict[str, Any] | None:
    """How many times as fast as the baseline each arm decoded each prompt; None where nothing is to be compared.

    Args:
        records: Records of a run.
        baseline: Name of the arm that speeds are over.
        titles: Names for a person by arm; those without one are not drawn. All by their own names if None.
        texts: Prompts by id, whose first words are shown beside them.
    """
    good = [
        record for record in records if not record.error and record.decode_tokens and record.decode_seconds
    ]
    pace: dict[tuple[str, str, int], PromptRecord] = {
        (one.arm, one.prompt_id, one.sample): one for one in good
    }
    values: list[dict[str, Any]] = []
    for (arm, prompt, sample), record in pace.items():
        plain = pace.get((baseline, prompt, sample))
        name = arm if titles is None else titles.get(arm)
        if plain is None or arm == baseline or name is None:
            continue
        seconds, own = (
            plain.decode_seconds / plain.decode_tokens,
            record.decode_seconds / record.decode_tokens,
        )
        values.append(
            {
                "arm": name,
                "prompt": prompt[:_WORDS],
                "text": first_words((texts or {}).get(prompt, ""), 2 * _WORDS),
                "speed": round(seconds / own, 4),
                "tokens per step": round(len(record.token_ids) / record.steps, 2) if record.steps else None,
                "new tokens": len(record.token_ids),
                "equal": "yes" if record.difference is None else "parts at a near tie",
            }
        )
    if not values:
        return None
    speeds = [row["speed"] for row in values]
    order = dict.fromkeys(titles.values() if titles is not None else (row["arm"] for row in values))
    shared = {
        "y": {
            "field": "arm",
            "type": "nominal",
            "title": None,
            "sort": [*order],
            "axis": {"labelLimit": 220},
        }
    }
    speed = {
        "field": "speed",
        "type": "quantitative",
        "title": f"times as fast as {baseline}",
        "scale": {
            "type": "log",
            "domain": [round(0.93 * min(1.0, *speeds), 3), round(1.07 * max(1.0, *speeds), 3)],
            "nice": False,
        },
    }
    tips = [
        {"field": name}
        for name in ("arm", "prompt", "text", "speed", "tokens per step", "new tokens", "equal")
    ]
    return {
        "$schema": SCHEMA,
        "description": f"Speed over {baseline}, prompt by prompt: hover for the prompt.",
        "width": "container",
        "height": 30 + 26 * len({row["arm"] for row in values}),
        "data": {"values": values},
        "layer": [
            {"mark": _RULE, "encoding": {"x": {"datum": 1}}},
            {
                "mark": {"type": "point", "filled": True, "opacity": 0.55, "size": 45, "color": _POINT},
                "encoding": {**shared, "x": speed, "tooltip": tips},
            },
            {
                "mark": {"type": "tick", "thickness": 3, "size": 18, "color": _POINT},
                "encoding": {**shared, "x": {**speed, "field": "mean"}},
                "transform": [
                    {"calculate": "log(datum.speed)", "as": "log"},
                    {"aggregate": [{"op": "mean", "field": "log", "as": "log"}], "groupby": ["arm"]},
                    {"calculate": "exp(datum.log)", "as": "mean"},
                ],
            },
        ],
    }


def search_chart(rows: Sequence[Mapping[str, Any]], choice: str | None) -> dict[str, Any] | None:
    """What the trials of a study found: nodes against speedup; None where no trial has both.

    Args:
        rows: Trials, with ``name``, ``state``, ``nodes_per_step``, ``speedup`` and what was chosen.
        choice: Key of the choice that colours them; None where there is none.
    """
    values = [
        {key: value for key, value in row.items() if value is not None}
        for row in rows
        if row.get("nodes_per_step") is not None and row.get("speedup") is not None
    ]
    if not values:
        return None
    told = dict.fromkeys(key for row in values for key in row)
    front = _front(values)
    for row in values:  # a dot in a name is a path in Vega
        for key in list(row):
            row[key.replace(".", " ")] = row.pop(key)
    encoding: dict[str, Any] = {
        "x": {
            "field": "nodes_per_step",
            "type": "quantitative",
            "title": "nodes a step",
            "scale": {"type": "symlog"},
            "axis": {"tickCount": 6, "labelOverlap": "greedy"},
        },
        "y": {
            "field": "speedup",
            "type": "quantitative",
            "title": "times as fast as plain decoding",
            "scale": {"zero": False},
        },
        "shape": {"field": "state", "type": "nominal"},
        "tooltip": [{"field": key.replace(".", " ")} for key in told],
    }
    if choice is not None and choice in told:
        encoding["color"] = {
            "field": choice.replace(".", " "),
            "type": "nominal",
            "legend": {"labelLimit": 200},
        }
    return {
        "$schema": SCHEMA,
        "description": "The search: every trial's nodes and speedup on the search's prompts, and the line of "
        "those that no smaller tree reached; hover for settings.",
        "width": "container",
        "height": 320,
        "data": {"values": values},
        "layer": [
            {"mark": _RULE, "encoding": {"y": {"datum": 1}}},
            {
                "data": {"values": front},
                "mark": {"type": "line", "interpolate": "step-after", "color": "#c8553d", "opacity": 0.7},
                "encoding": {name: encoding[name] for name in ("x", "y")},
            },
            {
                "params": [{"name": "zoom", "select": "interval", "bind": "scales"}],
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.8, "color": _POINT},
                "encoding": encoding,
            },
        ],
    }


def _front(values: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """The complete trials that none with as few nodes was faster than, by nodes."""
    best, found = float("-inf"), []
    complete = [row for row in values if row.get("state") == "complete"]
    for row in sorted(complete, key=lambda row: (row["nodes_per_step"], -row["speedup"])):
        if row["speedup"] > best:
            best = row["speedup"]
            found.append({name: row[name] for name in ("nodes_per_step", "speedup")})
    return found


def importances_chart(importances: Mapping[str, float], trials: int) -> dict[str, Any] | None:
    """How much of what trials differ by is due to each searched key; None where nothing is known.

    Args:
        importances: Shares by dotted key, as Optuna estimates them.
        trials: From how many trials.
    """
    if not importances:
        return None
    values = [
        {"key": key.replace(".init_args.", "."), "importance": round(share, 4)}
        for key, share in importances.items()
    ]
    return {
        "$schema": SCHEMA,
        "description": f"Which searched keys the speedup depends on, by fANOVA over {trials} trials: of few trials a "
        "rough guess.",
        "width": "container",
        "height": {"step": 24},
        "data": {"values": values},
        "mark": {"type": "bar", "color": _POINT},
        "encoding": {
            "x": {
                "field": "importance",
                "type": "quantitative",
                "axis": {"format": ".0%"},
                "title": "importance",
            },
            "y": {
                "field": "key",
                "type": "nominal",
                "sort": "-x",
                "title": None,
                "axis": {"labelLimit": 200},
            },
            "tooltip": [{"field": "key"}, {"field": "importance", "format": ".1%"}],
        },
    }
