"""The drafter inside vLLM: it drafts as our loop does, finds sequences by their text and needs few packages."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from specexp.builders.regular_trees import Chain
from specexp.config.artifacts import save_artifact
from specexp.core.context import Context
from specexp.core.contracts import BuilderLimits
from specexp.core.loop import Drafting, draft_together
from specexp.core.parts import Parts
from specexp.deploy import vllm
from specexp.deploy.vllm import Proposer
from specexp.drafters.phrase_cache import PhraseCache
from specexp.drafters.prompt_lookup import PromptLookup
from specexp.drafters.suffix_automaton import SuffixAutomaton
from specexp.drafters.suffix_index import corpus_arrays
from specexp.drafters.token_recycling import TokenRecycling
from specexp.drafters.union import Union

VOCABULARY, LONGEST, LENGTH = 6, 200, 4
MATRIX = np.array([[(token + 1) % VOCABULARY, token] for token in range(VOCABULARY)], dtype=np.int32)
DRAFTERS = {
    "prompt lookup": lambda: PromptLookup(max_ngram=3),
    "suffixes": SuffixAutomaton,
    "suffixes of earlier texts": lambda: SuffixAutomaton(state="carry", reach=1.5),
    "suffixes by frequency": lambda: SuffixAutomaton(estimate="frequency", min_run=2),
    "suffixes of a corpus": lambda: SuffixAutomaton(corpus_arrays([[1, 2, 3, 4, 1, 2, 4]])),
    "phrases": lambda: PhraseCache(initialisation="prompt"),
    "a learned matrix": lambda: TokenRecycling(k=2, state="preloaded", matrix=MATRIX),
    "a union": lambda: Union([PromptLookup(min_ngram=2), TokenRecycling(k=2, state="preloaded", matrix=MATRIX)]),
}
LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 3}}
texts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)


@pytest.fixture
def made(tmp_path):
    """Makes a proposer of parts."""

    def make(drafter=LOOKUP, vocabulary=VOCABULARY, **parts):
        parts = {"drafter": drafter, "builder": {"class_path": "Chain"}, **parts}
        folder = save_artifact(tmp_path / "parts", "composition", {"parts.json": parts}).folder
        return Proposer(config(str(folder), vocabulary))

    return make


def config(revision, vocabulary=VOCABULARY):
    model = SimpleNamespace(get_vocab_size=lambda: vocabulary, max_model_len=LONGEST)
    return SimpleNamespace(
        speculative_config=SimpleNamespace(revision=revision, num_speculative_tokens=LENGTH), model_config=model
    )


def proposed(proposer, *rows):
    """The drafts for texts, given as the tokens before a step and those of the step."""
    ids, lengths = np.zeros((len(rows), LONGEST), dtype=np.int32), np.zeros(len(rows), dtype=np.int32)
    for row, (before, new) in enumerate(rows):
        lengths[row] = len(before) + len(new)
        ids[row, : lengths[row]] = [*before, *new]
    return proposer.propose([new for _, new in rows], lengths, ids)


@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=25, deadline=None)
@given(prompt=texts, steps=st.lists(texts, max_size=3))
def test_a_token_drafter_drafts_the_chain_that_a_builder_requests(name, prompt, steps) -> None:
    drafter, context = DRAFTERS[name](), Context(prompt)
    drafter.check_vocabulary(VOCABULARY)
    drafting = Drafting(Parts(drafter, Chain(LENGTH), None, BuilderLimits()), context)
    drafting.begin(None)
    for new in [[], *steps]:
        if new:
            context.append(new)
            drafter.observe(vllm.Outcome(context, vllm.TokenTree(Chain(1).shape.first_nodes(0), np.array([prompt[-1]])),
                torch.empty(0, 0), (), tuple(new[:1]), top=(np.full((1, 64), new[0]), np.zeros((1, 64)))))  # fmt: skip
        chain: list[int] = []
        while len(chain) < LENGTH and (token := drafter.next_token(context, tuple(chain))) >= 0:
            chain.append(token)
        assert draft_together([(drafting, LENGTH)])[0].tree.tokens[1:].tolist() == chain


@pytest.mark.parametrize("name", ["PromptLookup", "SuffixAutomaton"])
def test_a_sequence_is_found_by_its_text_and_not_by_its_row(name, made) -> None:
    proposer, alone = made({"class_path": name}), made({"class_path": name})
    first, second = [1, 2, 3, 1, 2], [4, 5, 4]
    for one in ((first, [3]), (second, [5])):
        proposed(alone, one)
    proposed(proposer, (first, [3]), (second, [5]))
    moved = [([*second, 5], [4, 5]), ([*first, 3], [1])]
    assert proposed(proposer, *moved) == [proposed(alone, one)[0] for one in moved]
    assert len(proposer._sequences) == 2


def test_equal_texts_are_separate_sequences(made) -> None:
    proposer = made()
    same = ([1, 2, 1], [2])
    assert proposed(proposer, same, same) == [[1, 2, 1, 2]] * 2
    apart = [([1, 2, 1, 2], [1]), ([1, 2, 1, 2], [3])]
    assert proposed(proposer, *apart) == [[2, 1, 2, 1], []]
    assert len(proposer._sequences) == 2


def test_a_row_without_new_tokens_gets_no_draft(made) -> None:
    assert proposed(made(), ([1, 2, 1, 2], []), ([1, 2, 1], [2])) == [[], [1, 2, 1, 2]]


def test_no_draft_is_longer_than_the_texts_may_become(made) -> None:
    proposer = made()
    assert len(proposed(proposer, ([1] * (LONGEST - 3), [1]))[0]) == 2
    assert proposed(proposer, ([1] * (LONGEST - 1), [1])) == [[]]


def test_a_controller_learns_how_many_tokens_were_accepted(made) -> None:
    heuristic = {"class_path": "Heuristic", "init_args": {"initial": 1, "state": "cold"}}
    proposer = made(controller=heuristic)
    text = [1, 2, 3] * 6
    assert proposed(proposer, (text, [1])) == [[2]]
    assert proposed(proposer, ([*text, 1], [2, 3])) == [[1, 2, 3]]
    assert proposed(proposer, ([*text, 1, 2, 3], [1, 5])) == [[]]
    assert next(iter(proposer._sequences.values()))[0].controller.length == 2


def test_a_carried_drafter_learns_across_requests(made, monkeypatch) -> None:
    proposer = made({"class_path": "TokenRecycling", "init_args": {"state": "carry", "k": 2}})
    proposed(proposer, ([0], [1]))
    proposed(proposer, ([0, 1], [5]))
    assert proposed(proposer, ([3], [1])) == [[5]]
    monkeypatch.setattr(vllm, "_MOST_TOKENS", 3)
    assert proposed(proposer, ([4], [1])) == [[]]


def test_sequences_that_ended_are_dropped(made) -> None:
    proposer = made(vocabulary=1000)
    for number in range(100):
        proposed(proposer, ([number], [number + 1]))
    assert len(proposer._sequences) <= 1 + vllm._IDLE


def test_parts_that_need_more_than_tokens_are_refused(made) -> None:
    with pytest.raises(ValueError, match="must draft from tokens alone, got DraftModel"):
        made({"class_path": "DraftModel"})
    with pytest.raises(ValueError, match="revision must be the path of an artifact"):
        Proposer(config(None))
    with pytest.raises(ValueError, match="k must be at most the target's vocabulary size 6, got 8"):
        made({"class_path": "TokenRecycling"})


def test_it_imports_only_what_an_engines_environment_has() -> None:
    missing = ["transformers", "lightning", "optuna", "wandb", "jsonargparse", "tokenizers", "datasets"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import specexp.deploy.vllm"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
