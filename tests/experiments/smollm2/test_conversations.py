"""The lanes that write conversations, and what is dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.smollm2 import conversations
from experiments.smollm2.conversations import LanedTarget, loop_start, looping
from experiments.smollm2.shard_rows import ShardRows, conversations_of


def test_lanes_at_different_positions_have_the_states_of_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
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
    prefix = [1, 5, 9]
    target = LanedTarget(model, 2, 16, prefix)
    texts = [list(prefix[:-1]), list(prefix[:-1])]
    for step, ids in enumerate(([9, 9], [4, 6], [8, 9], [3, 2])):
        if step == 2:
            target.restart(1)
            texts[1] = list(prefix[:-1])
        states, logits = target.step(ids)
        for text, token, found, answer in zip(texts, ids, states, logits, strict=True):
            text.append(token)
            with torch.inference_mode():
                whole = model(torch.tensor([text]), output_hidden_states=True)
            exact = torch.stack([whole.hidden_states[at][0, -1] for at in (1, 2, -1)])
            torch.testing.assert_close(found.float(), exact, atol=2e-3, rtol=2e-3)  # states are kept in float16
            torch.testing.assert_close(answer, whole.logits[0, -1])


def test_a_loop_is_cut_after_its_second_copy() -> None:
    text, piece = list(range(100, 110)), [1, 2, 3, 4, 5]
    assert loop_start(text + piece * 4) == len(text) + 2 * len(piece)
    assert loop_start(text + piece * 3) == len(text) + 3 * len(piece)  # a list may have three like items
    assert looping([*range(12), *piece * 4])
    assert not looping(list(range(32)))


def test_rows_of_a_corpus_are_the_conversations_without_the_templates_prefix(tmp_path: Path) -> None:
    shard = {
        "ids": torch.tensor([1, 2, 7, 8, 9, 1, 2, 5], dtype=torch.int32),
        "lengths": torch.tensor([5, 3], dtype=torch.int32),
        "turn_from": torch.tensor([2, 2], dtype=torch.int32),
        "states": torch.zeros(8, 4, 2),
    }
    save_file(shard, tmp_path / "0-0000.safetensors")
    assert list(conversations_of(tmp_path / "0-0000.safetensors")) == [[7, 8, 9], [5]]
    rows = ShardRows("smollm2", str(tmp_path), row_length=4, batch_size=1)
    rows.setup()
    assert sorted(next(iter(rows.train_dataloader())).flatten().tolist()) == [5, 7, 8, 9]
    with pytest.raises(FileNotFoundError, match="must be a folder of shards"):
        ShardRows("smollm2", str(tmp_path / "none")).setup()
