"""Rows in depth-first and heavy-path order: fewer blocks of keys, and the same output in every runtime."""

import numpy as np
import pytest
import torch
from helpers.checked_replay import CheckedReplay
from helpers.drawn_trees import random_shape
from helpers.small_models import FULL_ATTENTION, build

from experiments.papers.dyspec.block_attention import block_count, permuted
from specexp.builders import DySpecGreedy, TokenRecyclingTree
from specexp.core.cache import additive_mask, block_mask
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape
from specexp.drafters import DraftModel, TokenRecycling
from specexp.models.compiled import CannotCompileError, CompiledModel
from specexp.models.graphed import GraphedModel
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

ORDERS = ("depth-first", "heavy-path")
SETTINGS = {**FULL_ATTENTION["Llama"], "max_position_embeddings": 700}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def eager():
    return LanguageModel(build("Llama", SETTINGS, dtype=torch.float32))


def graphed(attention="packed"):
    runtime = GraphedModel(build("Llama", SETTINGS, dtype=torch.float32), CheckedReplay)
    runtime.attention = attention
    return runtime


RUNTIMES = {"eager": eager, "graphed": graphed, "graphed, blocks": lambda: graphed("flex")}


def test_the_heavy_path_takes_the_largest_subtree_first():
    assert TreeShape([-1, 0, 0, 2, 2, 4], [-1, 0, 1, 0, 1, 0]).heavy_path == (0, 2, 4, 5, 3, 1)
    assert ROOT_ONLY.heavy_path == (0,)


@pytest.mark.parametrize("prefix", [0, 40])
def test_attention_reads_the_blocks_that_the_paper_counts(prefix):
    shape = random_shape(256, np.random.default_rng(0))
    counts = []
    for one in (shape, permuted(shape, shape.depth_first), permuted(shape, shape.heavy_path)):
        seen = np.concatenate((np.ones((256, prefix), dtype=np.bool_), one.ancestor_mask), axis=1)
        visible = torch.from_numpy(seen)[None, None]
        mask = block_mask(additive_mask(visible, torch.float32))
        counts.append(int(mask.kv_num_blocks.sum()))
        assert counts[-1] == block_count(one, prefix=prefix)
        blocks = mask.to_dense()[0, 0].bool().repeat_interleave(32, 0).repeat_interleave(32, 1)
        assert blocks[:256, : seen.shape[1]][visible[0, 0]].all()  # no visible key is in an empty block
    assert max(counts[1:]) < counts[0]


@pytest.mark.variants(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", RUNTIMES.values(), ids=RUNTIMES)
def test_results_and_committed_rows_are_those_of_the_tree(make, order):
    """Two trees in one pass, wider and deeper than a block; then a second pass on what was committed."""
    shapes = [random_shape(rows, np.random.default_rng(rows)) for rows in (60, 17)]
    trees = [TokenTree(one, np.random.default_rng(1).integers(0, 20, one.parents.size)) for one in shapes]
    found = {}
    for name, runtime in (("built", eager()), (order, make())):
        runtime.row_order = name
        runtime.keep_hidden(True)
        for slot in (0, 1):
            runtime.prefill(slot, PROMPT)
        result = runtime.tree_pass([0, 1], trees)
        first_pass = [one.clone() for one in (*result.logits, *result.hidden)]
        for slot, shape in enumerate(shapes):
            runtime.commit(slot, [0, *shape.path(shape.parents.size - 1)])
        found[name] = first_pass + [one.clone() for one in runtime.tree_pass([1, 0], trees[::-1]).logits]
    for first, second in zip(*found.values(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(0.8), RejectionSampling(0.8)], ids=type)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("make", [RUNTIMES["eager"], RUNTIMES["graphed, blocks"]], ids=["eager", "graphed"])
@pytest.mark.variants(2)
def test_the_output_is_that_of_rows_as_built(make, order, verifier):
    texts = {}
    for name, runtime in (("built", eager()), (order, make())):
        runtime.row_order = name
        drawn = isinstance(verifier, RejectionSampling)
        draft = build("Llama", {**SETTINGS, "num_hidden_layers": 1}, dtype=torch.float32)
        parts = (DraftModel(draft), DySpecGreedy(24)) if drawn else (TokenRecycling(), TokenRecyclingTree())
        results = [Decoder(runtime, *parts, verifier).generate(PROMPT, max_new_tokens=40, seed=seed) for seed in (0, 1)]
        texts[name] = [(result.token_ids, result.steps) for result in results]
    assert texts["built"] == texts[order]


def test_compiled_passes_refuse_an_order():
    model = build("Llama", SETTINGS, dtype=torch.float32)
    model.config.row_order = "depth-first"
    with pytest.raises(CannotCompileError, match=r"has another pair\.row_order than 'built'"):
        CompiledModel.for_model(model)
    assert GraphedModel(model, CheckedReplay).row_order == "depth-first"
