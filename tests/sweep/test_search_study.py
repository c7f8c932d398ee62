"""Failing, refused, repeated, pruned and infeasible trials of a study, and the display of its progress."""

import math
from typing import Any

import optuna
import pytest
from helpers.fake_bench import SECTION, FakeBench, opened, search, settings
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from specexp.config.check import Checker
from specexp.sweep.plain_seconds import PlainSeconds
from specexp.sweep.sampler import ExploringSampler, check_sampler
from specexp.sweep.search import PATIENCE, StudySearch
from specexp.sweep.study_config import StudyError
from specexp.sweep.trial_queue import queue_known
from specexp.sweep.trials import best_line, confirmable, distinct_finished, reason_of, state_of, write_trials

FIXED: dict[str, Any] = {"builder": {"type": "categorical", "choices": [{"name": "chain", "class_path": "Chain"}]}}


def enqueued(*nodes, **changes):
    """Settings of a study that measures chains of these lengths, in this order."""
    known = [
        {"name": f"chain {place}", "builder": {"class_path": "Chain", "init_args": {"nodes": count}}}
        for place, count in enumerate(nodes)
    ]
    return settings(**{"enqueue": known, **changes})


def test_the_study_goes_on_after_a_refused_and_a_failing_trial(tmp_path):
    class Failing(FakeBench):
        def measure(self, candidate, report, trial):
            if candidate.attributes["nodes"] == 30:
                raise RuntimeError("out of memory\nand more")
            return super().measure(candidate, report, trial)

    study = search(tmp_path, Failing(), enqueued(13, 30, 20, n_trials=3))
    refused, failed = study.trials[:2]
    assert refused.state is failed.state is TrialState.FAIL
    assert refused.user_attrs["reason"] == "thirteen nodes do not go together"
    assert failed.user_attrs["reason"] == "RuntimeError: out of memory and more"
    assert len(distinct_finished(study)) == 3


def test_a_configuration_measured_before_is_copied(tmp_path):
    bench = FakeBench()
    study = search(tmp_path, bench, enqueued(20, 5, 20, 5, n_trials=4))
    assert bench.measured[:2] == ["Chain/20", "Chain/5"]
    assert len(set(bench.measured)) == len(bench.measured)
    for original, copy in ((0, 2), (1, 3)):
        assert study.trials[copy].user_attrs["duplicate_of"] == original
        assert study.trials[copy].values == study.trials[original].values
        assert study.trials[copy].intermediate_values == study.trials[original].intermediate_values
        assert study.trials[copy].state is study.trials[original].state
    assert len(distinct_finished(study)) == 4


def test_a_trial_that_is_surely_worse_is_pruned_and_never_confirmed(tmp_path):
    study = search(tmp_path, FakeBench(), enqueued(20, 22, 2, n_trials=12))
    known, searched = study.trials[:3], study.trials[3:]
    assert [state_of(trial) for trial in known] == ["complete"] * 3  # what others are compared with
    pruned = [trial for trial in searched if "pruned_at" in trial.user_attrs]
    assert pruned
    for trial in pruned:
        assert 2 <= trial.user_attrs["pruned_at"] < 12
        assert trial.value == pytest.approx(sum(trial.intermediate_values.values()) / trial.user_attrs["pruned_at"])
    assert not {trial.number for trial in pruned} & {trial.number for trial in confirmable(study)}
    assert {0, 1, 2} <= {trial.number for trial in confirmable(study)}


def test_a_known_configuration_is_measured_whole_even_if_it_was_pruned_before(tmp_path):
    study = search(tmp_path, FakeBench(), enqueued(20, n_trials=1))
    study.enqueue_trial({"builder": "chain", "builder.init_args.nodes": 2})
    search(tmp_path, FakeBench(), enqueued(20, n_trials=2))
    assert state_of(study.trials[1]) == "pruned"
    study.enqueue_trial({"builder": "chain", "builder.init_args.nodes": 2}, user_attrs={"known": "late"})
    search(tmp_path, FakeBench(), enqueued(20, n_trials=3))
    assert state_of(study.trials[2]) == "complete"
    assert study.trials[2].number in {trial.number for trial in confirmable(study)}


