"""Which tokens count as drafted before: every figure here is computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.made_records import strategy

from experiments.papers.post_use_pre_cut.reuse_potential import ReusePotential
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.verifiers import Greedy

pytestmark = pytest.mark.unit


class Prompt:
    """A continuation of given steps: the drafted chain, and how much of it is accepted."""

    def __init__(self, analysis, *prompt):
        self.analysis = analysis
        self.context = Context(prompt)

    def step(self, drafted, accepted, bonus, grafted=0):
        shape = TreeShape(list(range(-1, len(drafted))), [-1, *range(len(drafted))])
        tree = TokenTree(shape, np.array([self.context.root, *drafted]))
        if grafted:
            tree = replace(tree, grafted=np.arange(len(drafted) + 1) > len(drafted) - grafted)
        new = (*drafted[:accepted], bonus)
        self.context.append(new)
        rows = tuple(range(1, accepted + 1))
        self.analysis.observe("a", Outcome(self.context, tree, torch.zeros(len(drafted) + 1, 2), rows, new))
        return self


def watching():
    analysis = ReusePotential()
    analysis.longest, analysis.over_steps = 4, 2
    analysis.begin({"a": strategy(Greedy())})
    return analysis


def shares(analysis, *titles):
    """The values of these columns by phrase length; by default shares of the drafted tokens and of the output."""
    titles = titles or ("after draft passes", "after target passes")
    rows = analysis.report([]).tables["reuse_potential"].records()
    return {row["phrase length from"]: tuple(row[title] for title in titles) for row in rows}


ONLY_REJECTED = ("only rejected before", "put out, only rejected before")


def test_a_rejected_draft_that_comes_later_is_found():
    """First step: 5 6 7 8 rejected, 1 put out. Second: 5 6 7 9 drafted, 5 6 7 accepted, then 3."""
    analysis = watching()
    Prompt(analysis, 0).step([5, 6, 7, 8], 0, 1).step([5, 6, 7, 9], 3, 3)
    assert shares(analysis) == {2: (3 / 8, 3 / 5), 3: (3 / 8, 3 / 5), 4: (0, 0)}
    assert shares(analysis, *ONLY_REJECTED)[3] == (3 / 8, 3 / 5)


def test_phrases_of_the_text_are_counted_separately():
    """8 9 is in the prompt, and was drafted; drafted again it could have been looked up there."""
    analysis = watching()
    Prompt(analysis, 8, 9, 0).step([8, 9], 0, 1).step([8, 9], 0, 2)
    assert (shares(analysis)[2], shares(analysis, *ONLY_REJECTED)[2]) == ((2 / 4, 0), (0, 0))


def test_neither_other_prompts_nor_the_step_itself_nor_grafts_count():
    analysis = watching()
    for _ in range(2):
        Prompt(analysis, 0).step([5, 6], 0, 1)
    assert shares(analysis)[2] == (0, 0)
    analysis = watching()
    Prompt(analysis, 0).step([5, 6, 5, 6], 4, 7)
    assert shares(analysis)[2] == (0, 0)
    analysis = watching()
    Prompt(analysis, 0).step([5, 6], 0, 1).step([5, 6], 0, 2, grafted=1)
    assert shares(analysis)[2] == (0, 0)
    assert shares(analysis, "drafted tokens")[2] == (3,)


def test_intervals_are_over_prompts():
    """Of two prompts one repeats its draft of two tokens: each resample has its share in 0 to a half."""
    analysis = watching()
    Prompt(analysis, 0).step([5, 6], 0, 1)
    assert shares(analysis, "after draft passes", "after draft passes low", "after draft passes high")[2] == (0, 0, 0)
    Prompt(analysis, 0).step([5, 6], 0, 1).step([5, 6], 0, 2)
    value, low, high = shares(analysis, "after draft passes", "after draft passes low", "after draft passes high")[2]
    assert (value, low, high) == (2 / 6, 0, 1 / 2)
