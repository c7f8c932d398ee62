"""Static trees read off a table of ranks take what stepping through the recording takes."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.fake_turns import LIMIT, conversation, recorded_draft, recorded_turn
from hypothesis import given, strategies as st

from specexp.builders import StaticTree
from specexp.controllers import Fixed
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.replay.format.trie import NotRecordedError
from specexp.replay.play.player import Player
from specexp.replay.play.ranks import MISSED, RankTable
from specexp.sweep.replay_bench import before_repetition
from specexp.verifiers import Greedy

PROFILE = LatencyProfile(
    "of a test",
    {1: 9.0, 4: 11.0, 16: 14.0},
    {1: 1.0, 2: 1.3, 8: 2.0},
    step_ms=0.7,
    node_ms=0.05,
    token_ms=0.11,
    prefix_tokens=8,
    target_prefix_ms=30.0,
    target_prefix_token_ms=2.0,
    draft_prefix_ms=10.0,
    draft_prefix_token_ms=3.0,
)
BUCKETS = replace(PROFILE, buckets=True)
PLAIN = LatencyProfile("without a prefix", {1: 9.0, 16: 14.0}, {1: 1.0, 8: 2.0}, step_ms=0.7)


def played(turns, paths, max_new_tokens, limit=LIMIT, profile=PROFILE):
    """Counts and seconds of each turn, step by step."""
    drafter, source = recorded_draft()
    player = Player(Parts(drafter, StaticTree(paths), Greedy(), Fixed()), source, limit, 0)
    spent = []

    def clock(outcome):
        target, draft, beside = profile.outcome_parts(outcome)
        spent.append(target + draft + beside)
        return {"draft": draft, "target": target, "update": beside}

    counts = player.play(turns, max_new_tokens, "s", clock)
    ends = np.cumsum([count.steps for count in counts])[:-1]
    return counts, [float(part.sum()) for part in np.split(np.array(spent), ends)]


def check_equal(turns, paths, max_new_tokens, limit=LIMIT, profile=PROFILE):
    """The table's counts and seconds are the player's."""
    conversations = [turns] if turns[0].turns > 1 else [[turn] for turn in turns]
    counts, seconds = [], []
    for one in conversations:
        found, spent = played(one, paths, max_new_tokens, limit, profile)
        counts += found
        seconds += spent
    table = RankTable(turns, max_new_tokens, limit)
    read = table.evaluate(TreeShape.from_rank_paths(paths), profile)
    assert read.steps.tolist() == [count.steps for count in counts]
    assert read.accepted.tolist() == [count.accepted_drafts for count in counts]
    assert read.tokens.tolist() == [count.accepted_drafts + count.bonus_tokens for count in counts]
    assert read.drafted.tolist() == [count.drafted_nodes for count in counts]
    assert read.draft_passes.tolist() == [count.draft_passes for count in counts]
    assert read.seconds == pytest.approx(seconds, rel=1e-9)


@st.composite
def trees(draw, width=4, most=9):
    paths = []
    for _ in range(draw(st.integers(1, most))):
        parent = draw(st.sampled_from([(), *paths]))
        path = (*parent, draw(st.integers(0, width - 1)))
        if path not in paths:
            paths.append(path)
    return [list(path) for path in paths]


RANKS = st.lists(st.sampled_from([MISSED, 0, 0, 0, 1, 2, 3]), min_size=1, max_size=16)


@given(trees(), st.lists(RANKS, min_size=1, max_size=3), st.sampled_from([PROFILE, PLAIN, BUCKETS]))
@examples(60)
def test_every_count_and_second_is_the_stepping_players(paths, ranks, profile):
    ended = [recorded_turn(one, ends_by="eos", prompt_id=str(number)) for number, one in enumerate(ranks)]
    check_equal(ended, paths, 24, profile=profile)
    check_equal([recorded_turn(ranks[0])], paths, len(ranks[0]), profile=profile)


@given(trees(), RANKS, RANKS)
@examples(30)
def test_a_later_turn_begins_after_the_whole_conversation(paths, first, second):
    size = min(len(first), len(second))
    check_equal(conversation(first[:size], second[:size]), paths, size)


def test_no_node_is_drafted_beyond_the_length_limit_or_the_context():
    chain = [[0], [0, 0], [0, 0, 0]]
    turn = recorded_turn([0] * 6)
    check_equal([turn], chain, 6)
    counts = RankTable([turn], 6, LIMIT).evaluate(TreeShape.from_rank_paths(chain), PROFILE)
    assert counts.drafted[0] == 3 + 1  # after the first four tokens two are wanted, one of them the target's
    cut = recorded_turn([0] * 6, ends_by="context")
    check_equal([cut], chain, 32, limit=3 + 6)


def test_the_last_tokens_candidates_need_not_be_recorded_where_nothing_is_drafted_for_it():
    bare = recorded_turn([0, 1, 0])
    draft = bare.trie.draft
    draft.counts[2] = 0
    bare.trie.draft = type(draft)(draft.counts, draft.tokens[:8], draft.values[:8])
    check_equal([bare], [[0], [1]], 3)
    with pytest.raises(NotRecordedError, match="after 2 new tokens were not recorded; record with a draft model"):
        RankTable([bare], 4, LIMIT)


def test_ranks_beyond_the_recorded_width_are_refused():
    table = RankTable([recorded_turn([0, 2, MISSED], width=3)], 3, LIMIT)
    assert table.ranks.tolist() == [0, 2, MISSED]
    with pytest.raises(NotRecordedError, match=r"has 4 candidates a node, but 3 were recorded: .*at least 4"):
        table.evaluate(TreeShape.from_rank_paths([[0], [3]]), PROFILE)


def test_the_tokens_of_a_repetition_do_not_count():
    turn = recorded_turn([0] * 36, answer=[*range(20, 32), *[7] * 24])
    cut = before_repetition(turn, 36)
    counts = RankTable([cut], 36, 64).evaluate(TreeShape.from_rank_paths([(0,)]), PROFILE)
    assert (counts.tokens.tolist(), counts.steps.tolist()) == ([12], [6])
    assert before_repetition(turn, 20) is turn  # too short for a repetition
