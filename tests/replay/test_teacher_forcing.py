"""Drafters without a model, led along the output: where they learn from accepted tokens alone, runs go as foreseen."""

import numpy as np
import pytest
from helpers.fake_turns import recorded_turn, save_recording

from specexp.builders import Chain, DySpecGreedy, KConfig, StaticTree
from specexp.config.schema import Generation
from specexp.controllers import Fixed
from specexp.core.latency import LatencyProfile
from specexp.core.parts import Parts
from specexp.data import Prompt
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.replay.format.errors import RecordingError
from specexp.replay.play.replay_arm import ReplayArm
from specexp.replay.play.teacher_forcing import TeacherForcing
from specexp.replay.play.yardstick import yardstick
from specexp.sweep.yardstick import yardstick_of
from specexp.verifiers import KeyedSampling

TOKENS, K = 30, 3
PROMPT = (5, 6, 7)
PROFILE = LatencyProfile(
    "of a test", {1: 5.0, 16: 9.0}, overheads={"plain": {}, "TokenRecycling + StaticTree": {"step_ms": 0.5}}
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Outputs over six tokens; the target names the next one among its best three, and two that follow it elsewhere."""
    generator = np.random.default_rng(7)
    turns = []
    for number in range(4):
        answer = (10 + np.cumsum(generator.choice([1, 1, 1, 2, 3], TOKENS)) % 6).tolist()
        target = []
        for token in [*answer, 10]:
            others = [one for one in (10, 11, 12, 13) if one != token]
            best = [token, *others[:2]]
            target.append([best[place] for place in generator.permutation(K)])
        turns.append(
            recorded_turn([0] * TOKENS, prompt=PROMPT, prompt_id=f"p{number}", answer=answer, target=target)
        )
    return save_recording(turns, tmp_path_factory.mktemp("forced") / "recording", TOKENS)


def parts_of(builder, drafter=None):
    drafter = drafter or TokenRecycling(k=K, update="accepted", prefill_update=False)
    return Parts(drafter, builder, KeyedSampling(0.7), Fixed())


def forced(recording, parts, sizes=None):
    turns = [turn for turns in recording.turns.values() for turn in turns]
    found = TeacherForcing(recording, parts, turns, TOKENS)
    found.curve_sizes = sizes or found.curve_sizes
    return found


def forced_yardstick(recording, parts, *, max_nodes, max_depth, sizes=None):
    ranks, composition = forced(recording, parts, sizes), Parts(parts.drafter, StaticTree([[0]])).label
    return yardstick(ranks, PROFILE, max_nodes=max_nodes, max_depth=max_depth, composition=composition)


def steps_along(paths, tree, tokens=TOKENS):
    """Steps of a run whose roots have these rank paths."""
    nodes, steps, at = set(map(tuple, tree)), 0, 0
    while at < tokens:
        path, accepted = paths[at] or (), 0
        while accepted < len(path) and path[: accepted + 1] in nodes:
            accepted += 1
        at, steps = at + accepted + 1, steps + 1
    return steps


@pytest.mark.parametrize("drafter", [None, PromptLookup(min_ngram=1)], ids=["accepted", "lookup"])
@pytest.mark.parametrize("tree", [[[0]], [[0], [1], [0, 0], [1, 0], [0, 2]], KConfig([3, 3, 2]).rank_paths])
def test_a_run_takes_the_steps_that_the_paths_say(recording, tree, drafter):
    if drafter is not None:
        tree = [path for path in tree if max(path) < drafter.max_candidates]
    parts = parts_of(StaticTree(tree), drafter)
    paths = forced(recording, parts).paths(4)
    assert len(paths) == 4 * TOKENS
    arm = ReplayArm("recycling", recording, parts, Generation(max_new_tokens=TOKENS))
    arm.reset()
    for number in range(4):
        record = arm.decode(Prompt(f"p{number}", "fake", ("a question",), PROMPT, 0))
        assert record.steps == steps_along(paths[number * TOKENS :], tree)


def test_nothing_is_known_at_first_and_more_later(recording):
    paths = forced(recording, parts_of(Chain(2))).paths(3)
    first = paths[:TOKENS]
    assert first[0] == ()  # cold
    assert first.pop() is None  # for the last token nothing is drafted
    assert max(map(len, first)) == 3
    assert sum(map(len, first[TOKENS // 2 :])) > sum(map(len, first[: TOKENS // 2]))


def test_the_yardstick_replays_its_trees_with_the_real_drafter(recording):
    parts = parts_of(Chain(2))
    found = forced_yardstick(recording, parts, max_nodes=12, max_depth=3, sizes=(1, 2, 4, 8))
    assert [point.nodes for point in found.curve] == [1, 2, 4, 8]
    assert found.plain_goodput == pytest.approx(200)
    arm = ReplayArm(
        "best",
        recording,
        parts_of(StaticTree(found.best.rank_paths)),
        Generation(max_new_tokens=TOKENS),
        PROFILE,
    )
    arm.reset()
    records = [arm.decode(Prompt(f"p{number}", "fake", ("a question",), PROMPT, 0)) for number in range(4)]
    seconds = sum(record.decode_seconds for record in records)
    assert found.best.goodput == pytest.approx(4 * TOKENS / seconds)
    assert found.best.tokens_per_step == pytest.approx(4 * TOKENS / sum(record.steps for record in records))
    assert found.best.goodput > found.plain_goodput
    assert found.approximate == ""


def test_what_learns_from_drafted_tokens_too_is_called_approximate(recording):
    drafter = TokenRecycling(k=K, update="last", prefill_update=False)
    found = forced_yardstick(
        recording,
        parts_of(Chain(2), drafter),
        max_nodes=4,
        max_depth=2,
        sizes=(4,),
    )
    assert "TokenRecycling learns from nodes" in found.approximate
    assert any(sentence.startswith("The yardstick is approximate") for sentence in found.sentences("it", 1.0))


def test_a_study_of_trees_for_such_a_drafter_is_held_against_it(recording):
    turns = [turn for turns in recording.turns.values() for turn in turns]

    def held_against(parts, **started):
        return yardstick_of(parts, recording, turns, TOKENS, PROFILE, **started)

    parts = parts_of(Chain(2))
    direct = forced_yardstick(recording, parts, max_nodes=64, max_depth=12)
    assert held_against(parts).best == direct.best
    assert held_against(parts, warm_started=True) is None, "it starts from what it was taught"
    assert held_against(parts._replace(controller=Fixed(max_depth=1))) is None
    dynamic = DySpecGreedy(4, candidates="top-k")
    assert held_against(parts._replace(builder=dynamic)) is None


def test_a_draft_model_has_ranks_of_its_own(recording):
    with pytest.raises(RecordingError, match="DraftModel runs a draft model, whose ranks a table has"):
        forced(recording, parts_of(Chain(2), DraftModel()))
