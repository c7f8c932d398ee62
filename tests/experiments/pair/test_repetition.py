from __future__ import annotations

import math
import random

import torch
from hypothesis import given, strategies as st

from experiments.pair.optimizer import MuonAdamW, orthogonalised
from experiments.pair.repetition import EPISODE, repeating_rows, unlikelihood


@given(seed=st.integers(0, 10_000), breaks=st.integers(2, 40))
def test_what_is_marked_unlikely_is_at_least_the_third_copy(seed: int, breaks: int) -> None:
    length = 2 * EPISODE + 7
    rows = torch.arange(1, length + 1)[None]  # [1, length], every token once
    line_ends = torch.zeros(length + 1, dtype=torch.bool)
    line_ends[::breaks] = True
    made, role = repeating_rows(rows, line_ends, random.Random(seed))
    assert torch.equal(made[role == 0], rows[role == 0])
    for position in (role[0] == 2).nonzero().flatten().tolist():
        start = position // EPISODE * EPISODE
        earlier = (made[0, start:position] == made[0, position]).sum()
        assert earlier >= 2 or made[0, position] in made[0, start:position]
        assert earlier >= 1
    assert (role[0, :EPISODE] == 2).any()
    assert (role[0, 2 * EPISODE :] == 0).all()


def test_unlikelihood_by_hand() -> None:
    logits = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    expected = -(math.log(1 - 0.75) + math.log(1 - 0.5)) / 2
    assert math.isclose(float(unlikelihood(logits, torch.tensor([1, 0]))), expected, rel_tol=1e-5)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((2, 16, 16), (2, 8, 32), (2, 32, 8)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)).float())
        assert values.shape == (2, min(shape[1:]))
        assert values.max() < 1.35
        assert values.mean() > 0.6


def test_every_parameter_has_one_rule() -> None:
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 4), "hidden": torch.nn.Linear(4, 4)})
    optimizer = MuonAdamW(model)
    kinds = {id(p): group["kind"] for group in optimizer.param_groups for p in group["params"]}
    assert kinds == {
        id(model["embed"].weight): "adamw",
        id(model["hidden"].weight): "muon",
        id(model["hidden"].bias): "adamw",
    }
