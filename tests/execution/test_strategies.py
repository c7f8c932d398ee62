"""Every strategy keeps the promises of its family; :mod:`test_schedules` shows them for all policies and sizes."""

import pytest

from specexp.execution import Batched, LeastProgress, Scheduled, Serial, SerialSpeculative
from specexp.testing.executions import ExecutionContract


class TestSerial(ExecutionContract):
    drafts = False
    concurrent = False

    @pytest.fixture
    def execution(self):
        return Serial()


class TestSerialSpeculative(ExecutionContract):
    concurrent = False

    @pytest.fixture
    def execution(self):
        return SerialSpeculative(threads=1)


class TestBatched(ExecutionContract):
    @pytest.fixture
    def execution(self):
        return Batched(3)


class TestScheduledOverAThread(ExecutionContract):
    @pytest.fixture
    def execution(self):
        return Scheduled(8, LeastProgress(), verify_batch=4, workers="thread", threads=1)


class TestScheduledOverAProcess(ExecutionContract):
    @pytest.fixture
    def execution(self):
        return Scheduled(3)
