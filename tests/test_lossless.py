"""The promise of the whole project: whatever is composed, the output is plain decoding's, token for token."""

from functools import cache

import pytest
import torch
from helpers.emulated_tiles import WIDTHS, emulated_tiles
from helpers.examples import examples
from helpers.small_families import FAMILIES, family_model
from helpers.small_models import FULL_ATTENTION, VOCABULARY, small_model
from hypothesis import given, strategies as st

from specexp.builders import (
    BeamRerank,
    Chain,
    DySpecGreedy,
    DySpecThreshold,
    KConfig,
    ParametricTree,
    SpecInfer,
    StaticTree,
    TokenRecyclingTree,
)
from specexp.controllers import Fixed
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.models.compiled import CompiledModel
from specexp.models.llama_weights import Products
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

K = 4


@cache
def language_model(name, attention):
    return LanguageModel(small_model(name, attention))


@cache
def compiled_family(name):
    return CompiledModel(family_model(name))


@cache
def tiled_family(name):
    with emulated_tiles():
        return CompiledModel(family_model(name, torch.bfloat16, **WIDTHS))


recycling = st.builds(
    TokenRecycling,
    k=st.just(K),
    update=st.sampled_from(["last", "first", "race", "race-distinct", "merge", "accepted"]),
    initialisation=st.sampled_from(["empty", "prompt"]),
    prefill_update=st.booleans(),
    state=st.sampled_from(["cold", "carry"]),
    coupled=st.booleans(),
)
lookup = st.builds(PromptLookup, max_ngram=st.integers(1, 4), candidates=st.just(K))
draft_models = st.sampled_from(sorted(FULL_ATTENTION)).flatmap(
    lambda name: st.sampled_from(["sdpa", "eager"]).map(lambda attention: small_model(name, attention))
)
own_draws = st.builds(
    DraftModel,
    model=draft_models,
    temperature=st.sampled_from([None, 0.0, 0.6, 1.5]),
    top_k=st.none() | st.integers(1, VOCABULARY),
    top_p=st.none() | st.floats(0.1, 1.0),
)
coupled_draft = st.builds(DraftModel, model=draft_models, coupled=st.just(True))
drafters = st.one_of(
    recycling,
    lookup,
    own_draws,
    coupled_draft,
    st.lists(recycling | lookup | own_draws, min_size=2, max_size=3).map(Union),
)


@st.composite
def rank_paths(draw):
    paths = [()]
    for _ in range(draw(st.integers(1, 20))):
        child = (*draw(st.sampled_from(paths)), draw(st.integers(0, K - 1)))
        if child not in paths:
            paths.append(child)
    return [list(path) for path in paths[1:]]


selections = st.sampled_from(["drawn", "top-k"])
widths = st.lists(st.integers(1, 4), min_size=1, max_size=3)
builders = st.one_of(
    st.builds(KConfig, widths=widths),
    st.builds(Chain, length=st.integers(1, 9)),
    st.builds(StaticTree, rank_paths=rank_paths()),
    st.builds(
        ParametricTree,
        nodes=st.integers(1, 40),
        depth=st.integers(1, 7),
        rank_decay=st.floats(0, 4),
        depth_decay=st.floats(0.1, 1),
        width=st.just(K),
    ),
)
depths = st.none() | st.integers(1, 6)


def deciding(candidates):
    """Builders that decide by draft probabilities."""
    return st.one_of(
        st.builds(
            DySpecGreedy,
            budget=st.integers(1, 24),
            prefetch=st.sampled_from([1, 4, 32]),
            max_depth=depths,
            candidates=candidates,
        ),
        st.builds(
            DySpecThreshold,
            threshold=st.floats(0.01, 1),
            max_nodes=st.integers(1, 24),
            max_depth=depths,
            candidates=candidates,
            cap=st.sampled_from(["best", "layers"]),
        ),
    )


beams = st.builds(BeamRerank, budget=st.integers(1, 24), depth=st.integers(1, 4), beam=st.integers(1, 5))
drawing = st.one_of(
    deciding(selections),
    st.builds(KConfig, widths=widths, candidates=st.just("drawn")),
    st.builds(Chain, length=st.integers(1, 9), candidates=st.just("drawn")),
    st.builds(SpecInfer, widths=widths),
)
drafts_and_trees = st.one_of(
    st.tuples(drafters, builders),
    st.tuples(own_draws, drawing),
    st.tuples(coupled_draft | own_draws, beams | deciding(st.just("top-k"))),
)
verifiers = st.one_of(
    st.builds(Greedy),
    st.builds(
        KeyedSampling,
        temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5]),
        top_k=st.none() | st.integers(1, VOCABULARY),
        top_p=st.none() | st.floats(0.1, 1.0),
    ),
)
limits = st.none() | st.integers(0, 6)
prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


