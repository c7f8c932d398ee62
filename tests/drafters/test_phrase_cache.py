"""The phrase cache by hand: stored phrases, proposed ones, and those that ride in a draft pass."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.builders import Chain, DySpecGreedy, Graft, KConfig, SpecInfer, StaticTree
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.drafters.phrases import PhraseStore
from specexp.testing.drafters import DrawingDrafterContract, PhraseDrafterContract
from specexp.testing.fakes import DistributionDrafter, FakeCausalLM, FakeDrafter, counting_model, hashed_model
from specexp.verifiers import KeyedSampling, RejectionSampling

VOCABULARY = 12


TestAlone = contract_of(PhraseDrafterContract, lambda: PhraseCache(phrase_length=4, max_phrases=6))
TestAloneFromThePrompt = contract_of(
    PhraseDrafterContract, lambda: PhraseCache(phrase_length=3, max_keys=10, initialisation="prompt", state="carry")
)
TestWithoutCommittedText = contract_of(PhraseDrafterContract, lambda: PhraseCache(TokenRecycling(k=4), committed=False))
TestAroundTokenRecycling = contract_of(
    PhraseDrafterContract, lambda: PhraseCache(TokenRecycling(k=4, state="carry"), state="carry")
)


TestAroundADraftModel = contract_of(
    PhraseDrafterContract,
    lambda: PhraseCache(DraftModel(hashed_model(24, seed=1)), initialisation="prompt"),
    DrawingDrafterContract,
)
TestInAUnion = contract_of(PhraseDrafterContract, lambda: Union([PromptLookup(), PhraseCache(max_phrases=4)]))


def chain(tokens, grafted=()):
    rows = np.arange(len(tokens))
    shape = TreeShape(rows - 1, np.where(rows == 0, -1, 0))
    return TokenTree(shape, np.array(tokens), grafted=np.isin(rows, grafted) if grafted else None)


def outcome(tree, answers, accepted, new):
    """Return a step with these answers of the target after every row."""
    context = Context([int(tree.tokens[0])])
    context.append(new)
    return Outcome(context, tree, torch.eye(VOCABULARY)[list(answers)], accepted, new)


def phrases(drafter, *keys):
    return {key: drafter.store.lookup(key, 99) for key in keys}


def test_useful_tokens_beyond_the_first_mismatch_are_stored():
    """Rows: root 7, then 1 2 3 4. The target's tokens are 9 instead of 1, then 2 and 3, then 5 instead of 4."""
    drafter = PhraseCache()
    drafter.observe(outcome(chain([7, 1, 2, 3, 4]), (9, 2, 3, 5, 6), (), (9,)))
    assert phrases(drafter, 7, 1, 2, 3, 4) == {7: [(9,)], 1: [(2, 3, 5)], 2: [(3, 5)], 3: [(5,)], 4: []}


def test_the_branches_of_a_tree_are_stored_separately():
    """Below root 7: 1 and 2; below 1: 3 and 4, below 3: 5; the target follows 2, and below the others 1 4 and 3 5."""
    shape = TreeShape([-1, 0, 0, 1, 1, 3], [-1, 0, 1, 0, 1, 0])
    tree = TokenTree(shape, np.array([7, 1, 2, 3, 4, 5]))
    drafter = PhraseCache()
    drafter.observe(outcome(tree, (2, 4, 8, 5, 9, 6), (2,), (2, 8)))
    found = phrases(drafter, 7, 2, 1, 3, 4, 5)
    assert found == {7: [(2, 8)], 2: [(8,)], 1: [(4, 9)], 3: [(5, 6)], 4: [(9,)], 5: [(6,)]}


def test_grafts_are_stored_in_the_form_the_target_corrected():
    """A phrase 1 2 3 below root 7: 1 is right, 8 replaces 2, 3 is right, and 4 follows."""
    drafter = PhraseCache()
    drafter.observe(outcome(chain([7, 1, 2, 3], grafted=[1, 2, 3]), (1, 8, 3, 4), (1,), (1, 8)))
    assert phrases(drafter, 7, 1, 2) == {7: [(1, 8, 3, 4)], 1: [(8,)], 2: [(3, 4)]}


