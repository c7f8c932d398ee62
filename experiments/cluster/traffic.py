"""python experiments/cluster/traffic.py URL [--workers 256 --processes 16 --trial-seconds 20 --seconds 300]

The traffic of many workers on one study, against a real PostgreSQL: every worker asks, suggests, reports each prompt,
asks the pruner, tells, and beats its heart, at the pace of trials of so many seconds, but measures nothing. Prints the
share of a trial that database and sampler take, and the sampler's processor time per ask at growing numbers of trials.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.sweep.candidates import Candidate, CandidatePool, Measurement
from specexp.sweep.database import Database
from specexp.sweep.distinct import DistinctSampler
from specexp.sweep.space import Space
from specexp.sweep.storage import GRACE_SECONDS, HEARTBEAT_SECONDS

Shares = list[tuple[float, float]]
"""Of every trial that ended, what database and sampler took of it: by the clock, and of the processor."""

PROMPTS = 24
NAME = "traffic"
SIZES = (100, 1_000, 10_000)


def suggest(trial: optuna.Trial) -> float:
    """A space such as a study of trees has: a choice, whole numbers, a number."""
    builder = trial.suggest_categorical("builder", ["sequoia", "kconfig", "chain", "dyspec"])
    nodes = trial.suggest_int("nodes", 2, 64, log=True)
    temperature = trial.suggest_float("temperature", 0.2, 1.5)
    return -abs(nodes - 20) / 40 - abs(temperature - 0.8) + 0.05 * (builder == "sequoia")


class Meter:
    """Seconds in calls of the database and the sampler: by the clock, and of this machine's processor alone."""

    def __init__(self) -> None:
        self.seconds, self.computed = 0.0, 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what is done inside."""
        begun, computing = time.perf_counter(), time.thread_time()
        yield
        self.seconds += time.perf_counter() - begun
        self.computed += time.thread_time() - computing


def sampler(seed: int) -> optuna.samplers.TPESampler:
    """A worker's."""
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=2 * 256)


def work(study: optuna.Study, storage: Database, length: float, until: float, shares: Shares) -> None:
    """One worker: trials of a length, each with its reports and heartbeats."""
    chance = random.Random(threading.get_ident())
    time.sleep(chance.uniform(0, length))
    while time.monotonic() < until:
        meter = Meter()
        with meter.on():
            optuna.storages.fail_stale_trials(study)
            trial = study.ask()
            value = suggest(trial)
            storage.record_heartbeat(trial._trial_id)
            for key in ("worker", "digest", "attributes"):
                trial.set_user_attr(key, f"{trial.number}")
        beat = time.monotonic()
        for prompt in range(PROMPTS):
            time.sleep(length / PROMPTS)
            with meter.on():
                trial.report(value + chance.gauss(0, 0.1), prompt)
                stop = trial.should_prune()
                if time.monotonic() - beat > HEARTBEAT_SECONDS:
                    beat = time.monotonic()
                    storage.record_heartbeat(trial._trial_id)
            if stop and prompt > PROMPTS // 2:
                break
        with meter.on():
            trial.set_user_attr("metrics", {"tokens_per_step": 2.0})
            study.tell(trial, value)
        shares.append((meter.seconds / length, meter.computed / length))


def workers(
    url: str, count: int, length: float, seconds: float, answer: multiprocessing.Queue[Shares]
) -> None:
    """Some of the workers, as threads of this process, each with connections of its own."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    until, shares = time.monotonic() + seconds, Shares()
    threads = []
    for number in range(count):
        storage = Database(url, heartbeat_interval=HEARTBEAT_SECONDS, grace_period=GRACE_SECONDS)
        study = optuna.load_study(
            study_name=NAME, storage=storage, sampler=sampler(number), pruner=optuna.pruners.WilcoxonPruner()
        )
        threads.append(threading.Thread(target=work, args=(study, storage, length, until, shares)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    answer.put(shares)


def replay(url: str, count: int, processes: int, length: float, seconds: float) -> Shares:
    """Run the workers on a new study, and tell what their trials took."""
    storage = Database(url)
    names = [one.study_name for one in optuna.get_all_study_summaries(storage)]
    if NAME in names:
        optuna.delete_study(study_name=NAME, storage=storage)
    optuna.create_study(study_name=NAME, storage=storage, direction="maximize")
    spawn = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[Shares] = spawn.Queue()
    running = [
        spawn.Process(target=workers, args=(url, count // processes, length, seconds, answer))
        for _ in range(processes)
    ]
    for process in running:
        process.start()
    shares = [share for _ in running for share in answer.get()]
    for process in running:
        process.join()
    return shares


SPACE = {
    "builder": {
        "type": "categorical",
        "choices": [{"name": name, "class_path": name} for name in ("sequoia", "kconfig", "chain", "dyspec")],
    },
    "builder.init_args.nodes": {"type": "int", "low": 2, "high": 64, "log": True},
    "builder.init_args.decay": {"type": "float", "low": 0.2, "high": 1.5},
}
"""The same space as :func:`suggest`'s, as an experiment's file has it."""


class Unmeasured:
    """A bench that composes at once, so that an ask costs what the sampler does."""

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        """Every key exists."""
        return True

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        """A candidate that is like no other."""
        return Candidate(json.dumps(overrides, sort_keys=True), {})

    def measure(self, candidate: Candidate, report: Callable[[int, float], bool], trial: int) -> Measurement:
        """Nothing."""
        return Measurement({})


def per_ask(trials: int, asks: int = 10) -> tuple[float, float]:
    """Processor seconds of an ask with all its suggestions, where so many trials have finished: TPE's, and ours."""
    settings = Checker(lambda key: "traffic").read(Sweep, {"n_trials": trials, "space": SPACE}, ("sweep",))
    space, bench = Space(settings), Unmeasured()
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    chance = random.Random(0)
    template = study.ask()
    space.suggest(template, bench.applies)
    finished = []
    for number in range(trials):
        params = {
            "builder": chance.choice(["sequoia", "kconfig", "chain", "dyspec"]),
            "builder.init_args.nodes": chance.randint(2, 64),
            "builder.init_args.decay": chance.uniform(0.2, 1.5),
        }
        finished.append(
            optuna.create_trial(
                value=chance.random(),
                distributions=template.distributions,
                params=params,
                user_attrs={"digest": f"measured {number}"},
            )
        )
    taken = []
    for ours in (False, True):
        inner = sampler(0)
        study = optuna.create_study(direction="maximize", sampler=inner)
        study.add_trials(finished)
        if ours:
            study.sampler = DistinctSampler(inner, space, bench.applies, CandidatePool(study, bench), 0)
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
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    shares = replay(given.url, given.workers, given.processes, given.trial_seconds, given.seconds)
    rate = given.workers / given.trial_seconds
    print(f"{given.workers} workers, {rate:.1f} trials/s, {len(shares)} trials ended")
    for name, of in zip(("by the clock", "of the processor"), zip(*shares, strict=True), strict=True):
        print(
            f"database and sampler took, {name}, {statistics.median(of):.2%} of a trial (median), "
            f"{statistics.fmean(of):.2%} (mean), {max(of):.2%} (most)"
        )
    for size in SIZES:
        tpe, ours = per_ask(size)
        print(
            f"{size} trials: {1000 * tpe:.0f} ms of a processor per ask of TPE, {1000 * ours:.0f} ms of ours around it"
        )


if __name__ == "__main__":
    main()
