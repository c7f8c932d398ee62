"""Nothing of a decoder grows with the steps it takes."""

import gc
import os
from pathlib import Path

import pytest
from helpers.small_gguf import small_llama

from specexp import Decoder
from specexp.builders import DySpecGreedy
from specexp.core.language_model import LanguageModel
from specexp.drafters import DraftModel
from specexp.models.compiled import CompiledModel
from specexp.verifiers import RejectionSampling

STEPS = 10_000
ALLOWED = 4 * 2**20
"""Bytes: what the allocator keeps or gives back between two outputs, not what 9,000 steps leave behind each."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("runtime", [CompiledModel, LanguageModel])
def test_ten_thousand_steps_of_768_nodes_take_no_more_memory_than_a_thousand(runtime):
    target, draft = (
        runtime(small_llama(name, max_position_embeddings=1400, hidden_size=64, num_attention_heads=2))
        for name in ("Llama", "Qwen2")
    )
    decoder = Decoder(target, DraftModel(draft), DySpecGreedy(budget=768), RejectionSampling())
    steps, at_first = 0, 0
    while steps < STEPS:
        steps += decoder.generate(list(range(40, 60)), max_new_tokens=400, seed=steps).steps
        if not at_first and steps >= STEPS // 10:
            at_first = _resident()
    assert _resident() - at_first < ALLOWED


def _resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