def test_as_published_no_text_is_stored_but_drafts_and_their_corrections():
    """Rows: root 7, then 1 2 3 4; 1 and 2 are accepted, 8 replaces 3, and 4 is right again. Plain steps add
    nothing.
    """
    drafter = PhraseCache(committed=False)
    drafter.observe(outcome(chain([7, 1, 2, 3, 4]), (1, 2, 8, 4, 6), (1, 2), (1, 2, 8)))
    found = phrases(drafter, 7, 1, 2, 3, 4, 8)
    assert found == {7: [(1, 2, 8)], 1: [(2, 8)], 2: [(8,)], 3: [(4, 6)], 4: [(6,)], 8: []}
    drafter.observe(outcome(chain([8]), (5,), (), (5,)))
    drafter.observe(outcome(chain([5, 2]), (3, 1), (), (3,)))
    assert phrases(drafter, 8, 5) == {8: [], 5: []}


def test_committed_tokens_grow_to_whole_phrases():
    drafter, context = PhraseCache(phrase_length=3), Context([1, 2])
    for new in ((3,), (4, 5), (6,)):
        tree = chain([context.root])
        context.append(new)
        drafter.observe(Outcome(context, tree, torch.zeros(1, VOCABULARY), (), new))
    found = phrases(drafter, 1, 2, 3, 4, 5)
    assert found == {1: [(2, 3, 4)], 2: [(3, 4, 5)], 3: [(4, 5, 6)], 4: [(5, 6)], 5: [(6,)]}


def counted(drafter, builder, prompt, new):
    """Return the tree of every step, and the tokens fed in each draft pass; target and draft count, 9 then 0."""
    seen = []
    Decoder(counting_model(10), drafter, builder).generate(prompt, max_new_tokens=new, observers=[seen.append])
    return [(step.tree.tokens.tolist(), step.pass_tokens) for step in seen]


def test_one_pass_extends_a_draft_by_several_tokens():
    """The prompt holds 1 2 3 4 5 6: these five are fed behind the last 1, and the draft agrees with all."""
    prompt = [1, 2, 3, 4, 5, 6, 9, 1]
    plain = counted(DraftModel(counting_model(10)), Chain(6), prompt, 8)
    assert plain[0] == ([1, 2, 3, 4, 5, 6, 7], (1, 1, 1, 1, 1, 1))
    riding = counted(PhraseCache(DraftModel(counting_model(10)), initialisation="prompt"), Chain(6), prompt, 8)
    assert riding[0] == ([1, 2, 3, 4, 5, 6, 7], (1 + 5,))  # the token after the phrase is known too


def test_a_matches_validate_a_plus_1_tokens_and_the_corrected_phrase_is_stored():
    """Of 2 3 9 9 9 the draft agrees with two, and 4 follows; the fourth token takes another pass."""
    cache = PhraseCache(DraftModel(counting_model(10)), initialisation="prompt", state="carry")
    steps = counted(cache, Chain(4), [1, 2, 3, 9, 9, 9, 5, 1], 1 + 4)
    assert steps[0] == ([1, 2, 3, 4, 5], (1 + 5, 1))
    assert cache.store.lookup(1, 9) == [(2, 3, 4, 5, 6), (2, 3, 4, 0, 0), (2, 3, 9, 9, 9)]


@pytest.mark.parametrize(
    ("phrase", "passes"),
    [([2, 9, 9, 9, 9], (1 + 5, 1 + 5, 1)), ([2, 3, 9, 9, 9], (1 + 5,)), ([8, 9, 9, 9, 9], (1 + 5, 1, 1))],
    ids=["one token", "two", "none"],
)
def test_as_published_a_match_of_one_token_saves_no_pass(phrase, passes):
    """Algorithm 2, line 14: with A = 1 the draft grows by the next token alone, and the phrase of that token rides."""
    cache = PhraseCache(DraftModel(counting_model(10)), shortest_match=2, initialisation="prompt")
    assert counted(cache, Chain(3), [1, *phrase, 5, 1], 1 + 3)[0] == ([1, 2, 3, 4], passes)


