# python -m experiments.rule_of_thumb
"""A rule of thumb, by the target's speed and the acceptance: the table and picture of ``docs/methods.md``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from specexp.core.latency import LatencyProfile
from specexp.profile.rule import payoff
from specexp.report.pictures import INK, new_figure, png
from specexp.report.table import Column, Table

SPEEDS = (10, 30, 100, 300, 1000, 3000)  # tokens per second of plain decoding
ACCEPTANCES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAFT_SHARE = 0.1  # a draft pass costs a tenth of a target pass over one token
PAYS = 1.1  # a smaller speedup is shown as plain decoding
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "rule.png"
COSTS = LatencyProfile(
    # a Llama of 300 M parameters in compiled passes on two cores of an AMD EPYC (RESULTS.md, from which size on)
    "300 M parameters on two cores",
    {1: 22.0, 4: 22.0, 16: 35.2},
    step_ms=0.2,
    source="measured",
)


def scaled(profile: LatencyProfile, tokens_per_second: float, draft_share: float) -> LatencyProfile:
    """Return the profile of a slower or faster target with the same relative cost of rows, on the same host.

    ``draft_share`` is the cost of a draft pass, as a share of a target pass over one token; 0 is a drafter without a
    model. The costs outside the passes stay.
    """
    one = 1e3 / tokens_per_second
    rows = {tokens: one * ms / profile.target_ms[1] for tokens, ms in profile.target_ms.items()}
    draft = {1: one * draft_share} if draft_share else {}
    return replace(profile, name=f"{tokens_per_second:g} tokens/s", target_ms=rows, draft_ms=draft)


def rule_table(costs: LatencyProfile) -> Table:
    """Return the speedup of the best chain and the best tree for each speed and acceptance."""
    heads = [Column("plain tokens/s"), *(Column(f"{100 * one:.0f} % accepted") for one in ACCEPTANCES)]
    table = Table(f"Best chain / best tree over plain decoding ({costs.source}: {costs.name})", heads)
    for speed in SPEEDS:
        profile = scaled(costs, speed, DRAFT_SHARE)
        cells = []
        for acceptance in ACCEPTANCES:
            both = [payoff(profile, acceptance, chain=chain).speedup for chain in (True, False)]
            cells.append(" / ".join(f"{one:.1f}x" if one >= PAYS else "plain" for one in both))
        table.rows.append([speed, *cells])
    return table


def draw_rule(costs: LatencyProfile) -> bytes:
    """Draw the speedups of chains and of trees as two maps, with a line where drafting starts to pay."""
    figure, [panels] = new_figure(8.4, 3.6, "Does drafting pay? Speedup over plain decoding", 1, 2)
    acceptances, speeds = np.linspace(0.1, 0.95, 18), np.geomspace(SPEEDS[0], SPEEDS[-1], 13)
    for axes, word, chain in zip(panels, ("best chain", "best tree"), (True, False), strict=True):
        profiles = [scaled(costs, speed, DRAFT_SHARE) for speed in speeds.tolist()]
        worth = [[payoff(one, a, chain=chain).speedup for a in acceptances.tolist()] for one in profiles]
        drawn = axes.contourf(100 * acceptances, speeds, worth, levels=[1, PAYS, 1.5, 2, 3, 4, 6], cmap="YlGnBu")
        axes.contour(100 * acceptances, speeds, worth, levels=[PAYS], colors=INK, linestyles="--")
        axes.set(yscale="log", title=word, xlabel="acceptance of the first drafted token, %")
    panels[0].set_ylabel("plain tokens/s")
    figure.colorbar(drawn, ax=panels, label="times as fast")
    return png(figure)


def main() -> None:
    """Print the table and write the picture."""
    argparse.ArgumentParser("python -m experiments.rule_of_thumb", description=__doc__).parse_args()
    print(rule_table(COSTS).to_markdown(), end="")
    PICTURE.write_bytes(draw_rule(COSTS))


if __name__ == "__main__":
    main()