@examples(200)
@given(
    name=st.sampled_from(sorted(FULL_ATTENTION)),
    attention=st.sampled_from(["sdpa", "eager"]),
    draft_and_tree=drafts_and_trees,
    verifier=verifiers,
    max_depth=limits,
    max_nodes=limits,
    texts=st.lists(prompts, min_size=1, max_size=2),
    max_new_tokens=st.integers(1, 24),
    eos=st.none() | st.integers(0, VOCABULARY - 1),
    seed=st.integers(0, 3),
)
def test_the_output_is_that_of_plain_decoding(
    name, attention, draft_and_tree, verifier, max_depth, max_nodes, texts, max_new_tokens, eos, seed
):
    drafter, builder = draft_and_tree
    model = language_model(name, attention)
    plain = Decoder(model, verifier=verifier)
    drafted = Decoder(model, drafter, builder, verifier, Fixed(max_depth=max_depth, max_nodes=max_nodes))
    for number, prompt in enumerate(texts):
        request = {"max_new_tokens": max_new_tokens, "eos_token_id": eos, "seed": seed, "sequence": f"{number}#0"}
        expected = plain.generate(prompt, **request)
        result = drafted.generate(prompt, **request)
        assert result.token_ids == expected.token_ids
        assert result.finish_reason == expected.finish_reason
        assert result.accepted_drafts + result.bonus_tokens == len(result.token_ids)
        assert result.steps <= expected.steps


quick = {"Gemma3Text", "Granite"}


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "name", [one if one in quick else pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES]
)
@examples(10)
@given(draft_and_tree=drafts_and_trees, verifier=verifiers, prompt=prompts, seed=st.integers(0, 3))
def test_the_output_of_a_compiled_family_is_that_of_plain_decoding(name, draft_and_tree, verifier, prompt, seed):
    """Most outputs are longer than the windows."""
    check_equal(compiled_family(name), draft_and_tree, verifier, prompt, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@examples(20)
@given(draft_and_tree=drafts_and_trees, verifier=verifiers, prompt=prompts, seed=st.integers(0, 3))
def test_the_output_of_products_by_tiles_is_that_of_plain_decoding(name, draft_and_tree, verifier, prompt, seed):
    model = tiled_family(name)
    assert model._weights.products == Products.TILES
    check_equal(model, draft_and_tree, verifier, prompt, seed)


def check_equal(model, draft_and_tree, verifier, prompt, seed):
    decoders = Decoder(model, verifier=verifier), Decoder(model, *draft_and_tree, verifier)
    plain, drafted = (decoder.generate(prompt, max_new_tokens=24, seed=seed) for decoder in decoders)
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish_reason == plain.finish_reason


@examples(60)
@given(
    name=st.sampled_from(sorted(FULL_ATTENTION)),
    draft_and_tree=drafts_and_trees,
    verifier=verifiers,
    turns=st.lists(prompts, min_size=2, max_size=3),
)
def test_a_conversation_is_that_of_plain_decoding_from_the_start(name, draft_and_tree, verifier, turns):
    drafter, builder = draft_and_tree
    model = language_model(name, "sdpa")
    plain, drafted = Decoder(model, verifier=verifier), Decoder(model, drafter, builder, verifier)
    text = []
    for number, turn in enumerate(turns):
        text = text + turn
        expected = plain.generate(text, max_new_tokens=10, seed=0).token_ids
        result = drafted.generate(text, max_new_tokens=10, continue_conversation=number > 0, seed=0)
        assert result.token_ids == expected
        text = text + result.token_ids


@examples(30)
@given(
    name=st.sampled_from(sorted(FULL_ATTENTION)),
    drafter=own_draws,
    builder=drawing | beams,
    verifier=st.builds(RejectionSampling, temperature=st.sampled_from([0.0, 0.7, 1.0])),
    prompt=prompts,
    seed=st.integers(0, 3),
)
@pytest.mark.slow
def test_rejection_sampling_repeats_itself(name, drafter, builder, verifier, prompt, seed):
    """Its output depends on the drafts, except at temperature 0, but not on earlier prompts."""
    model = language_model(name, "sdpa")
    decoder = Decoder(model, drafter, builder, verifier)
    first = decoder.generate(prompt, max_new_tokens=16, seed=seed)
    decoder.generate([7, 8, 9], max_new_tokens=5, seed=0)
    again = decoder.generate(prompt, max_new_tokens=16, seed=seed)
    assert again.token_ids == first.token_ids
    assert again.draft_passes == first.draft_passes
    if verifier.temperature == 0:
        assert first.token_ids == Decoder(model).generate(prompt, max_new_tokens=16).token_ids


@pytest.mark.variants(2)
@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(FULL_ATTENTION))
def test_the_papers_tree_up_to_the_context_limit(name, attention):
    model = language_model(name, attention)
    for verifier in (Greedy(), KeyedSampling(0.7)):
        drafter = Union([PromptLookup(), TokenRecycling(k=8)])
        text = [1, 2, 3] * 30
        expected = Decoder(model, verifier=verifier).generate(text, max_new_tokens=500, seed=0)
        result = Decoder(model, drafter, TokenRecyclingTree(), verifier).generate(text, max_new_tokens=500, seed=0)
        assert result.token_ids == expected.token_ids
        assert result.finish_reason == "context"
        assert len(result.token_ids) == 160 - 90


@pytest.mark.parametrize("name", sorted(FULL_ATTENTION))
def test_plain_greedy_decoding_is_hugging_faces_own(name):
    model = small_model(name)
    prompt = torch.tensor([[1, 2, 3, 4]])
    greedy = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **greedy)[0, 4:].tolist()
    assert Decoder(model).generate(prompt, max_new_tokens=40).token_ids == expected