def test_the_first_rows_of_the_frontier_take_the_rides():
    """A request for two rows with two phrases each, which share their first token; three may ride."""
    inner = DistributionDrafter(lambda tokens: [1 / VOCABULARY] * VOCABULARY)
    cache = PhraseCache(inner, phrase_length=2, ride=3)
    context = Context([7])
    cache.begin(context, None)
    for key in (1, 2):
        cache.store.insert(key, (5, 6))
        cache.store.insert(key, (5, 8))
    request = Request(np.array([7, 1, 2]), np.array([-1, 0, 0]), np.array([-1, 0, 1]), np.array([1, 2]), 4)
    answer = cache.propose(context, request)
    ridden, request_itself = inner.requests
    assert ridden.tokens.tolist() == [7, 1, 2, 5, 8, 6, 5, 8]
    assert ridden.parents.tolist() == [-1, 0, 0, 1, 3, 3, 2, 6]
    assert ridden.rows.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (ridden.k, request_itself.k) == (1, 4)
    assert len(answer.pass_tokens) == 1
    cache.propose(context, request)
    assert len(inner.requests) == 3  # what is known costs no pass, and nothing rides


BUILDERS = {
    "chain": lambda: Chain(5),
    "chain drawn": lambda: Chain(5, "drawn"),
    "k-config": lambda: KConfig([2, 2, 1]),
    "drawn": lambda: KConfig([2, 2, 1], "drawn"),
    "with replacement": lambda: SpecInfer([3, 2]),
    "dyspec": lambda: DySpecGreedy(12, prefetch=3, candidates="top-k"),
    "dyspec drawn": lambda: DySpecGreedy(12, prefetch=3),
}


def content_of(tree):
    log_probs = None if tree.log_probs is None else tree.log_probs.tolist()
    q = {row: values.tolist() for row, values in (tree.q or {}).items()}
    return tree.tokens.tolist(), tree.shape.parents.tolist(), log_probs, q


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.variants(1)
def test_riding_changes_the_number_of_passes_and_nothing_else(builder, seed):
    """Tokens, distributions and log-probabilities of every tree are the same; float64, a draft that repeats itself."""
    target, trees, passes = hashed_model(VOCABULARY, spread=3.0), {(0, 0): [], (3, 0): [], (3, 2): []}, {}
    for (ride, match), found in trees.items():
        draft = hashed_model(VOCABULARY, seed=0, spread=2.0)
        draft = FakeCausalLM(lambda tokens, answer=draft.next_logits: answer(tokens[-1:]), VOCABULARY)
        sizes = {"phrase_length": 4, "ride": ride, "shortest_match": match}
        cache = PhraseCache(DraftModel(draft), **sizes, initialisation="prompt")
        result = Decoder(target, cache, builder(), RejectionSampling(0.5)).generate(
            [1, 2, 3, 1, 2, 3],
            max_new_tokens=60,
            observers=[lambda step, found=found: found.append(content_of(step.tree))],
            seed=seed,
        )
        passes[ride, match] = result.draft_passes
    assert trees[0, 0] == trees[3, 0] == trees[3, 2]
    assert passes[3, 2] < passes[0, 0]
    assert passes[3, 0] < passes[0, 0]


@pytest.mark.parametrize("limit", [8, 11, 13, 30])
def test_phrases_never_ride_beyond_the_drafts_context(limit):
    target, short = hashed_model(VOCABULARY), hashed_model(VOCABULARY, context_limit=limit)
    cache = PhraseCache(DraftModel(short), initialisation="prompt", state="carry")
    decoder = Decoder(target, cache, Graft(Chain(3)), KeyedSampling(0.0))
    for prompt in ([1, 2, 3, 1, 2, 3], [5] * 20):
        expected = Decoder(target).generate(prompt, max_new_tokens=40).token_ids
        assert decoder.generate(prompt, max_new_tokens=40).token_ids == expected
    assert len(cache.store.state_dict()["keys"]) > 0


def test_alone_it_follows_the_longest_match_and_then_the_newest():
    """Phrases 1 2 3 4 and 1 2 5, 2 6: after 1 2 the first key gives 5 (newer) and 3, the second adds 6."""
    cache = PhraseCache(phrase_length=3, max_phrases=4)
    for key, phrase in ((1, (2, 3, 4)), (1, (2, 5)), (2, (6, 7)), (2, (3, 9))):
        cache.store.insert(key, phrase)
    context = Context([8, 1])
    shape = TreeShape([-1, 0, 1], [-1, 0, 0])
    tokens = np.array([1, 2, 3])
    answers = cache.propose(context, Request(tokens, shape.parents, shape.ranks, np.array([0, 1, 2]), 4))
    assert answers.tokens.tolist() == [[2, -1, -1, -1], [5, 3, 6, -1], [4, 9, -1, -1]]
    context = Context([1, 2])  # what is committed counts as well
    answers = cache.propose(context, Request(tokens[1:2], shape.parents[:1], shape.ranks[:1], np.zeros(1, int), 2))
    assert answers.tokens.tolist() == [[5, 3]]


