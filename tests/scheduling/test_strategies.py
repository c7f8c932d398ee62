"""Every strategy keeps the promises of its family; :mod:`test_schedules` shows them for all policies and sizes."""

from itertools import pairwise

import pytest
from helpers.toy_schedules import PARTS, PausingTarget, pausing

from specexp.scheduling import Batched, Job, LeastProgress, Scheduled, Serial, SerialSpeculative
from specexp.testing.executions import DraftingExecutionContract, ExecutionContract
from specexp.testing.fakes import Pause


class TestSerial(ExecutionContract):
    concurrent = False

    @pytest.fixture
    def execution(self):
        return Serial()


class TestSerialSpeculative(DraftingExecutionContract):
    concurrent = False

    @pytest.fixture
    def execution(self):
        return SerialSpeculative(threads=1)


class TestBatched(DraftingExecutionContract):
    @pytest.fixture
    def execution(self):
        return Batched(3)


class TestScheduledOverAThread(DraftingExecutionContract):
    @pytest.fixture
    def execution(self):
        return Scheduled(8, LeastProgress(), verify_batch=4, workers="thread", threads=1)


class TestScheduledOverAProcess(DraftingExecutionContract):
    @pytest.fixture
    def execution(self):
        return Scheduled(3)


class TestScheduledOverSeveralProcesses(DraftingExecutionContract):
    @pytest.fixture
    def execution(self):
        return Scheduled(3, verify_batch=2, workers=2)


def test_every_worker_drafts_for_its_share_of_the_sequences_at_the_same_time():
    """While the target sleeps both drafters of two processes work: their spans overlap, which one process' never do."""

    def at_once(workers):
        parts = pausing(PARTS["chain"](), Pause(15))
        with Scheduled(4, workers=workers).open(PausingTarget(Pause(1, 1)), parts) as executor:
            line = executor.run([Job((0, 1, 2), number, 8) for number in range(4)]).timeline
        spans = sorted((span.start, span.end) for span in line.spans if span.what == "draft")
        return sum(later[0] < earlier[1] for earlier, later in pairwise(spans))

    assert at_once(1) == 0
    assert at_once(2) > 0
