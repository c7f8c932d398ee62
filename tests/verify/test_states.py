"""Drafters that read a transformer's states, which no toy has: the joint of three sampled tokens is the target's."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from helpers import small_dflash, small_eagle3, small_mtp

from specexp.builders import Chain
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.drafters import DFlash, Eagle3, EarlyExit, Mtp
from specexp.verifiers import BlockVerification, RejectionSampling
from specexp.verify.statistics import goodness_of_fit

pytestmark = pytest.mark.slow

PROMPT, SAMPLES, LEVEL, COLD = [3, 1, 4, 1, 5], 200, 1e-3, 0.4
EDGES = [1, 3]
"""Cells of a token, by its rank in the target's distribution: the first, the next two, others."""


@cache
def eagle3():
    folder = Path(mkdtemp())
    small_eagle3.published(folder, whole=True)
    return str(folder)


DRAFTERS = {
    "EarlyExit": (small_eagle3.target_model, lambda **hot: EarlyExit(2, **hot)),
    "Eagle3": (
        small_eagle3.target_model,
        lambda **hot: Eagle3(eagle3(), layers=list(small_eagle3.LAYERS), **hot),
    ),
    "DFlash": (small_eagle3.target_model, lambda **hot: DFlash(small_dflash.known()[0], **hot)),
    "Mtp": (lambda: small_mtp.known()[0], Mtp),
}


class TakesDrafts(RejectionSampling):
    """Takes a tenth of the drafted tokens whatever the target says: a bias of 10 %."""

    def uniforms(self, context, tree):
        return context.uniforms("verify", len(context), size=2 * tree.num_nodes + 2).tolist()

    def try_children(self, tree, row, left, uniforms):
        children = list(tree.draw_order(row))
        if children and next(uniforms) < 0.1:
            return children[0], left
        return super().try_children(tree, row, left, uniforms)


@cache
def law(make_model):
    """Return the cells of each token after each text of up to two tokens, and the joint of three cells."""
    model = make_model()
    size = model.config.vocab_size
    cells, weight, texts = [], np.ones(1), torch.tensor([PROMPT])
    for depth in range(3):
        with torch.no_grad():
            p = (model(texts).logits[:, -1] / COLD).softmax(-1).numpy()  # [size ** depth, size]
        ranks = np.argsort(np.argsort(-p, axis=1), axis=1)
        cells.append(np.digitize(ranks, EDGES))
        weight = (weight[:, None] * p).ravel()
        texts = torch.cat((texts.repeat_interleave(size, 0), torch.arange(size).repeat(len(texts))[:, None]), 1)
        texts = texts if depth < 2 else texts[:0]
    joint = np.zeros(27)
    first, second = np.divmod(np.arange(size**2), size)
    path = 9 * cells[0][0, first] + 3 * cells[1][first, second]
    np.add.at(joint, (path[:, None] + cells[2]).ravel(), weight)
    return cells, joint


def sampled(name, verifier, samples=SAMPLES, **hot):
    """Return how often each of the 27 joints of three cells is decoded."""
    make_model, make = DRAFTERS[name]
    cells, counts = law(make_model)[0], np.zeros(27, dtype=np.int64)
    size = cells[0].shape[1]
    decoder = Decoder(LanguageModel(make_model()), make(**hot), Chain(2, "drawn"), verifier)
    for number in range(samples):
        a, b, c = decoder.generate(PROMPT, max_new_tokens=3, seed=0, sequence=number).token_ids
        counts[9 * cells[0][0, a] + 3 * cells[1][a, b] + cells[2][a * size + b, c]] += 1
    return counts


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_joint_of_sampled_tokens_is_the_targets(name):
    joint = law(DRAFTERS[name][0])[1]
    assert joint.sum() == pytest.approx(1.0)
    assert goodness_of_fit(sampled(name, RejectionSampling(COLD)), joint).p_value > LEVEL


def test_the_joint_under_block_verification_is_the_targets():
    joint = law(DRAFTERS["Eagle3"][0])[1]
    assert goodness_of_fit(sampled("Eagle3", BlockVerification(COLD)), joint).p_value > LEVEL


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_planted_bias_is_found(name):
    joint = law(DRAFTERS[name][0])[1]
    found = sampled(name, TakesDrafts(COLD), 2 * SAMPLES, temperature=3.0)
    assert goodness_of_fit(found, joint).p_value < LEVEL
