"""A program with runs of minutes; :mod:`test_processes` interrupts the first and kills it in the second."""

import signal

from helpers.pauses import Pause
from helpers.toy_schedules import PARTS, PausingTarget, pausing
from specexp.scheduling import Job, Scheduled

JOBS = [Job((1, 2), "short", max_new_tokens=3), *(Job((number,), number, 1500) for number in range(5))]

# tests that run in the background ignore it
signal.signal(signal.SIGINT, signal.default_int_handler)


def run():
    """Decode slowly; print the finished outputs when interrupted."""
    with Scheduled(3).open(PausingTarget(Pause(60, 50)), pausing(PARTS["lookup"](), Pause(3))) as executor:
        pid = executor.workers[0]._process.pid

        def announce(outcome):
            if "short" in executor.finished and outcome.context.sequence != "short":
                print("running", pid, flush=True)

        try:
            executor.run(JOBS, observers=[announce])
        except KeyboardInterrupt:
            ended = executor.finished
    print("interrupted", *(f"{name}:{len(result.token_ids)}" for name, result in ended.items()), flush=True)


# no __main__ guard: starting workers does not run this script again, since it defines no part
run()
run()
