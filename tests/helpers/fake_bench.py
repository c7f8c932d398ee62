"""A bench without a model: the speedup of a configuration is arithmetic, so a search is fast and exact."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.report.publish import sole_writer
from specexp.sweep.sampler import build_sampler
from specexp.sweep.search import StudySearch, open_study
from specexp.sweep.storage import open_storage
from specexp.sweep.trial_queue import put_back, queue_known
from specexp.sweep.trials import Candidate, Measurement, ShouldStop
from specexp.sweep.workers import SharedSearch, Workers

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy

    from specexp.sweep.bench import Bench
else:
    Bench = object  # the real one imports torch, and workers that tests kill start often

PROMPTS = 12

SECTION = {
    "n_trials": 12,
    "sampler": {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": 3}},
    "space": {
        "builder": {
            "type": "categorical",
            "choices": [{"name": "bush", "class_path": "Bush"}, {"name": "chain", "class_path": "Chain"}],
        },
        "builder.init_args.nodes": {"type": "int", "low": 1, "high": 64},
        "builder.init_args.decay": {"type": "float", "low": 0.1, "high": 1.0},
    },
    "enqueue": [
        {"name": "short chain", "builder": {"class_path": "Chain", "init_args": {"nodes": 2}}},
        {"name": "outsider", "builder": {"class_path": "Elsewhere"}},
    ],
}
ARGUMENTS = {"Bush": {"nodes", "decay"}, "Chain": {"nodes"}, "Elsewhere": set()}


def noise(candidate: Candidate, prompt: int) -> float:
    """Return at most a ten-thousandth, so that no two differences are equal.

    With ties the pruner would try ten thousand permutations after every prompt.
    """
    return 1e-4 * crc32(f"{candidate.digest} {prompt}".encode()) / 2**32


class FakeBench(Bench):
    """Configurations of the made-up classes of ``ARGUMENTS``; the best has 20 nodes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.measured: list[str] = []

    def applies(self, key: str, overrides: Mapping[str, Any]) -> bool:
        section, _, argument = key.partition(".init_args.")
        return not argument or argument in ARGUMENTS[overrides[section]["class_path"]]

    def prepare(self, overrides: Mapping[str, Any]) -> Candidate:
        name, chosen = overrides["builder"]["class_path"], {**overrides["builder"].get("init_args", {})}
        chosen |= {key.rpartition(".")[2]: value for key, value in overrides.items() if "." in key}
        nodes = chosen.get("nodes", 20)
        if nodes == 13:
            raise ValueError("thirteen nodes do not go together")
        form = "" if name == "Chain" else f"/{chosen.get('decay', 0) > 0.5}"
        return Candidate(f"{name}{form}/{nodes}", {"nodes": nodes})

    def measure(self, candidate: Candidate, report: ShouldStop, trial: int) -> Measurement:
        self.measured.append(candidate.digest)
        nodes = candidate.attributes["nodes"]
        values = {}
        for prompt in range(PROMPTS):
            time.sleep(self.seconds)
            by_nodes = 0.5 - 0.01 * abs(nodes - 20)
            values[prompt] = by_nodes + 0.001 * (prompt * 7 % 5) + noise(candidate, prompt)
            if report(prompt, values[prompt]):
                break
        return Measurement(values, {"tokens_per_step": 2.0, "nodes_per_step": nodes})


def read_section(section: Mapping[str, Any]) -> Sweep:
    checker, key = Checker(lambda key: "mine.yaml"), ("sweep",)
    return checker.call(Sweep, checker.arguments(Sweep, section, key), key)


def settings(**changes: Any) -> Sweep:
    return read_section({**SECTION, **changes})


def opened(
    chosen: Sweep, folder: Path, workload: str = "workload", device: str = "a CPU", name: str = "fake"
) -> OptunaStudy:
    storage = open_storage(chosen.storage, folder)
    return open_study(name, chosen, storage, workload, device)


def resume(study: OptunaStudy, chosen: Sweep) -> int:
    """Continue a study as its only process; return how many trials an earlier one left running."""
    study.sampler = build_sampler(chosen, len(study.trials))
    left = put_back(study)
    queue_known(study, chosen)
    return left


def search(folder: Path, bench: FakeBench, chosen: Sweep, name: str = "fake") -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(folder):
        study = opened(chosen, folder, name=name)
        if chosen.storage is None:
            resume(study, chosen)
            StudySearch(study, chosen, bench).run()
        else:
            Workers(None, chosen).join(study, chosen)
            SharedSearch(study, chosen, bench).run()
    return study


if __name__ == "__main__":
    url = sys.argv[2] if len(sys.argv) > 2 else None
    search(Path(sys.argv[1]), FakeBench(seconds=0.004), settings(storage=url))