def test_a_tree_above_the_limit_is_not_measured(tmp_path):
    bench = FakeBench()
    study = search(tmp_path, bench, enqueued(40, 20, n_trials=2, constraints={"max_draft_nodes": 32}))
    assert state_of(study.trials[0]) == "infeasible"
    assert study.trials[0].constraints == {"max_draft_nodes": 8.0}
    assert bench.measured == ["Chain/20"]
    assert [trial.number for trial in confirmable(study)] == [1]


def test_a_measured_constraint_makes_a_trial_infeasible(tmp_path):
    chosen = enqueued(25, 20, n_trials=2, constraints={"max_nodes_per_step": 22})
    study = search(tmp_path, FakeBench(), chosen)
    assert [state_of(trial) for trial in study.trials[:2]] == ["infeasible", "complete"]
    assert study.best_trial.number == 1


@pytest.mark.slow
def test_an_exhausted_space_ends_the_search_with_a_sentence(tmp_path):
    chosen = settings(space=FIXED, n_trials=5)
    study = opened(chosen, tmp_path)
    queue_known(study, chosen)
    bench = FakeBench()
    sentence = StudySearch(study, chosen, bench).run()
    assert sentence.startswith("The space is exhausted: 3 distinct configurations were measured, 5 were requested")
    assert len(bench.measured) == 3
    assert [state_of(trial) for trial in study.trials] == ["complete"] * 3 + ["duplicate"] * PATIENCE


@pytest.mark.slow
def test_random_values_replace_repeated_suggestions(tmp_path):
    class Settled(RandomSampler):  # type: ignore[misc]
        """Has found its favourite."""

        def sample_independent(self, study, trial, name, distribution):
            return "chain" if name == "builder" else distribution.high

    chosen = settings(n_trials=20, enqueue=[])
    study = opened(chosen, tmp_path)
    study.sampler = ExploringSampler(Settled(), seed=0)
    bench = FakeBench()
    assert StudySearch(study, chosen, bench).run() == ""
    assert bench.measured[0] == "Chain/64"
    assert len(set(bench.measured)) == len(bench.measured) == 20
    repeated = [trial for trial in study.trials if "duplicate_of" in trial.user_attrs]
    assert repeated
    assert all(trial.values == study.trials[trial.user_attrs["duplicate_of"]].values for trial in repeated)


@pytest.mark.slow
def test_a_configuration_that_failed_is_not_measured_again(tmp_path):
    failed = []

    class Half(FakeBench):
        def measure(self, candidate, report, trial):
            if candidate.attributes["nodes"] == 2:
                failed.append(trial)
                raise RuntimeError("out of memory")
            return super().measure(candidate, report, trial)

    two = {**FIXED, "builder.init_args.nodes": {"type": "int", "low": 1, "high": 2}}
    chosen = settings(space=two, n_trials=5, enqueue=[])
    study = opened(chosen, tmp_path)
    assert "1 distinct configurations were measured" in StudySearch(study, chosen, Half()).run()
    assert len(failed) == 1
    assert all("out of memory" in str(reason_of(one)) for one in study.trials if state_of(one) == "failed")


def test_a_sampler_that_enumerates_is_left_to_itself(tmp_path):
    grid = {"builder": ["chain"], "builder.init_args.nodes": [1, 2, 64]}
    sampler = {"class_path": "optuna.samplers.GridSampler", "init_args": {"search_space": grid, "seed": 0}}
    space = {**FIXED, "builder.init_args.nodes": {"type": "int", "low": 1, "high": 64}}
    chosen = settings(space=space, sampler=sampler, n_trials=9, enqueue=[])
    study = opened(chosen, tmp_path)
    bench = FakeBench()
    assert "3 distinct configurations were measured, 9 were requested" in StudySearch(study, chosen, bench).run()
    assert sorted(bench.measured) == ["Chain/1", "Chain/2", "Chain/64"]


def test_a_sampler_may_have_fewer_configurations_than_are_drawn_to_check_it(tmp_path):
    space = {**FIXED, "builder.init_args.nodes": {"type": "categorical", "choices": [2]}}
    sampler = {"class_path": "optuna.samplers.BruteForceSampler", "init_args": {"seed": 0}}
    chosen = settings(space=space, sampler=sampler, n_trials=9, enqueue=[])
    check_sampler(chosen, Checker(lambda key: "mine.yaml"))
    bench = FakeBench()
    assert "1 distinct configurations were measured" in StudySearch(opened(chosen, tmp_path), chosen, bench).run()
    assert bench.measured == ["Chain/2"]


