"""The policies, by hand, and fairness of first come, first served, from time lines."""

from random import Random

import numpy as np
import pytest
from helpers.pauses import Pause
from helpers.toy_schedules import PARTS, PausingTarget, jobs_of, pausing

from specexp.core.tree import TokenTree, TreeShape
from specexp.scheduling import FirstCome, Job, LeastProgress, MostConfident, QueuePolicy, Scheduled, Waiting
from specexp.scheduling.timeline import TARGET

CHAIN = TreeShape.from_rank_paths([[0], [0, 0]])


def waiting(sequence, new_tokens, *probabilities):
    """A waiting chain of two whose nodes have these draft probabilities; none where the drafter gives none."""
    log_probs = np.log(np.array([1.0, *probabilities], dtype=np.float32)) if probabilities else None
    return Waiting(sequence, new_tokens, TokenTree(CHAIN, np.array([1, 2, 3]), log_probs))


CHANCES = {"a": (7, 0.9, 0.5), "b": (3, 0.9, 0.9), "c": (7, 0.6, 0.8), "d": (3, 0.9, 0.9)}
QUEUE = [waiting(sequence, *chances) for sequence, chances in CHANCES.items()]


@pytest.mark.parametrize(
    ("policy", "order"),
    [(FirstCome(), "abcd"), (LeastProgress(), "bdac"), (MostConfident(), "bdca")],
    ids=lambda value: type(value).__name__,
)
def test_each_policy_takes_sequences_in_its_order(policy, order):
    for most in range(1, 6):
        chosen = policy.choose(QUEUE, most)
        assert "".join(QUEUE[place].sequence for place in chosen) == order[:most]


class Chooses(QueuePolicy):
    def __init__(self, *places):
        self.places = list(places)

    def choose(self, waiting, most):
        return self.places


@pytest.mark.parametrize("places", [(), (0, 0), (5,), (-1,), (0, 1, 2)], ids=str)
def test_a_wrong_choice_ends_the_run(places):
    scheduled = Scheduled(2, Chooses(*places), verify_batch=2, workers="thread")
    with scheduled.open(PausingTarget(Pause(0)), PARTS["lookup"]()) as executor:
        with pytest.raises(ValueError, match=r"Chooses.choose must return 1 to 2 different indices below \d, got \["):
            executor.run([Job((1,), 0), Job((2,), 1)])
        assert executor.closed


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 2, "verify_batch": 3}, {"n": 2, "workers": 3}], ids=str)
def test_sizes_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=r"n must be >= 1|(verify_batch|workers) must be at most n=2"):
        Scheduled(**arguments)


def rounds_waited(timeline):
    """Of every draft, how many target passes began after it had come and served it or another."""
    passes = [span for span in timeline if span.who == TARGET and span.what == "target"]
    decided = [span for span in timeline if span.what in ("verify", "resample")]
    counts = []
    for draft in timeline:
        if draft.what == "draft":
            served = min(span.round for span in decided if span.sequence == draft.sequence and span.start > draft.end)
            counts.append(sum(span.start >= draft.end and span.round <= served for span in passes))
    return counts


def test_as_published_drafts_are_verified_one_by_one_in_the_order_in_which_they_came():
    """SEED, algorithm 2: drafts of unequal duration enter the queue as they end; the target takes its head."""
    for seed in range(4):
        scheduled = Scheduled(3, FirstCome(), verify_batch=1, workers="thread")
        drafter = pausing(PARTS["chain"](), Pause(1.0, seed=seed))
        with scheduled.open(PausingTarget(Pause(0.1, seed=seed)), drafter) as executor:
            line = executor.run(jobs_of(Random(seed), 3)).timeline
        came = sorted((span for span in line if span.what == "draft"), key=lambda span: span.end)
        decided = sorted((span for span in line if span.what in ("verify", "resample")), key=lambda span: span.start)
        rounds = {span.round: span.sequence for span in decided}
        assert [rounds[number] for number in sorted(rounds)] == [span.sequence for span in came]


@pytest.mark.parametrize(("n", "verify_batch"), [(1, 1), (2, 1), (3, 1), (4, 2), (6, 1), (6, 3)])
def test_no_sequence_waits_longer_than_n_rounds_under_first_come_first_served(n, verify_batch):
    generator = Random(n)
    for seed in range(4):
        pauses = [Pause(generator.choice((0.1, 1.0)), seed=seed) for _ in range(2)]
        scheduled = Scheduled(n, FirstCome(), verify_batch, workers="thread")
        with scheduled.open(PausingTarget(pauses[0]), pausing(PARTS["chain"](), pauses[1])) as executor:
            run = executor.run(jobs_of(generator, 8))
        waited = rounds_waited(run.timeline)
        assert len(waited) == sum(result.steps for result in run.results)
        assert 1 <= min(waited) <= max(waited) <= n
