"""A compiled draft model drafts a fixed tree in one call, with the same tokens as pass by pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_models import build

from specexp.builders import Chain, ParametricTree, StaticTree
from specexp.core.contracts import TreeBuilder
from specexp.core.loop import Decoder
from specexp.core.outcome import GenerationResult, Outcome
from specexp.core.sampling import LogitsError
from specexp.drafters import DraftModel
from specexp.models.compiled import CompiledModel
from specexp.verifiers import KeyedSampling

LLAMA = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
TREES: dict[str, tuple[TreeBuilder, dict[str, Any]]] = {
    "chain": (Chain(4), {}),
    "chain of a reduced head": (Chain(4), {"vocabulary_size": 60}),
    "wide": (ParametricTree(nodes=20, depth=3, rank_decay=1.0), {}),
    "uneven": (StaticTree([[0], [1], [2], [0, 1], [2, 0], [0, 1, 0], [0, 1, 3], [0, 1, 0, 0]]), {}),
}


def decode(
    draft: CompiledModel, builder: TreeBuilder, verifier: KeyedSampling | None, **options: Any
) -> tuple[GenerationResult, list[tuple[list[int], tuple[int, ...]]]]:
    """The result, and tokens and draft passes of every tree, up to the limit of the context."""
    steps: list[tuple[list[int], tuple[int, ...]]] = []

    def note(outcome: Outcome) -> None:
        steps.append((outcome.tree.tokens.tolist(), outcome.pass_tokens))

    target = CompiledModel(build("Llama", LLAMA | {"num_hidden_layers": 1}, dtype=torch.float32))
    decoder = Decoder(target, DraftModel(draft, **options), builder, verifier)
    return decoder.generate([5, 6, 7], max_new_tokens=100, seed=3, observers=[note]), steps


@pytest.mark.variants(8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("coupled", "temperature"), [(False, None), (False, 0.8), (True, 0.8)])
@pytest.mark.parametrize("tree", TREES)
def test_a_tree_drafted_in_one_call_is_that_of_single_passes(
    tree: str, coupled: bool, temperature: float | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("Llama", LLAMA, dtype=dtype)
    calls: list[int] = []

    def counted(self: CompiledModel, slot: int, *arguments: object) -> object:
        calls.append(slot)
        return native(self, slot, *arguments)  # type: ignore[arg-type]

    native = CompiledModel.draft_tree
    builder, options = TREES[tree]
    monkeypatch.setattr(CompiledModel, "draft_tree", counted)
    verifier = None if temperature is None else KeyedSampling(temperature=temperature)
    at_once, steps = decode(CompiledModel(model), builder, verifier, coupled=coupled, **options)
    assert len(calls) > 5
    monkeypatch.setattr(CompiledModel, "draft_tree", lambda *arguments: None)
    one_by_one, single = decode(CompiledModel(model), builder, verifier, coupled=coupled, **options)
    if dtype == torch.float32:  # pass by pass, a bfloat16 draft ranks rounded log-probabilities, with ties
        assert steps == single
    assert at_once.token_ids == one_by_one.token_ids
    assert at_once.finish_reason == "context"


def test_broken_logits_of_a_draft_are_reported() -> None:
    model = build("Llama", LLAMA, dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(LogitsError, match="draft"):
        decode(CompiledModel(model, self_check=False), Chain(4), None)
