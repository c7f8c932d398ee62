"""The acceptance of captured passes, on a CPU with tiny models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.gpu import accept
from specexp.models.static_slots import StaticSlots
from specexp.models.static_step import TreeStep


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[Any]]:
    monkeypatch.setattr("sys.argv", ["accept.py", "--device", "cpu", "--small", *words])
    code = accept._main()
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_figures_are_printed_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(monkeypatch, capsys, "passes", "lanes")
    assert said[-1] == {"missed": []}
    assert code == 0
    figures = {one["figure"]: one["value"] for one in said[:-1]}
    assert {"1", "4"} == set(figures["8B: latency profile"]["target_ms"])
    assert figures["4 lanes, recycling, tokens/s"] > 0


@pytest.mark.variants(1)
@pytest.mark.parametrize("fault", ["mask", "commit"])
def test_a_planted_fault_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TreeStep, "run", TreeStep.run)  # what the fault replaces is put back
    monkeypatch.setattr(StaticSlots, "commit", StaticSlots.commit)
    code, said = run(monkeypatch, capsys, "correct", "--plant", fault)
    assert (code, said[-1]) == (1, {"missed": ["correct"]})