def test_phrases_are_answered_newest_first_and_filled_up():
    cache = PhraseCache(FakeDrafter(lambda tokens: [5]))
    for phrase in ((1, 2, 3), (4,), (6, 7, 8, 9)):
        cache.store.insert(3, phrase)
    request = Request(np.array([3]), np.array([-1]), np.array([-1]), np.array([0]), 3, length=3)
    assert not cache.costs_pass(request)
    assert cache.propose(Context([3]), request).tokens.tolist() == [[[6, 7, 8], [4, -1, -1], [1, 2, 3]]]
    union = Union([TokenRecycling(), cache, cache])
    assert union.phrase_length == 5
    assert union.propose(Context([3]), request).tokens.tolist() == [[[6, 7, 8], [4, -1, -1], [1, 2, 3]]]


def test_looked_up_keys_are_used_when_the_step_ends():
    """Key 1 was looked up, so key 2 is evicted, although it is newer."""
    cache = PhraseCache(max_keys=2)
    cache.store.insert(1, (5,))
    cache.store.insert(2, (6,))
    step = outcome(chain([9]), (3,), (), (3,))
    request = Request(np.array([1]), np.array([-1]), np.array([-1]), np.array([0]), 3, length=2)
    cache.propose(step.context, request)
    cache.observe(step)
    assert phrases(cache, 1, 2, 9) == {1: [(5,)], 2: [], 9: [(3,)]}


@pytest.mark.parametrize(("state", "kept"), [("cold", []), ("carry", [(9,)])])
def test_what_a_prompt_inherits(state, kept):
    cache = PhraseCache(state=state)
    cache.observe(step := outcome(chain([7]), (9,), (), (9,)))
    step.context.next_turn([2])
    cache.begin(step.context, None)
    assert cache.store.lookup(7, 9) == [(9,)]  # a later turn of the conversation
    cache.begin(Context([1]), None)
    assert cache.store.lookup(7, 9) == kept


def test_a_cache_of_other_sizes_or_parts_is_refused():
    full = PhraseCache(phrase_length=4)
    full.store.insert(1, (2, 3, 4, 5))
    with pytest.raises(ValueError, match="at most 3 tokens, got 4"):
        PhraseCache(phrase_length=3).load_state_dict(full.state_dict())
    around = PhraseCache(TokenRecycling())
    for cache, other in ((around, full), (full, around)):
        with pytest.raises(ValueError, match="the state of PhraseCache must have the entries"):
            cache.load_state_dict(other.state_dict())


def test_it_declares_what_its_drafter_declares():
    model = DraftModel(hashed_model(9), coupled=True)
    cache = PhraseCache(model)
    assert (cache.coupled, cache.draws, cache.gives_log_probs) == (True, False, True)
    assert (cache.max_candidates, cache.wants_prefill_logits) == (9, False)
    assert PhraseCache(TokenRecycling(k=3)).wants_prefill_logits
    with pytest.raises(ValueError, match=r"set pair\.draft"):
        PhraseCache(DraftModel()).use_draft_model(None)
    with pytest.raises(ValueError, match=r"draft model must have the target's vocabulary of .* tokens, got 9"):
        cache.check_vocabulary(8)


def test_eos_inside_a_graft_ends_the_output_there():
    """The phrase after 3 is 4 5 6 7; all are right, and 6 ends the output."""
    cache = PhraseCache(FakeDrafter(lambda tokens: []), initialisation="prompt")
    trees = []
    result = Decoder(counting_model(VOCABULARY), cache, Graft(StaticTree([[0]]))).generate(
        [3, 4, 5, 6, 7, 3], max_new_tokens=9, eos_token_id=6, observers=[lambda step: trees.append(step.tree)]
    )
    assert (result.token_ids, result.finish_reason, result.steps) == ([4, 5, 6], "eos", 1)
    assert trees[0].tokens.tolist() == [3, 4, 5, 6, 7, 3]
    assert trees[0].grafted.tolist() == [False] + [True] * 5


