"""What passes between the target's side and a worker: shapes by number, distributions by shared memory."""

import pickle

import pytest
import torch
from helpers.small_models import small_model
from helpers.toy_schedules import DRAFT, PROMPT, TARGET
from hypothesis import given, strategies as st

from specexp.builders import Chain, Choice, DySpecGreedy, Graft, KConfig, SpecInfer
from specexp.controllers import QLearning
from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.drafters import DraftModel, PhraseCache, TokenRecycling
from specexp.scheduling import Batched, Job, Scheduled, SerialSpeculative
from specexp.scheduling.messages import Memory, Shapes, StartSequence
from specexp.scheduling.worker import WorkerLanes
from specexp.testing.fakes import hashed_model
from specexp.verifiers import KeyedSampling, RejectionSampling
from specexp.verify.toy import ToyModel, toy_models

KNOWN = [TreeShape.from_rank_paths([[0] * depth for depth in range(1, length)]) for length in range(1, 8)]
for static in KNOWN[:5]:
    static.recurs = True


@given(st.lists(st.integers(0, 1000), max_size=80))
def test_shapes_arrive_as_they_were_sent_and_those_that_recur_once(numbers):
    sender, receiver, seen = Shapes(), Shapes(), {}
    for number in numbers:
        shape = KNOWN[number % 10] if number % 10 < len(KNOWN) else TreeShape([-1, 0], [-1, number])
        sent = pickle.loads(pickle.dumps(sender.pack(shape)))
        got = receiver.unpack(*sent)
        assert (got.parents.tolist(), got.ranks.tolist()) == (shape.parents.tolist(), shape.ranks.tolist())
        if shape.recurs:
            assert (sent[1] is None) == (id(shape) in seen)
            assert seen.setdefault(id(shape), got) is got


@pytest.mark.parametrize(
    ("parts", "answers", "q_rows"),
    [
        (Parts(DraftModel(), Chain(3)), 0, 0),
        (Parts(DraftModel(), Chain(3, candidates="drawn")), 0, 4),
        (Parts(DraftModel(), Choice([Chain(2), SpecInfer([2, 1])])), 0, 5),
        (Parts(PhraseCache(DraftModel()), Graft(DySpecGreedy(4), 1, 1, 2)), 7, 7),
        (Parts(TokenRecycling(), Chain(3)), 4, 0),
        (Parts(DraftModel(), Chain(3), None, QLearning(draft_cost=0.1)), 0, 0),
        (Parts(DraftModel(), Chain(3), None, QLearning(draft_cost=0.1, reward="useful")), 4, 0),
        (Parts(None, None), 0, 0),
    ],
    ids=["chain", "drawn", "choice", "graft", "recycling", "controller", "useful", "plain"],
)
def test_logits_are_shared_only_for_parts_that_learn_from_them(parts, answers, q_rows):
    """The target's answers, of a large vocabulary megabytes a step, are copied only for parts that learn from them."""
    memory = Memory(parts, 11, torch.bfloat16)
    assert (tuple(memory.logits.shape), memory.logits.dtype) == ((answers, 11), torch.bfloat16)
    assert memory.q.shape[0] == q_rows


def lanes_of(parts, number):
    """A worker's side of some lanes, in this thread."""
    return WorkerLanes(parts, {slot: Memory(parts, DRAFT.vocab_size, torch.float32) for slot in range(number)})


@torch.inference_mode()
def test_sequences_that_wait_for_a_draft_are_drafted_for_in_one_pass_a_level():
    parts = Parts(DraftModel(DRAFT), Chain(2))
    begun = [StartSequence(slot, Context(PROMPT[: 3 + slot], sequence=slot), 6) for slot in range(3)]
    drafts = list(lanes_of(parts, 3).replies(begun))
    assert [one.lane for one in drafts] == [0, 1, 2]
    assert parts.drafter.models[0].passes == 2
    for message, together in zip(begun, drafts, strict=True):
        (alone,) = lanes_of(Parts(DraftModel(DRAFT), Chain(2)), 3).replies([message])
        assert together.draft.tree.tokens.tolist() == alone.draft.tree.tokens.tolist()
        assert together.draft.pass_tokens == alone.draft.pass_tokens
        assert together.drafting == drafts[0].drafting


EXECUTIONS = {
    "serial": SerialSpeculative(),
    "batched": Batched(2),
    "scheduled": Scheduled(2, workers="thread"),
}


