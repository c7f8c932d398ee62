"""Every arm emits the engine's tokens, and counts what it took."""

import dataclasses

import pytest
import torch
from helpers.small_models import EOS, tiny_llama

from specexp import Decoder
from specexp.bench.arm import Generation, describe
from specexp.bench.decoder_arm import DecoderArm
from specexp.bench.hugging_face_arm import HuggingFaceArm
from specexp.builders import Chain, TokenRecyclingTree
from specexp.drafters import PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.verifiers import Greedy, KeyedSampling

REFERENCES = ("hf-eager", "hf-assisted", "hf-prompt-lookup")
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("verifier", "stop_at_eos"),
    [
        (Greedy(), True),
        pytest.param(Greedy(), False, marks=slow),
        pytest.param(KeyedSampling(0.7), True, marks=slow),
        (KeyedSampling(0.7), False),
        (KeyedSampling(1.0, top_k=20, top_p=0.9), True),
        pytest.param(KeyedSampling(1.0, top_k=20, top_p=0.9), False, marks=slow),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else describe(value),
)
def test_all_arms_emit_the_same_tokens(target, draft, tokenizer, prompts, verifier, stop_at_eos):
    generation = Generation(max_new_tokens=24, seed=7, stop_at_eos=stop_at_eos)
    plain = DecoderArm("engine", Decoder(target, verifier=verifier), tokenizer, generation)
    recycling = Decoder(target, TokenRecycling(), TokenRecyclingTree(), verifier)
    arms = [DecoderArm("tree", recycling, tokenizer, generation)]
    arms += [
        HuggingFaceArm(name, name, target, tokenizer, generation, verifier, draft) for name in REFERENCES
    ]
    for sample, prompt in enumerate(prompts[1:3]):  # of two turns and of one
        expected = plain.decode(prompt, sample)
        for arm in arms:
            found = arm.decode(prompt, sample)
            for field in ("token_ids", "turn_tokens", "finish_reasons", "prompt_tokens", "verifier"):
                assert getattr(found, field) == getattr(expected, field), (arm.name, prompt.prompt_id, field)
            assert found.accepted_drafts + found.bonus_tokens == found.new_tokens
            if not stop_at_eos:
                assert found.turn_tokens == (24,) * len(prompt.turns)


def test_speculation_is_counted_and_models_are_left_as_they_were(target, draft, tokenizer, prompts):
    before = target.generation_config, draft.generation_config
    generation = Generation(max_new_tokens=24, stop_at_eos=False)
    assisted = HuggingFaceArm(
        "a", "hf-assisted", target, tokenizer, generation, None, draft, num_assistant_tokens=3
    )
    found = assisted.decode(prompts[0])
    assert found.accepted_drafts > 0
    assert found.steps == found.bonus_tokens < found.new_tokens == 24
    assert found.drafted_nodes <= 3 * found.steps
    assert found.draft_passes >= found.drafted_nodes
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation)
    plain = eager.decode(prompts[0])
    assert (plain.steps, plain.drafted_nodes, plain.decode_tokens) == (24, 0, 23)
    run = eager.generate(list(prompts[0].token_ids), "p#0", None)
    assert run.tokens_of_pass == [1] * 24
    assert min(run.prefill_seconds, run.decode_seconds) > 0
    assert (target.generation_config, draft.generation_config) == before
    assert not {**target._forward_pre_hooks, **draft._forward_pre_hooks}


def test_all_arms_stop_at_the_context_limit(tokenizer, prompts):
    target = tiny_llama(seed=1, context=40)
    generation = Generation(max_new_tokens=60, stop_at_eos=False)
    prompt = dataclasses.replace(prompts[2], turns=("only",))
    plain = DecoderArm("engine", Decoder(target), tokenizer, generation).decode(prompt)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation).decode(prompt)
    assert eager.token_ids == plain.token_ids
    assert plain.finish_reasons == eager.finish_reasons == ("context",)


def test_a_record_states_what_the_arm_is_and_its_phases_add_up(target, tokenizer, prompts):
    both = Union([PromptLookup(), TokenRecycling(state="carry")])
    generation = Generation(max_new_tokens=4)
    found = DecoderArm("u", Decoder(target, both, Chain(3)), tokenizer, generation).decode(prompts[0])
    assert (found.state, found.dtype, found.device) == ("carry", "float32", "cpu")
    assert (found.lossless, found.keyed, found.verifier) == (True, True, "ArgmaxVerifier")
    assert sum(found.seconds.values()) == pytest.approx(found.decode_seconds)
    cache = PhraseCache(TokenRecycling(state="carry"), state="cold")
    assert DecoderArm("c", Decoder(target, cache, Chain(3)), tokenizer, generation).state == "carry+cold"
    assert describe(KeyedSampling(0.7, top_k=5)) == "KeyedSampling(temperature=0.7, top_k=5)"
    assert describe(Greedy()) == "Greedy"


def test_assisted_generation_without_a_draft_is_refused(target, tokenizer):
    with pytest.raises(ValueError, match="'a' is hf-assisted and the pair has no draft model"):
        HuggingFaceArm("a", "hf-assisted", target, tokenizer, Generation())


def test_float64_and_eos_of_the_model_config(tokenizer, prompts):
    target = tiny_llama(seed=3, dtype=torch.float64)
    target.generation_config.eos_token_id = [EOS, 9]
    generation = Generation(max_new_tokens=40)
    plain = DecoderArm("engine", Decoder(target), tokenizer, generation)
    eager = HuggingFaceArm("e", "hf-eager", target, tokenizer, generation)
    assert plain.eos == eager.eos == {EOS, 9}
    for prompt in prompts:
        assert eager.decode(prompt).token_ids == plain.decode(prompt).token_ids