class SlowStore:
    """The rules of eviction in their plainest form: lists, searched from one end."""

    def __init__(self, phrase_length, max_keys, max_phrases):
        self.room = phrase_length, max_keys, max_phrases
        self.keys = []  # [key, uses], the one touched longest ago first
        self.phrases = {}  # oldest first

    def insert(self, key, phrase):
        length, max_keys, max_phrases = self.room
        new = tuple(phrase[:length])
        if not new:
            return
        if key not in self.phrases:
            if len(self.keys) == max_keys:
                least = min(self.keys, key=lambda entry: entry[1])
                self.keys.remove(least)
                del self.phrases[least[0]]
            self.keys.append([key, 0])
        known = self.phrases.get(key, [])
        longer = [phrase for phrase in known if phrase[: len(new)] == new]
        new = longer[0] if longer else new
        kept = [phrase for phrase in known if phrase != new[: len(phrase)]]
        self.phrases[key] = [*kept, new][-max_phrases:]

    def use(self, key):
        for entry in self.keys:
            if entry[0] == key:
                self.keys.remove(entry)
                self.keys.append([key, entry[1] + 1])
                return

    def lookup(self, key, count):
        return self.phrases.get(key, [])[::-1][:count]


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
KEYS = st.integers(0, 5)
ACTIONS = st.lists(st.one_of(KEYS, st.tuples(KEYS, st.lists(st.integers(0, 2), min_size=0, max_size=5))), max_size=80)


def act(store, actions):
    for action in actions:
        if isinstance(action, tuple):
            store.insert(*action)
        else:
            store.use(action)


def content(store):
    return {key: store.lookup(key, 100) for key in range(6)}


@examples(300)
@given(SIZES, ACTIONS)
def test_it_holds_what_a_slow_store_holds(sizes, actions):
    store, slow = PhraseStore(*sizes), SlowStore(*sizes)
    for action in actions:
        act(store, [action])
        act(slow, [action])
        assert content(store) == content(slow)
    assert len(store.state_dict()["keys"]) == len(slow.keys)
    assert len(store.state_dict()["phrases"]) == sum(map(len, slow.phrases.values()))


@examples(100)
@given(SIZES, ACTIONS, ACTIONS)
def test_a_saved_store_goes_on_as_if_never_interrupted(sizes, before, after):
    store, restored = PhraseStore(*sizes), PhraseStore(*sizes)
    act(store, before)
    restored.load_state_dict(store.state_dict())
    for one in (store, restored):
        act(one, after)
    assert content(restored) == content(store)
    state, again = store.state_dict(), restored.state_dict()
    assert all(torch.equal(state[name], again[name]) for name in state)


def saved(**changes):
    store = PhraseStore(3, 4, 2)
    for key, phrase in ((1, (5, 6, 7)), (1, (4,)), (2, (8, 9))):
        store.insert(key, phrase)
    return {**store.state_dict(), **changes}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2, 4, 2), r"at most 2 tokens, got 3: raise phrase_length"),
        ((3, 1, 2), r"at most 1 keys with 2 phrases each, got 2 with up to 2"),
        ((3, 4, 1), r"at most 4 keys with 1"),
    ],
)
def test_phrases_that_do_not_fit_are_refused(sizes, expected):
    with pytest.raises(ValueError, match=expected):
        PhraseStore(*sizes).load_state_dict(saved())
    larger = PhraseStore(8, 9, 9)
    larger.load_state_dict(saved())
    assert larger.lookup(1, 9) == [(4,), (5, 6, 7)]


@pytest.mark.parametrize(
    "changes",
    [
        {"more": torch.zeros(1)},
        {"keys": torch.tensor([1.0, 2.0])},
        {"keys": torch.tensor([[1, 2]])},
        {"keys": torch.tensor([1])},
        {"keys": torch.tensor([1, 1])},
        {"keys": torch.tensor([-1, 2])},
        {"uses": torch.tensor([0, -2])},
        {"counts": torch.tensor([3, 0])},
        {"counts": torch.tensor([2, 2])},
        {"phrases": torch.tensor([[5, 6, 7], [-1, -1, -1], [8, 9, -1]])},
        {"phrases": torch.tensor([[5, 6, 7], [-1, 4, -1], [8, 9, -1]])},
        {"phrases": torch.tensor([[5, 6, 7], [4, -7, -1], [8, 9, -1]])},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused_and_changes_nothing(changes):
    store = PhraseStore(3, 4, 2)
    store.insert(3, (1,))
    with pytest.raises(ValueError, match="saved"):
        store.load_state_dict(saved(**changes))
    assert content(store) == {key: [(1,)] if key == 3 else [] for key in range(6)}
