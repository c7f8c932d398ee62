"""Lanes join and leave while others continue. Each has the output it would have alone."""

import gc
import weakref
from random import Random

import pytest
import torch

from specexp.builders import Chain, DySpecGreedy, StaticTree
from specexp.core.contracts import TreeBuilder
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder, Decoding, Drafting, Lane
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.scheduling.executor import copies
from specexp.testing.fakes import hashed_model
from specexp.verifiers import KeyedSampling

VOCABULARY = 11
PROMPTS = [[1, 2, 3, 1, 2], [7], [4, 5, 6, 4, 5, 6], [9, 8, 9]]
COMPOSITIONS = {
    "plain": lambda: Parts(None, None, KeyedSampling(0.8)),
    "lookup": lambda: Parts(PromptLookup(), Chain(3), KeyedSampling(0.8)),
    "recycling": lambda: Parts(TokenRecycling(k=2), StaticTree([[0], [1], [0, 0]]), KeyedSampling(0.8)),
    "dynamic": lambda: Parts(
        DraftModel(hashed_model(VOCABULARY, seed=4)), DySpecGreedy(5, candidates="top-k"), KeyedSampling(0.8)
    ),
}


def alone(number: int) -> list[int]:
    decoder = Decoder(hashed_model(VOCABULARY), verifier=KeyedSampling(0.8))
    prompt = PROMPTS[number % len(PROMPTS)]
    return decoder.generate(prompt, max_new_tokens=5 + number % 7, sequence=number, seed=0).token_ids


def lane(model: LanguageModel, number: int, slot: int) -> tuple[Lane, Parts]:
    parts = list(COMPOSITIONS.values())[number % len(COMPOSITIONS)]()
    if parts.drafter is not None:
        parts.drafter.check_vocabulary(VOCABULARY)
    context = parts.context(PROMPTS[number % len(PROMPTS)], 0, number)
    made = Lane(context, model, parts.verifier, Drafting(parts, context), slot=slot, max_new_tokens=5 + number % 7)
    return made, parts


@torch.inference_mode()
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 10 else pytest.mark.slow) for seed in range(30)]
)
@pytest.mark.variants(1)
def test_lanes_of_any_parts_join_and_leave_while_others_go_on(seed: int) -> None:
    """A lane that is dropped half way leaves its slot to another, without an effect on the rest."""
    random = Random(seed)
    model = LanguageModel(hashed_model(VOCABULARY))
    decoding = Decoding(model)
    waiting, finished, dropped = list(range(14)), {}, 0
    while waiting or decoding.lanes:
        free = [slot for slot in range(4) if slot not in decoding.lanes]
        while waiting and free and (random.random() < 0.5 or not decoding.lanes):
            slot = free.pop(random.randrange(len(free)))
            made, parts = lane(model, waiting.pop(0), slot)
            model.cache.reserve(0, slot + 1)
            model.cache.truncate(slot, 0)
            decoding.start(made, parts.wants_prefill_logits)
        if len(decoding.lanes) > 1 and random.random() < 0.1:
            decoding.remove(random.choice(list(decoding.lanes.values())))
            dropped += 1
        for ended in decoding.step():
            assert ended.slot not in decoding.lanes
            finished[ended.context.sequence] = ended.result
    assert len(finished) + dropped == 14
    for number, result in finished.items():
        assert result.token_ids == alone(int(number))
        assert result.accepted_drafts + result.bonus_tokens == len(result.token_ids)
        assert result.prefill_seconds > 0


class TestDraftersOfATeam:
    """One model drafts for several lanes in one pass a level."""

    def lanes(self, model: LanguageModel, parts: Parts, number: int) -> list[Lane]:
        parts.drafter.check_vocabulary(VOCABULARY)
        model.cache.reserve(0, number)
        made = []
        for slot, own in enumerate(copies(parts, number)):
            context = own.context(PROMPTS[slot % len(PROMPTS)], 0, slot)
            drafting = Drafting(own, context)
            made.append(Lane(context, model, own.verifier, drafting, slot=slot, max_new_tokens=5 + slot))
        return made

    @torch.inference_mode()
    @pytest.mark.parametrize("builder", [StaticTree([[0], [1], [0, 0], [0, 0, 0]]), DySpecGreedy(5)])
    def test_a_step_has_as_many_draft_passes_as_the_deepest_tree(self, builder: TreeBuilder) -> None:
        draft = DraftModel(hashed_model(VOCABULARY, seed=4))
        parts = Parts(draft, builder, KeyedSampling(0.8))
        model = LanguageModel(hashed_model(VOCABULARY))
        decoding, lanes = Decoding(model), self.lanes(model, parts, 4)
        for made in lanes:
            decoding.start(made)
        (runtime,) = draft.models
        while decoding.lanes:
            going, before = list(decoding.lanes.values()), runtime.passes
            passes = [made.result.draft_passes for made in going]
            decoding.step()
            own = [made.result.draft_passes - count for made, count in zip(going, passes, strict=True)]
            assert runtime.passes - before == max(own)
        for number, made in enumerate(lanes):
            expected = Decoder(
                hashed_model(VOCABULARY), DraftModel(hashed_model(VOCABULARY, seed=4)), builder, parts.verifier
            ).generate(PROMPTS[number], max_new_tokens=5 + number, sequence=number, seed=0)
            for count in ("token_ids", "steps", "drafted_nodes", "accepted_drafts", "draft_passes"):
                assert getattr(made.result, count) == getattr(expected, count)

    @torch.inference_mode()
    def test_each_by_itself_takes_a_pass_of_its_own(self) -> None:
        draft = DraftModel(hashed_model(VOCABULARY, seed=4))
        model = LanguageModel(hashed_model(VOCABULARY))
        decoding = Decoding(model, together=False)
        for made in self.lanes(model, Parts(draft, Chain(2)), 3):
            decoding.start(made)
        before = draft.models[0].passes
        decoding.step()
        assert draft.models[0].passes - before == 3 * 2

    def test_a_drafter_that_is_gone_leaves_its_slot_to_the_next(self) -> None:
        draft = DraftModel(hashed_model(VOCABULARY, seed=4))
        for _ in range(5):
            others = [draft.for_new_sequence() for _ in range(3)]
            del others
            gc.collect()
        assert draft.models[0].cache.slots == 4


def test_a_slot_holds_one_lane() -> None:
    model = LanguageModel(hashed_model(VOCABULARY))
    decoding = Decoding(model)
    decoding.add(lane(model, 0, 0)[0])
    with pytest.raises(ValueError, match="slot 0 holds a sequence that has not ended"):
        decoding.add(lane(model, 1, 0)[0])


@pytest.mark.slow
def test_shapes_of_a_dynamic_tree_are_gone_with_their_step() -> None:
    model = LanguageModel(hashed_model(VOCABULARY))
    shapes: list[weakref.ref[TreeShape]] = []

    def count(outcome: object) -> None:
        shapes.append(weakref.ref(outcome.tree.shape))  # type: ignore[attr-defined]

    dynamic = DraftModel(hashed_model(VOCABULARY, seed=4)), DySpecGreedy(24, candidates="top-k")
    Decoder(model, *dynamic).generate(PROMPTS[0], max_new_tokens=200, observers=[count])
    gc.collect()
    assert len(shapes) > 40
    alive = {id(shape()) for shape in shapes if shape() is not None and shape().num_nodes}  # type: ignore[union-attr]
    assert len(alive) <= 1  # of the last step
