"""python experiments/cluster/traffic.py URL [--workers 256 --processes 16 --trial-seconds 20 --seconds 300]

The traffic of many workers on one study, against a real PostgreSQL: each opens the study, signs in and searches as
`python -m specexp.sweep` does, with sampler, pruner, heartbeat and locks, but sleeps where it would decode. Prints the
share of a trial that database and sampler take, and the sampler's processor time per ask at growing numbers of trials.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.sweep import study as of_study, worker as of_worker
from specexp.sweep.candidates import Candidate, CandidatePool, Measurement
from specexp.sweep.database import Database
from specexp.sweep.distinct import DistinctSampler
from specexp.sweep.space import Space
from specexp.sweep.study import open_study, run_study
from specexp.sweep.trials import FINISHED
from specexp.sweep.worker import MAX_RETRIES, resume

PROMPTS = 24
MANY = 1_000_000
"""Trials: the time ends the search."""

NAME = "traffic"
SIZES = (100, 1_000, 10_000)
SPACE = {
    "builder": {
        "type": "categorical",
        "choices": [{"name": name, "class_path": name} for name in ("sequoia", "kconfig", "chain", "dyspec")],
    },
    "builder.init_args.nodes": {"type": "int", "low": 2, "high": 64, "log": True},
    "builder.init_args.decay": {"type": "float", "low": 0.2, "high": 1.5},
}
"""A space such as a study of trees has."""


def settings(trials: int, storage: str | None = None) -> Sweep:
    """A study's section."""
    section = {"n_trials": trials, "storage": storage, "space": SPACE}
    return Checker(lambda key: "traffic").read(Sweep, section, ("sweep",))


class Asleep:
    """A bench that composes at once and sleeps where another decodes.

    Args:
        seconds: Of a trial.

    Attributes:
        slept: Seconds asleep since it was asked last.
    """

    def __init__(self, seconds: float) -> None:
        self._pause = seconds / PROMPTS
        self.slept = 0.0

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Every key exists."""
        return True

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """A candidate that is like no other, and as large as one is."""
        return Candidate(
            json.dumps(overrides, sort_keys=True), {"resolved": overrides, "nodes": 20, "of": "x" * 1000}
        )

    def measure(self, candidate: Candidate, report: Callable[[int, float], bool], trial: int) -> Measurement:
        """Sleep from prompt to prompt; few of the candidates are much worse than the best."""
        chosen = candidate.attributes["resolved"]
        value = (
            0.4
            - abs(chosen["builder.init_args.nodes"] - 20) / 400
            - abs(chosen["builder.init_args.decay"] - 0.8) / 10
        )
        values = {}
        for prompt in range(PROMPTS):
            begun = time.monotonic()
            time.sleep(self._pause)
            self.slept += time.monotonic() - begun
            values[prompt] = value + random.gauss(0, 0.1)
            if report(prompt, values[prompt]):
                break
        return Measurement(values, {"tokens_per_step": 2.0})


class Meter:
    """What database and sampler took of every trial of a worker: by the clock, and of the processor.

    Args:
        bench: The worker's.
        seconds: Of a trial.
    """

    def __init__(self, bench: Asleep, seconds: float) -> None:
        self.shares: list[tuple[float, float]] = []
        self._bench, self._seconds = bench, seconds
        self._since = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), time.thread_time(), self._bench.slept

    def end(self) -> None:
        """A trial ended."""
        begun, self._since = self._since, self._now()
        clock, computed, slept = (after - before for after, before in zip(self._since, begun, strict=True))
        self.shares.append(((clock - slept) / self._seconds, computed / self._seconds))


Shares = list[tuple[float, float]]


class _OverError(Exception):
    """The time is up."""


named = threading.local()
"""The machine's name of each thread: a worker is one."""


def joined(url: str, name: str) -> optuna.Study:
    """The study, as a worker has it that signed in."""
    named.name = name
    chosen = settings(MANY, url)
    study = open_study(NAME, chosen, Path(tempfile.gettempdir()), "workload")
    resume(study, chosen, alone=False)
    return study


def work(study: optuna.Study, url: str, name: str, length: float, until: float, shares: Shares) -> None:
    """One worker, until the time is up."""
    named.name = name
    time.sleep(random.uniform(0, length))  # trials of several workers do not end together
    bench = Asleep(length)
    meter = Meter(bench, length)

    def after(seen: optuna.Study, trial: FrozenTrial) -> None:
        meter.end()
        if time.monotonic() > until:
            raise _OverError

    with suppress(_OverError):
        run_study(study, settings(MANY, url), bench, after)
    shares += meter.shares


