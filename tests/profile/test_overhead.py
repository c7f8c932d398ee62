"""What reuse costs beside the models: the table is of one real run, its clocks stand around the methods."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specexp.controllers import Fixed
from specexp.models.pair import load_pair
from specexp.profile.clocked import clocked
from specexp.profile.overhead import reuse_table


def test_a_clock_runs_while_a_method_does_and_starts_anew_when_read() -> None:
    part = SimpleNamespace(work=lambda amount, more=0: sum(range(amount)) + more, rest=lambda: None)
    clock = clocked(part, "work")
    part.rest()
    assert clock.seconds == 0
    assert part.work(100_000, more=1) == sum(range(100_000)) + 1
    assert clock.taken() > 0
    assert clock.taken() == 0


def test_a_method_that_fails_is_timed_and_still_fails() -> None:
    def fail() -> None:
        raise ValueError("no")

    part = SimpleNamespace(work=fail)
    clock = clocked(part, "work")
    with pytest.raises(ValueError, match="no"):
        part.work()
    assert clock.taken() > 0


def test_reuse_is_told_operation_by_operation() -> None:
    with torch.inference_mode():
        table = reuse_table(Fixed(), load_pair("stdlib"), [[5, 6, 7], [5, 6]], 152, 21, max_new_tokens=6)
    names, _, means, *_ = zip(*table.rows, strict=True)
    assert names[3] == "the three together"
    assert means[3] == pytest.approx(sum(means[:3]))
    assert all(mean > 0 for mean in means[:2])
    assert "Fixed" in table.title
