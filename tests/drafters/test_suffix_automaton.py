"""Runs looked up by hand and against a search through all text; what follows them, and how probable that is."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.artifacts import ArtifactError
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import NO_CANDIDATE, root_tree
from specexp.drafters import SuffixAutomaton
from specexp.drafters.suffix_index import SuffixArray, SuffixIndex, corpus_arrays
from specexp.replay.play.fidelity import Grade, fidelity
from specexp.testing.drafters import DrafterContract

TEXTS = [[1, 2, 3, 1, 2, 4, 1, 2, 3], [7, 5, 7, 2]]


TestOfOneText = contract_of(DrafterContract, lambda: SuffixAutomaton(candidates=6))
TestPublished = contract_of(
    DrafterContract, lambda: SuffixAutomaton(estimate="frequency", reach=1.5, min_run=1)
)
TestCarried = contract_of(DrafterContract, lambda: SuffixAutomaton(state="carry"))
TestWithCorpus = contract_of(DrafterContract, lambda: SuffixAutomaton(corpus_arrays(TEXTS), candidates=4))


def begun(drafter, tokens):
    context = Context(tokens)
    drafter.begin(context, None)
    return context


def ask(drafter, context, path=(), k=8):
    """Candidates with their probabilities."""
    tokens = np.array([context.root, *path], dtype=np.int64)
    rows = np.array([tokens.size - 1])
    answer = drafter.propose(
        context, Request(tokens, np.arange(tokens.size) - 1, np.zeros_like(tokens), rows, k)
    )
    pairs = zip(answer.tokens[0].tolist(), np.exp(answer.log_probs[0]).tolist(), strict=True)
    return {token: pytest.approx(share, abs=1e-5) for token, share in pairs if token != NO_CANDIDATE}


def test_the_longest_run_alone_is_asked_as_published():
    """ "1 2" was followed by 3, 4 and 3; 2 alone also by 9."""
    drafter = SuffixAutomaton(estimate="frequency")
    context = begun(drafter, [2, 9, 1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 3, 6, 1, 2])
    assert ask(drafter, context) == {3: 2 / 3, 4: 1 / 3}
    assert list(ask(drafter, context)) == [3, 4]


def test_shorter_runs_share_what_longer_ones_escape():
    """ "1 2": 3 of 2 and 1 occurrences and 2 escapes; of the 2 / 5 left, 2 was followed by 9 once beside them."""
    drafter = SuffixAutomaton()
    context = begun(drafter, [2, 9, 1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 3, 6, 1, 2])
    assert ask(drafter, context) == {3: 2 / 5, 4: 1 / 5, 9: 2 / 5 * 1 / 2}
    assert list(ask(drafter, context)) == [3, 4, 9]


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


def test_texts_before_are_known_where_they_are_carried():
    for state, known in (("carry", {6: 1 / 2}), ("cold", {})):
        drafter = SuffixAutomaton(state=state)
        begun(drafter, [4, 5, 6])
        assert ask(drafter, begun(drafter, [9, 5])) == known


def test_sequences_decoded_at_once_add_to_what_each_other_knows():
    drafter = SuffixAutomaton(state="carry", estimate="frequency")
    first, second = begun(drafter, [4, 5]), begun(drafter, [8, 5])
    assert ask(drafter, second) == {}
    first.append([6])
    drafter.observe(Outcome(first, root_tree(5), None, (), (6,)))
    assert ask(drafter, second) == {6: 1}
    assert drafter.for_new_sequence() is drafter


def test_a_corpus_is_asked_where_it_knows_a_longer_run():
    corpus = corpus_arrays([[1, 2, 3, 4], [2, 3, 5]])
    drafter = SuffixAutomaton(corpus, estimate="frequency")
    assert ask(drafter, begun(drafter, [3, 6, 1, 2, 3])) == {4: 1}
    assert ask(drafter, begun(drafter, [0, 1, 2, 3, 6, 0, 1, 2, 3])) == {6: 1}
    assert ask(drafter, begun(drafter, [2, 3])) == {4: 1 / 2, 5: 1 / 2}
    assert ask(drafter, begun(drafter, [7])) == {}


small_texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), min_size=1, max_size=3)


def occurrences(texts, run):
    """What follows a run in texts, counted by looking everywhere."""
    found = {}
    for text in texts:
        for start in range(len(text) - len(run)):
            if text[start : start + len(run)] == run:
                found[text[start + len(run)]] = found.get(text[start + len(run)], 0) + 1
    return found


@examples(60)
@given(small_texts, st.randoms(use_true_random=False))
def test_the_automaton_counts_what_a_search_counts(texts, random):
    """Also of texts that grow in turns."""
    index, places, grown = SuffixIndex(), [0] * len(texts), [0] * len(texts)
    while any(done < len(text) for done, text in zip(grown, texts, strict=True)):
        which = random.choice([one for one, text in enumerate(texts) if grown[one] < len(text)])
        places[which] = index.add(places[which], texts[which][grown[which]])
        grown[which] += 1
    for text, place in zip(texts, places, strict=True):
        known = index.known(place, len(text))
        for length, followers in known:
            assert dict(followers) == occurrences(texts, text[len(text) - length :])
        longest = max(
            (size for size in range(1, len(text) + 1) if occurrences(texts, text[-size:])), default=0
        )
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


def test_what_is_no_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the corpus is empty: at least one text of one token is needed"):
        SuffixAutomaton(corpus_arrays([]))
    with pytest.raises(ArtifactError, match="the corpus is empty"):
        save_artifact(tmp_path / "corpus", "suffix-corpus", {"corpus.safetensors": corpus_arrays([[]])})
    sound = corpus_arrays(TEXTS)
    with pytest.raises(ValueError, match="the corpus' suffixes are damaged"):
        SuffixAutomaton({**sound, "suffixes": np.zeros_like(sound["suffixes"])})
    with pytest.raises(ValueError, match="as many are expected, with -1 behind the last text"):
        SuffixAutomaton({**sound, "suffixes": sound["suffixes"][1:]})
    damaged = sound["tokens"].copy()
    damaged[len(TEXTS[0])] = -2
    with pytest.raises(
        ValueError, match="the corpus holds the token -2; ids of at least 0 are expected, and -1 beh"
    ):
        SuffixAutomaton({**sound, "tokens": damaged})
    with pytest.raises(ValueError, match="the corpus' tokens are int64"):
        SuffixAutomaton({**sound, "tokens": sound["tokens"].astype(np.int64)})
    with pytest.raises(ValueError, match="has the arrays \\['suffixes', 'tokens'\\]"):
        SuffixAutomaton({"tokens": sound["tokens"]})
    with pytest.raises(ValueError, match="holds the token 7 and the target's vocabulary has ids 0 to 5"):
        SuffixAutomaton(sound).check_vocabulary(6)


def test_saved_texts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="the saved texts are damaged: 2 tokens in texts of 3 together"):
        SuffixAutomaton(state="carry").load_state_dict({"tokens": np.array([1, 2]), "lengths": np.array([3])})