class Clock(Controller):
    state = "carry"

    def __init__(self):
        self.seen = {}

    def plan(self, context):
        return Plan()

    def observe(self, outcome):
        for phase, seconds in outcome.seconds.items():
            key = outcome.context.sequence, phase
            self.seen[key] = self.seen.get(key, 0.0) + seconds


@pytest.mark.parametrize("execution", EXECUTIONS.values(), ids=EXECUTIONS)
def test_a_controller_observes_the_seconds_of_every_step(execution):
    """They add up to the sequence's, but for learning, which is not over by then."""
    clock = Clock()
    with execution.open(ToyModel(TARGET.table), Parts(DraftModel(DRAFT), Chain(3), None, clock)) as executor:
        results = executor.run([Job(PROMPT, number, 30) for number in range(3)]).results
    for number, result in enumerate(results):
        for phase in ("draft", "build", "target", "verify", "commit"):
            assert clock.seen[number, phase] == pytest.approx(result.seconds[phase])
            assert result.seconds[phase] > 0
        assert clock.seen[number, "update"] == 0
        assert result.seconds["update"] > 0


@pytest.mark.parametrize("execution", EXECUTIONS.values(), ids=EXECUTIONS)
def test_observers_may_keep_what_they_saw(execution):
    """Also the draft distributions, which a worker writes over."""
    kept = []

    def keep(outcome):
        q = {row: distribution.copy() for row, distribution in (outcome.tree.q or {}).items()}
        kept.append((outcome, q, outcome.logits.clone()))

    parts = Parts(DraftModel(DRAFT), KConfig([2, 2], candidates="drawn"), RejectionSampling(1.0))
    with execution.open(ToyModel(TARGET.table), parts) as executor:
        executor.run([Job(PROMPT, number, 12) for number in range(3)], observers=[keep])
    assert any(q for _, q, _ in kept)
    for outcome, q, logits in kept:
        assert all((outcome.tree.q[row] == distribution).all() for row, distribution in q.items())
        assert torch.equal(outcome.logits, logits)


def test_a_used_drafter_can_be_opened():
    """Its copies begin anew, whatever it holds of an unfinished step."""
    drafter, jobs = DraftModel(hashed_model(6)), [Job(PROMPT, number, 9) for number in range(3)]
    with SerialSpeculative().open(ToyModel(TARGET.table), Parts(drafter, Chain(2))) as executor:
        first = executor.run(jobs[:1]).results[0]
    drafter.begin(context := Context(PROMPT), None)
    drafter.propose(context, next(Chain(2).build(context.root, Plan())))
    with Batched(3).open(ToyModel(TARGET.table), Parts(drafter, Chain(2))) as executor:
        assert [result.token_ids for result in executor.run(jobs).results] == [first.token_ids] * 3


def plain(model, jobs, verifier):
    decoder = Decoder(model, verifier=verifier)
    return [
        decoder.generate(one.prompt, max_new_tokens=one.max_new_tokens, sequence=one.sequence, seed=0).token_ids
        for one in jobs
    ]


@pytest.mark.parametrize("model", [hashed_model(12), small_model("Llama")], ids=["fake", "Llama"])
def test_the_target_may_be_its_own_draft(model):
    """Both sides then run the same weights at the same time, each with its cache."""
    jobs = [Job((1, 2), number, 9) for number in range(3)]
    parts = Parts(DraftModel(model), Chain(3), KeyedSampling(0.8))
    expected = plain(model, jobs, parts.verifier)
    for execution in (*EXECUTIONS.values(), Scheduled(2)):
        with execution.open(LanguageModel(model), parts) as executor:
            results = executor.run(jobs).results
        assert [result.token_ids for result in results] == expected
        assert all(result.accepted_drafts > 0 for result in results)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", ["thread", 1])
def test_messages_larger_than_a_pipe_block_neither_side(workers):
    """The target sends its logits of a prompt, megabytes, while the worker sends a draft."""
    target = toy_models(vocabulary=2000)[0]
    prompts = [tuple(place * step % 5 for place in range(150)) for step in range(1, 7)]
    jobs = [Job(prompt, number, 6) for number, prompt in enumerate(prompts)]
    parts = Parts(TokenRecycling(k=8), KConfig([2, 2]), KeyedSampling(1.0))
    with Scheduled(4, verify_batch=2, workers=workers).open(ToyModel(target.table), parts) as executor:
        found = [result.token_ids for result in executor.run(jobs).results]
    assert found == plain(target, jobs, parts.verifier)
