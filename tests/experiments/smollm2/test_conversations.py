"""The batched target that writes conversations, and what it drops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.smollm2 import conversations
from experiments.smollm2.conversations import BatchedTarget, loop_start, looping


def test_lanes_at_different_positions_have_the_states_of_whole_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "CAPTURED", (1, 2))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    prefix, texts = [1, 5, 9], [[4, 8, 3, 7], [6, 2]]
    target = BatchedTarget(str(tmp_path), 2, 16, prefix)
    made: list[list[torch.Tensor]] = [[], []]
    for at in range(4):
        ids = [text[min(at, len(text) - 1)] for text in texts]
        positions = [len(prefix) + min(at, len(text) - 1) for text in texts]
        for lane, row in enumerate(target.step(torch.tensor(ids), torch.tensor(positions))):
            if at < len(texts[lane]):
                made[lane].append(row)
    for text, rows in zip(texts, made, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor([prefix + text]), output_hidden_states=True).hidden_states
        exact = torch.stack([hidden[at][0, len(prefix) :] for at in (1, 2, -1)], dim=1)
        error = (torch.stack(rows) - exact).norm() / exact.norm()
        assert error < 0.02  # of 8 bits


def test_a_loop_is_cut_after_its_second_copy() -> None:
    text, piece = list(range(100, 110)), [1, 2, 3, 4, 5]
    assert loop_start(text + piece * 4) == len(text) + 2 * len(piece)
    assert loop_start(text + piece * 3) == len(text) + 3 * len(piece)  # a list may have three like items
    assert looping([*range(12), *piece * 4])
    assert not looping(list(range(32)))
