"""A drafting worker that is a process: how it ends, and that nothing of it stays."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pytest
from helpers.clusters import is_alive
from helpers.pauses import Pause
from helpers.toy_schedules import PARTS, PausingTarget, Unlearning, fail_oddly, jobs_of, leave, pausing
from helpers.waiting import wait_for

from specexp.builders import Chain
from specexp.core.parts import Parts
from specexp.scheduling import Job, Scheduled
from specexp.testing.fakes import FakeDrafter

HERE = Path(__file__).parent
JOBS = [Job((1, 2), "short", max_new_tokens=2), *(Job((number,), number, 200) for number in range(4))]
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc"),
]


def running_in(session):
    """Processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if folder.name.isdigit() and fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(folder.name))
    return found


def open_slow(parts, n=3, **pauses):
    """A scheduled run of its own process with a target of 2 ms."""
    pause = Pause(2, 2)
    return Scheduled(n).open(PausingTarget(pause), pausing(parts, Pause(0.1, **pauses))), pause


def test_a_killed_worker_ends_the_run():
    executor, pause = open_slow(PARTS["lookup"]())
    pid = executor.workers[0]._process.pid

    def kill(outcome):
        if pause.calls == 12:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(RuntimeError, match=r"a drafting worker ended on its own \(exit code -9\)"):
        executor.run(JOBS, observers=[kill])
    assert [len(result.token_ids) for result in executor.finished.values()] == [2]
    assert executor.closed
    assert not is_alive(pid)


@pytest.mark.variants(1)
@pytest.mark.parametrize("where", ["drafter", "target"])
def test_a_failure_on_either_side_stops_the_worker(where):
    executor, pause = open_slow(PARTS["chain"](), fails_at=40 if where == "drafter" else None)
    pid = executor.workers[0]._process.pid
    assert is_alive(pid)
    if where == "target":
        pause.fails_at = 12
    with pytest.raises(RuntimeError, match=r"call \d+ was to fail") as raised:
        executor.run(JOBS)
    notes = "\n".join(getattr(raised.value, "__notes__", ()))
    assert ("raised while drafting for sequence" in notes) == (where == "drafter")
    assert ("in the drafting worker:\n" in notes) == (where == "drafter")
    assert "short" in executor.finished
    assert not is_alive(pid)


@pytest.mark.variants(1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("drafts", "workers", "message"),
    [
        (fail_oddly, "thread", "OddError: 3 after 2 tokens"),
        (fail_oddly, 1, "OddError: 3 after 2 tokens"),
        (leave, "thread", "a drafting worker ended on its own$"),
        (leave, 1, r"a drafting worker ended on its own \(exit code 7\)$"),
    ],
)
def test_an_error_that_cannot_be_pickled_and_a_worker_that_leaves_end_the_run(drafts, workers, message):
    with (
        Scheduled(2, workers=workers).open(PausingTarget(Pause(0)), Parts(FakeDrafter(drafts), Chain(1))) as executor,
        pytest.raises(RuntimeError, match=message),
    ):
        executor.run([Job((1, 2), "a")])


@pytest.mark.parametrize("workers", ["thread", 1])
def test_a_run_is_over_when_its_last_step_is_learned_from(workers):
    parts = Parts(Unlearning(), Chain(1))
    with (
        Scheduled(2, workers=workers).open(PausingTarget(Pause(0)), parts) as executor,
        pytest.raises(ValueError, match="cannot learn from three tokens"),
    ):
        executor.run([Job((1,), "a", max_new_tokens=3)])
    assert list(executor.finished) == ["a"]


def test_parts_that_cannot_be_handed_over_are_refused():
    parts = Parts(FakeDrafter(lambda tokens: [0]), Chain(1))
    target = PausingTarget(Pause(0))
    refused = r"the parts cannot be handed to a drafting process .* set workers to thread"
    with pytest.raises(ValueError, match=refused):
        Scheduled(2).open(target, parts)
    with Scheduled(2, workers="thread").open(target, parts) as executor:
        assert len(executor.run([Job((1,), 0, 4)]).results[0].token_ids) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["thread", 1])
def test_nothing_stays_open(workers):
    def use(fails_at):
        parts = pausing(PARTS["lookup"](), Pause(0, fails_at=fails_at))
        with (
            Scheduled(3, workers=workers).open(PausingTarget(Pause(0)), parts) as executor,
            nullcontext() if fails_at is None else pytest.raises(RuntimeError, match="was to fail"),
        ):
            executor.run(jobs_of(Random(1), 4))

    def open_now():
        gc.collect()
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    use(None)  # starts the server, once and for all
    before = open_now()
    for fails_at in (None, 1, 5, None):
        use(fails_at)
    assert open_now() == before


@pytest.mark.slow
def test_ctrl_c_ends_a_run_within_two_seconds_and_a_killed_program_leaves_nothing():
    program = subprocess.Popen(
        [sys.executable, HERE.parent / "helpers" / "long_run.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])},
    )
    assert program.stdout is not None
    try:
        first = program.stdout.readline().split()
        assert first[0] == "running", program.communicate()[1]
        sent = time.monotonic()
        os.killpg(program.pid, signal.SIGINT)  # what a terminal does
        line = next(line for line in program.stdout if not line.startswith("running"))
        took = time.monotonic() - sent
        assert line == "interrupted short:3\n"
        assert took < 2.0
        assert not is_alive(first[1])
        second = program.stdout.readline().split()
        assert is_alive(second[1])
        program.kill()
        program.wait()
        wait_for(lambda: not running_in(program.pid), 20)
    finally:
        program.kill()
        program.communicate()