@pytest.mark.slow
def test_a_space_in_which_everything_fails_ends_with_the_reason(tmp_path):
    class Broken(FakeBench):
        def prepare(self, overrides):
            raise ValueError("nothing goes together")

    with pytest.raises(StudyError, match="nothing goes together"):
        search(tmp_path, Broken(), settings())


def test_a_study_is_not_mixed_with_another_space_workload_or_device(tmp_path):
    search(tmp_path, FakeBench(), settings(n_trials=2))
    with pytest.raises(StudyError, match="another space"):
        opened(settings(space=FIXED), tmp_path)
    with pytest.raises(StudyError, match="another workload"):
        opened(settings(), tmp_path, "other")
    with pytest.raises(StudyError, match="measures on a CPU, and this worker has another GPU"):
        opened(settings(), tmp_path, "workload", device="another GPU")


def test_every_trial_is_a_row(tmp_path):
    study = search(tmp_path, FakeBench(), enqueued(20, 13, 20, 2, n_trials=4))
    write_trials(study, ["speedup"], tmp_path / "trials.csv")
    header, *rows = (tmp_path / "trials.csv").read_text().splitlines()
    assert header.startswith("trial,name,state,log_speedup,speedup,prompts,nodes")
    first = dict(zip(header.split(","), rows[0].split(","), strict=True))
    assert float(first["speedup"]) == pytest.approx(math.exp(float(first["log_speedup"])))
    assert float(first["speedup_low"]) < float(first["speedup"]) < float(first["speedup_high"])
    assert len(rows) == len(study.trials)
    assert [row.split(",")[2] for row in rows[:4]] == ["complete", "failed", "duplicate", "complete"]


def test_random_seed_moves_on_when_a_study_is_resumed(tmp_path):
    known = len(SECTION["enqueue"])  # type: ignore[arg-type]
    study = search(tmp_path, FakeBench(), settings(n_trials=known + 2))
    first = [trial.params for trial in study.trials[known:]]
    again = search(tmp_path, FakeBench(), settings(n_trials=known + 4))
    assert not any(trial.params in first for trial in again.trials[known + 2 :])


def recorded(speedup, spread=0.0, **attributes):
    log = math.log(speedup)
    return optuna.create_trial(
        value=log,
        intermediate_values={0: log - spread, 1: log + spread},
        user_attrs={"digest": str(speedup), **attributes},
    )


def test_the_best_so_far_has_its_interval():
    study = optuna.create_study(direction="maximize")
    assert best_line(study, "speedup") == "best so far: none yet"
    spread = math.log(1.5 / 1.25) / 12.706  # Student's t for two prompts; their standard error is the spread
    study.add_trials([recorded(1.5, spread), recorded(1.1), recorded(2.0, pruned_at=3)])
    # a pruned one does not count
    assert best_line(study, "speedup") == "best so far: trial 0, 1.50x plain [1.25, 1.80]"


def test_one_disturbed_run_among_the_last_three_changes_nothing():
    reference = PlainSeconds({"a": 1.0})
    for seconds in (1.1, 9.0, 1.1):
        reference.observe("a", seconds)
    assert reference.drift == pytest.approx(1.1)
    reference.observe("a", 1.2)
    reference.observe("a", 1.2)
    assert reference.drift == pytest.approx(1.2)


def test_a_resumed_study_keeps_the_seconds_of_its_own_workload(tmp_path):
    path = tmp_path / "reference.json"
    PlainSeconds({"a": 0.25}).save(path, "workload")
    assert PlainSeconds.load(path, "workload").seconds_per_token == {"a": 0.25}
    assert PlainSeconds.load(path, "another").seconds_per_token == {}
    path.write_text("{")
    assert PlainSeconds.load(path, "workload").seconds_per_token == {}
    assert PlainSeconds.load(tmp_path / "none.json", "workload").seconds_per_token == {}
