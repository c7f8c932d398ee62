"""Every strategy keeps the promises of its family; :mod:`test_schedules` shows them for all policies and sizes."""

import pytest

from specexp.scheduling import Batched, LeastProgress, Scheduled, Serial, SerialSpeculative
from specexp.testing.executions import DraftingExecutionContract, ExecutionContract


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
