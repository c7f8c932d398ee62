from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from hypothesis import given, strategies as st

from experiments.pair.module import EPISODE, CausalLMTraining, MuonAdamW, repeating_rows, unlikelihood


@given(seed=st.integers(0, 10_000), breaks=st.integers(2, 40))
def test_unlikely_tokens_are_third_or_later_copies(seed: int, breaks: int) -> None:
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


def test_given_tokens_have_no_loss() -> None:
    architecture = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    module = CausalLMTraining({**architecture, "num_attention_heads": 1, "num_key_value_heads": 1}, tokens=1)
    ids, marked = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[False, True, False, True]])
    logits = module.model(input_ids=ids).logits[0]
    loss = module.training_step(torch.where(marked, ~ids, ids), 0)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits[1:2], torch.tensor([3])))


def test_unlikelihood_by_hand() -> None:
    logits = torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log()
    expected = -(math.log(1 - 0.75) + math.log(1 - 0.5)) / 2
    assert math.isclose(float(unlikelihood(logits, torch.tensor([1, 0]))), expected, rel_tol=1e-5)


def test_hidden_matrices_are_stepped_by_muon_and_the_rest_by_adamw_also_after_a_restart() -> None:
    def stepped(steps: int, restart: int) -> torch.nn.ModuleDict:
        torch.manual_seed(0)
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 4), "hidden": torch.nn.Linear(4, 4)})
        optimizer = MuonAdamW(model, muon_lr=0.1, adamw_lr=0.01)
        for step in range(steps):
            if step == restart:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = MuonAdamW(model, muon_lr=0.0, adamw_lr=0.0)
                optimizer.load_state_dict(state)
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, step + 1.0)
            optimizer.step()
        return model

    start, once, whole, restarted = (stepped(*case) for case in ((0, -1), (1, -1), (4, -1), (4, 2)))
    for name, size in (("embed.weight", 0.01), ("hidden.bias", 0.01)):  # AdamW's first step is its rate
        change = once.state_dict()[name] - start.state_dict()[name]
        torch.testing.assert_close(change, torch.full_like(change, -size), rtol=1e-3, atol=0)
    before, after = (one.state_dict()["hidden.weight"] for one in (start, once))
    change = torch.linalg.matrix_norm(after - before * (1 - 0.1 * 0.01), 2)  # Muon's is near orthogonal
    assert float(change) == pytest.approx(0.1, rel=0.35)
    for name, value in whole.state_dict().items():
        assert torch.equal(restarted.state_dict()[name], value), name
