"""Runs and their followers with probabilities, by hand and against a search through all text."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.examples import examples
from helpers.requests import begun, chain_request
from hypothesis import given, strategies as st

from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE, root_tree
from specexp.drafters import SuffixAutomaton
from specexp.drafters.suffix_index import SuffixArray, SuffixIndex, corpus_arrays
from specexp.replay.play.fidelity import Grade, fidelity
from specexp.testing.drafters import DrafterContract

TEXTS = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [7, 5, 7, 2]]


TestOfOneText = contract_of(DrafterContract, lambda: SuffixAutomaton(candidates=6))
TestPublished = contract_of(DrafterContract, lambda: SuffixAutomaton(estimate="frequency", reach=1.5, min_run=1))
TestCarried = contract_of(DrafterContract, lambda: SuffixAutomaton(state="carry"))
TestWithCorpus = contract_of(DrafterContract, lambda: SuffixAutomaton(corpus_arrays(TEXTS), candidates=4))


def ask(drafter, context, path=()):
    """Return candidates with their probabilities."""
    answer = drafter.propose(context, chain_request(context, path, 8))
    pairs = zip(answer.tokens[0].tolist(), np.exp(answer.log_probs[0]).tolist(), strict=True)
    return {token: pytest.approx(share, abs=1e-5) for token, share in pairs if token != NO_CANDIDATE}


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        ("frequency", {3: 2 / 3, 4: 1 / 3}),  # "1 2" was followed by 3, 4 and 3
        ("escape", {3: 2 / 5, 4: 1 / 5, 9: 2 / 5 * 1 / 2}),  # 2 escapes of 5; 2 alone was also followed by 9
    ],
)
def test_shorter_runs_share_what_longer_ones_escape_or_as_published_nothing(estimate, expected):
    drafter = SuffixAutomaton(estimate=estimate)
    context = begun(drafter, [2, 9, 1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 3, 6, 1, 2])
    assert ask(drafter, context) == expected
    assert list(ask(drafter, context)) == list(expected)


def test_of_equal_candidates_the_newest_comes_first():
    drafter = SuffixAutomaton(estimate="frequency")
    assert list(ask(drafter, begun(drafter, [1, 5, 1, 6, 1, 7, 1]))) == [7, 6, 5]


def test_the_path_through_the_tree_belongs_to_the_run():
    drafter = SuffixAutomaton(estimate="frequency")
    context = begun(drafter, [1, 2, 3, 9, 2, 4, 1])
    assert ask(drafter, context, (2,)) == {3: 1}
    assert ask(drafter, context, (8,)) == {}
    assert ask(drafter, context, (8, 2)) == {4: 1 / 2, 3: 1 / 2}


def test_a_run_reaches_as_deep_as_it_is_long():
    """ "1 2" was there before, so two tokens are proposed."""
    drafter = SuffixAutomaton(reach=1.0)
    context = begun(drafter, [1, 2, 3, 4, 5, 9, 1, 2])
    assert 3 in ask(drafter, context)
    assert 4 in ask(drafter, context, (3,))
    assert ask(drafter, context, (3, 4)) == {}


def test_earlier_texts_are_searched_if_they_are_carried():
    for state, known in (("carry", {6: 1 / 2}), ("cold", {})):
        drafter = SuffixAutomaton(state=state)
        begun(drafter, [4, 5, 6])
        assert ask(drafter, begun(drafter, [9, 5])) == known


def test_sequences_decoded_together_share_carried_texts():
    drafter = SuffixAutomaton(state="carry", estimate="frequency")
    first, second = begun(drafter, [4, 5]), begun(drafter, [8, 5])
    assert ask(drafter, second) == {}
    first.append([6])
    drafter.observe(Outcome(first, root_tree(5), None, (), (6,)))
    assert ask(drafter, second) == {6: 1}
    assert drafter.for_new_sequence() is drafter


def test_the_corpus_counts_where_it_holds_a_longer_run():
    corpus = corpus_arrays([[1, 2, 3, 4], [2, 3, 5]])
    drafter = SuffixAutomaton(corpus, estimate="frequency")
    assert ask(drafter, begun(drafter, [3, 6, 1, 2, 3])) == {4: 1}
    assert ask(drafter, begun(drafter, [0, 1, 2, 3, 6, 0, 1, 2, 3])) == {6: 1}
    assert ask(drafter, begun(drafter, [2, 3])) == {4: 1 / 2, 5: 1 / 2}
    assert ask(drafter, begun(drafter, [7])) == {}


small_texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), min_size=1, max_size=3)


def occurrences(texts, run):
    """Return the followers of a run, counted at every place of the texts."""
    found = {}
    for text in texts:
        for start in range(len(text) - len(run)):
            if text[start : start + len(run)] == run:
                found[text[start + len(run)]] = found.get(text[start + len(run)], 0) + 1
    return found


@examples(60)
@given(small_texts, st.randoms(use_true_random=False))
def test_the_automaton_counts_what_a_search_counts(texts, random):
    """Also if texts grow in turns."""
    index, places, grown = SuffixIndex(), [0] * len(texts), [0] * len(texts)
    while any(done < len(text) for done, text in zip(grown, texts, strict=True)):
        which = random.choice([one for one, text in enumerate(texts) if grown[one] < len(text)])
        places[which] = index.add(places[which], texts[which][grown[which]])
        grown[which] += 1
    for text, place in zip(texts, places, strict=True):
        known = list(index.known(place, len(text)))
        for length, followers in known:
            assert dict(followers) == occurrences(texts, text[len(text) - length :])
        longest = max((size for size in range(1, len(text) + 1) if occurrences(texts, text[-size:])), default=0)
        assert max((length for length, _ in known), default=0) == longest


@examples(60)
@given(small_texts, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_the_array_finds_what_a_search_finds(texts, tail):
    array = SuffixArray(corpus_arrays(texts))

    def there(run):
        return any(text[start : start + len(run)] == run for text in texts for start in range(len(text)))

    longest = max((size for size in range(len(tail) + 1) if there(tail[len(tail) - size :])), default=0)
    run = array.longest(tail)
    assert run[2] == longest
    assert dict(array.followers(run)) == occurrences(texts, tail[len(tail) - longest :]) or longest == 0
    for token in range(4):
        following = array.step(run, token)
        assert (following is not None) == there([*tail[len(tail) - longest :], token])


def test_a_replay_of_it_is_exact():
    assert fidelity(Parts(SuffixAutomaton(state="carry"), Chain(4))).grade is Grade.EXACT


def test_an_artifact_holds_a_corpus(tmp_path):
    save_artifact(tmp_path / "corpus", "suffix-corpus", {"corpus.safetensors": corpus_arrays(TEXTS)})
    drafter = load_artifact(tmp_path / "corpus").drafter
    assert ask(drafter, begun(drafter, [5])) == {7: 1 / 2}


SOUND = corpus_arrays(TEXTS)


def tokens_with(place, token):
    damaged = SOUND["tokens"].copy()
    damaged[place] = token
    return {**SOUND, "tokens": damaged}


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (corpus_arrays([]), "the corpus is empty: it must have at least one text of one token"),
        ({**SOUND, "suffixes": np.zeros_like(SOUND["suffixes"])}, "the corpus' suffixes are damaged"),
        ({**SOUND, "suffixes": SOUND["suffixes"][1:]}, "the corpus' suffixes are damaged"),
        (tokens_with(len(TEXTS[0]), -2), "the corpus' tokens are damaged: they must be ids >= 0, with -1 after"),
        (tokens_with(-1, 3), "the corpus' tokens are damaged"),
        ({**SOUND, "tokens": SOUND["tokens"].astype(np.int64)}, "the corpus' tokens must be int32"),
        ({"tokens": SOUND["tokens"]}, "must have the arrays \\['suffixes', 'tokens'\\]"),
    ],
)
def test_a_damaged_corpus_is_refused(corpus, message):
    with pytest.raises(ValueError, match=message):
        SuffixAutomaton(corpus)


def test_a_corpus_of_another_vocabulary_and_damaged_states_are_refused():
    with pytest.raises(ValueError, match="must be from 0 to 5, as in the target's vocabulary, got 7"):
        SuffixAutomaton(SOUND).check_vocabulary(6)
    with pytest.raises(ValueError, match="the saved texts are damaged: lengths must add up to 2 tokens, got 3"):
        SuffixAutomaton(state="carry").load_state_dict({"tokens": np.array([1, 2]), "lengths": np.array([3])})