def workers(url: str, numbers: range, length: float, seconds: float, all_joined: Any, answer: Any) -> None:
    """Some of the workers, as threads of this process, each with connections of its own, and a machine's name."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    of_study.worker = of_worker.worker = lambda: f"{named.name}:1"
    names = [f"machine{number}" for number in numbers]
    studies = [joined(url, name) for name in names]
    all_joined.wait()
    until, shares, begun = time.monotonic() + seconds, Shares(), time.process_time()
    threads = [
        threading.Thread(target=work, args=(study, url, name, length, until, shares))
        for study, name in zip(studies, names, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.put((shares, time.process_time() - begun))


def replay(url: str, count: int, processes: int, length: float, seconds: float, filled: int) -> Shares:
    """Run the workers on a new study, say what it holds then, and give what their trials took."""
    storage = Database(url)
    if NAME in [one.study_name for one in optuna.get_all_study_summaries(storage)]:
        optuna.delete_study(study_name=NAME, storage=storage)
    study = open_study(NAME, settings(1, url), Path(tempfile.gettempdir()), "workload")
    study.add_trials(finished_trials(filled))
    spawn = multiprocessing.get_context("spawn")
    answer, all_joined = spawn.Queue(), spawn.Barrier(processes)
    running = [
        spawn.Process(
            target=workers, args=(url, range(place, count, processes), length, seconds, all_joined, answer)
        )
        for place in range(processes)
    ]
    for process in running:
        process.start()
    answers = [answer.get() for _ in running]
    for process in running:
        process.join()
    check(study, filled)
    print(f"processors of the workers: {sum(seconds for _, seconds in answers):.0f} s")
    return [share for shares, _ in answers for share in shares]


def check(study: optuna.Study, filled: int) -> None:
    """Say of what was measured how often it was."""
    trials = study.get_trials(deepcopy=False)[filled:]
    states = Counter(trial.state.name.lower() for trial in trials)
    own = [
        one.user_attrs["digest"]
        for one in trials
        if one.state in FINISHED and "duplicate_of" not in one.user_attrs
    ]
    retried = max(len(trial.system_attrs.get("retry_history", [])) for trial in trials)
    print(f"{len(trials)} trials: {dict(states)}; {len(own) - len(set(own))} configurations measured twice")
    assert retried <= MAX_RETRIES


def finished_trials(count: int) -> list[FrozenTrial]:
    """Made-up ones, each of another configuration."""
    space, bench, chance = Space(settings(1)), Asleep(0), random.Random(0)
    template = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    space.suggest(template, bench.applies)
    return [
        optuna.create_trial(
            state=TrialState.COMPLETE,
            value=chance.random() / 4,
            distributions=template.distributions,
            params={
                "builder": chance.choice(template.distributions["builder"].choices),
                "builder.init_args.nodes": chance.randint(2, 64),
                "builder.init_args.decay": chance.uniform(0.2, 1.5),
            },
            user_attrs={"digest": f"measured {number}"},
            intermediate_values=dict.fromkeys(range(PROMPTS), chance.random() / 4),
        )
        for number in range(count)
    ]


def per_ask(trials: int, asks: int = 10) -> tuple[float, float]:
    """Processor seconds of an ask with all its suggestions, where so many trials have finished: TPE's, and ours."""
    space, bench = Space(settings(trials)), Asleep(0)
    finished = finished_trials(trials)
    taken = []
    for ours in (False, True):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
        study.add_trials(finished)
        if ours:
            study.sampler = DistinctSampler(
                study.sampler, space, bench.applies, CandidatePool(study, bench), 0
            )
        space.suggest(study.ask(), bench.applies)  # what is sorted once
        begun = time.process_time()
        for _ in range(asks):
            space.suggest(study.ask(), bench.applies)
        taken.append((time.process_time() - begun) / asks)
    return taken[0], taken[1]


def main() -> None:
    """Replay, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--trial-seconds", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--filled", type=int, default=0, help="finished trials before the workers begin")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for size in SIZES:
        tpe, ours = per_ask(size)
        print(
            f"{size} trials: {1000 * tpe:.1f} ms of a processor per ask of TPE, {1000 * ours:.1f} ms of ours around it"
        )
    shares = replay(
        given.url, given.workers, given.processes, given.trial_seconds, given.seconds, given.filled
    )
    rate = given.workers / given.trial_seconds
    print(f"{given.workers} workers, {rate:.1f} trials/s, {len(shares)} trials ended")
    for name, of in zip(("by the clock", "of the processor"), zip(*shares, strict=True), strict=True):
        print(
            f"database and sampler took, {name}, {statistics.median(of):.2%} of a trial (median), "
            f"{statistics.fmean(of):.2%} (mean), {sorted(of)[int(0.99 * len(of))]:.2%} (99 of 100)"
        )


if __name__ == "__main__":
    main()
