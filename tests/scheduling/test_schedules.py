"""Scheduling changes when, never what: every policy and size, and a thousand random schedules with random pauses."""

import sys
import threading
from random import Random

import pytest
from helpers.pauses import Pause
from helpers.toy_schedules import PARTS, POLICIES, VERIFIERS, PausingTarget, expected, first_token, jobs_of, pausing

from specexp.scheduling import Batched, Scheduled
from specexp.verify.toy import LIVE

SCHEDULES = 1000
FAMILIES = 40
NO_PAUSE = Pause(0.0)
pytestmark = pytest.mark.timeout(60)  # a deadlock fails


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    """So that more of the orders in which things can happen do happen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def run_like_plain_decoding(execution, parts, verifier, jobs, eos, draft_pause=NO_PAUSE, target_pause=NO_PAUSE):
    parts = pausing(parts, draft_pause)._replace(verifier=VERIFIERS[verifier]())
    with execution.open(PausingTarget(target_pause), parts) as executor:
        run = executor.run(jobs, eos_token_ids=[eos])
    for job, result in zip(jobs, run.results, strict=True):
        assert result.token_ids == expected(verifier, job, eos)
        assert result.finish_reason == ("eos" if result.token_ids[-1] == eos else "length")
    return run


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("n", "verify_batch"), [(1, 1), (2, 2), (3, 1), (3, 3), (8, 5)])
def test_every_policy_and_size_gives_the_tokens_of_plain_decoding(n, verify_batch, policy):
    execution = Scheduled(n, policy(), verify_batch, workers="thread")
    for parts in ("chain", "recycling"):
        run_like_plain_decoding(execution, PARTS[parts](), "keyed", jobs_of(Random(n), 6), eos=3)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_every_batch_gives_the_tokens_of_plain_decoding(n):
    for parts in PARTS.values():
        run_like_plain_decoding(Batched(n), parts(), "keyed", jobs_of(Random(n), 6), eos=3)


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=pytest.mark.slow if family >= 4 else []) for family in range(FAMILIES)]
)
def test_random_schedules_give_the_tokens_of_plain_decoding_and_none_hangs(family):
    generator = Random(family)
    before = threading.active_count()
    for number in range(family, SCHEDULES, FAMILIES):
        n = generator.randint(1, 5)
        execution = Scheduled(
            n, generator.choice(POLICIES)(), generator.randint(1, n), workers="thread", draft_threads=None
        )
        verifier = generator.choice(list(VERIFIERS))
        jobs = jobs_of(generator, generator.randint(1, 5))
        eos = first_token(verifier, generator.choice(jobs)) if generator.random() < 0.5 else LIVE
        pauses = [Pause(generator.choice((0.0, 0.1, 0.3)), seed=number + side) for side in range(2)]
        failing = generator.random()
        parts = PARTS[generator.choice(list(PARTS))]()
        if failing < 0.8:
            run_like_plain_decoding(execution, parts, verifier, jobs, eos, *pauses)
        else:
            pauses[failing < 0.9].fails_at = generator.randint(1, 12)
            fails_or_gives_the_same(execution, parts, verifier, jobs, eos, pauses)
    assert threading.active_count() == before


def fails_or_gives_the_same(execution, parts, verifier, jobs, eos, pauses):
    """A drafter or target that fails at some call ends the run, unless it is over before."""
    parts = pausing(parts, pauses[0])._replace(verifier=VERIFIERS[verifier]())
    failure = None
    with execution.open(PausingTarget(pauses[1]), parts) as executor:
        try:
            executor.run(jobs, eos_token_ids=[eos])
        except RuntimeError as error:
            failure = str(error)
    due = [pause.fails_at for pause in pauses if pause.fails_at is not None and pause.calls >= pause.fails_at]
    assert failure == (f"call {due[0]} was to fail" if due else None)
    assert failure or len(executor.finished) == len(jobs)
    for job in jobs:
        if job.sequence in executor.finished:
            assert executor.finished[job.sequence].token_ids == expected(verifier, job, eos)
