"""The plan of a study: sizes and deadlines by plain decoding's seconds per prompt, with clocks that tests set."""

import csv
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from helpers.fake_bench import FakeBench, opened, settings
from helpers.small_study import write

from specexp.bench.record import read_records
from specexp.bench.verdict import SpeedVerdict
from specexp.config import load_config
from specexp.config.load import with_prompts_of
from specexp.sweep.command import main
from specexp.sweep.one_process import OneProcess
from specexp.sweep.plan import AFTER_SECONDS, PLAN, StudyPlan, fit_plan
from specexp.sweep.search import Deadlines, StudySearch
from specexp.sweep.trial_queue import queue_known
from specexp.sweep.trials import distinct_finished, name_of_trial
from specexp.sweep.workers import Workers

WHOLE = StudyPlan(trials=24, prompts=16, counted=12, learned=0, best=3, candidates=7, confirmed=16)


def test_a_plan_counts_every_prompt_that_is_decoded():
    assert WHOLE.trial == 16 + 4  # plain decoding runs again on every fourth prompt
    assert WHOLE.search == 16 + 12 + 24 * 20
    # all candidates and plain decoding, which decodes twice more for a cold start; then the best three and plain
    assert WHOLE.confirmation == 7 * 16 + 15 * (7 + 3) + 1 * (3 + 1)
    assert replace(WHOLE, confirmed=9).confirmation == 7 * 16 + 9 * (7 + 3)
    assert replace(WHOLE, learned=5).trial == 25
    assert replace(WHOLE, learned=5).confirmation == WHOLE.confirmation + 7 * 5


def test_a_plan_that_fits_is_not_cut():
    assert WHOLE.within(WHOLE.search + WHOLE.confirmation, fixed=False) == WHOLE


def test_prompts_are_cut_first_and_then_trials_and_the_confirmation():
    assert WHOLE.within(300, fixed=False) == StudyPlan(22, 6, 6, 0, 3, 6, 9)
    assert WHOLE.within(600, fixed=False) == replace(WHOLE, prompts=11, counted=11, trials=24, confirmed=16)
    assert WHOLE.within(300, fixed=True) == StudyPlan(7, 16, 12, 0, 3, 4, 8)


def test_no_stage_falls_below_its_fewest():
    assert WHOLE.within(1, fixed=False) == StudyPlan(1, 6, 6, 0, 3, 3, 8)
    none = replace(WHOLE, best=0, candidates=0, confirmed=0)
    assert none.within(200, fixed=False).confirmation == 0


def test_each_method_is_measured_once_before_any_gets_more_prompts():
    many = replace(WHOLE, known=12)
    assert many.within(100, fixed=False).prompts == 3
    assert many.within(600, fixed=False).prompts == WHOLE.within(600, fixed=False).prompts


@pytest.mark.parametrize("decoded", range(130, 800, 37))
def test_a_cut_plan_fits(decoded):
    cut = WHOLE.within(decoded, fixed=False)
    assert cut.search + cut.confirmation <= decoded


@pytest.mark.parametrize("confirmed", [12, 40, 400])
def test_more_minutes_confirm_as_many_prompts_as_they_are_for(confirmed):
    minutes = WHOLE.minutes_for(confirmed, 2.0)
    more = replace(WHOLE, confirmed=confirmed)
    assert more.within((60 * minutes - AFTER_SECONDS) / 2.0, fixed=True).confirmed == confirmed


def test_a_forecast_has_the_minutes_and_whether_the_given_ones_are_too_few():
    minutes = ((WHOLE.search + WHOLE.confirmation) * 2 + AFTER_SECONDS) / 60
    assert round(minutes) == 26
    sentence = WHOLE.forecast(2.0, None)
    assert sentence.startswith("This takes at most about 26 minutes: 24 trials on 16 prompts, then at most 7")
    assert "Plain decoding takes 2.0 s a prompt here" in sentence
    of_a_server = WHOLE.forecast(2.0, None, start=60.0)
    assert of_a_server.startswith(f"This takes at most about {26 + 24 + WHOLE.candidates} min")
    assert of_a_server.endswith(" A server starts in 60 s.")
    assert "26 minutes: about 24 trials" in WHOLE.forecast(2.0, 27)
    assert "26 minutes instead of 10, which are too few: about" in WHOLE.forecast(2.0, 10)
    assert WHOLE.forecast(2.0, 10).endswith(" The search ends early, with fewer trials.")


def test_a_search_prunes_the_trial_in_which_its_time_is_up_and_ends(tmp_path, monkeypatch):
    bench, chosen = FakeBench(), settings()
    study = opened(chosen, tmp_path)
    queue_known(study, chosen)
    monkeypatch.setattr("specexp.sweep.search.time", lambda: float(len(bench.measured)))
    assert StudySearch(study, chosen, bench, ends=Deadlines(3.0)).run() == ""
    assert len(bench.measured) == len(distinct_finished(study)) == 3
    assert [trial.user_attrs.get("pruned_at") for trial in study.trials[:3]] == [None, None, 1]


@pytest.mark.parametrize(("drift", "measured"), [(1.0, 3), (0.5, 5), (1.5, 3)])
def test_a_search_ends_later_but_never_earlier_if_the_machine_changes(tmp_path, monkeypatch, drift, measured):
    bench, chosen = FakeBench(), settings()
    bench.reference = SimpleNamespace(drift=drift)
    study = opened(chosen, tmp_path)
    queue_known(study, chosen)
    monkeypatch.setattr("specexp.sweep.search.time", lambda: float(len(bench.measured)))
    StudySearch(study, chosen, bench, ends=Deadlines(3.0, reserved=4.0)).run()
    assert len(bench.measured) == measured


def test_a_late_search_goes_on_until_a_trial_can_be_confirmed(tmp_path, monkeypatch):
    class FailsFirst(FakeBench):
        def measure(self, candidate, report, trial):
            found = super().measure(candidate, report, trial)
            if trial < 2:
                raise RuntimeError("no memory")
            return found

    bench, chosen = FailsFirst(), settings()
    study = opened(chosen, tmp_path)
    queue_known(study, chosen)
    StudySearch(study, chosen, bench, ends=Deadlines(0.0)).run()
    assert len(bench.measured) == 3
    assert len(distinct_finished(study)) == 1


def rows():
    with Path("runs/small/trials.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["state"] in ("complete", "pruned")]


@pytest.mark.slow
def test_minutes_size_a_study_and_count_for_each_start(small, capsys, monkeypatch):
    small["data"]["max_prompts"] = 7
    small["baselines"] = ["plain"]
    ticks = iter(range(0, 1000, 40))  # the first four prompts take 40 s
    monkeypatch.setattr("specexp.sweep.bench.perf_counter", lambda: next(ticks))
    monkeypatch.setattr("specexp.sweep.plan.time", lambda: 1000.0)
    monkeypatch.setattr("specexp.sweep.run.time", lambda: 1000.0)
    monkeypatch.setattr("specexp.sweep.search.time", lambda: 1100.0)
    file = write(small)
    assert main([file, "--minutes", "3"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    # 155 s are 15.5 prompts, too few for three known trials on 6 prompts. The fewest are 3 + 2 + 3.75 in the search and
    # 3 + 3 * 4 in the confirmation, for which the search ends at 1005 s.
    assert "about 4 minutes instead of 3, which are too few: about 1 trial on 3 prompts" in printed
    assert "Plain decoding takes 10.0 s a prompt here" in printed
    assert "The 3 minutes allow 1 of 5 trials, and now the confirmation." in printed
    assert "Confirming 1 candidate on 3 other prompts." in printed
    assert "The search measured 1 of 5 trials in its time; with more --minutes" in printed
    assert [row["prompts"] for row in rows()] == ["3"]
    assert main([file, "--minutes", "3"]) == 0
    assert "Study small has ended" in capsys.readouterr().out
    assert main([file, "--minutes", "50"]) == 0
    printed = capsys.readouterr().out
    assert "1 of 5 trials are finished" in printed
    assert "about 4 trials on 3 prompts" in " ".join(printed.split())
    assert len(rows()) == 5


@pytest.mark.parametrize(("now", "decoded"), [(0.0, 4), (9e9, 3)])
def test_the_best_are_confirmed_on_more_prompts_than_the_others_while_time_is_left(small, monkeypatch, now, decoded):
    small["sweep"] |= {"n_trials": 2, "minutes": 60, "confirm": {"best": 1, "data": {"max_prompts": 4}}}
    small["baselines"] = ["plain"]
    for module in ("plan", "confirmation"):
        monkeypatch.setattr(f"specexp.sweep.{module}.COMMON", 2)
    monkeypatch.setattr("specexp.sweep.confirmation.time", lambda: now)
    monkeypatch.setattr("specexp.sweep.plan.StudyPlan.within", lambda plan, *given, **how: replace(plan, confirmed=3))
    assert main([write(small)]) == 0
    records = read_records(Path("runs/small/confirm.jsonl"))
    prompts = Counter(record.arm for record in records)
    assert prompts.pop("plain") == decoded
    assert sorted(prompts.values()) == [2, decoded]


def test_more_prompts_are_proposed_from_the_offset_on_only(small):
    def confirmed(most):
        small["sweep"]["confirm"] = {"best": 1, "data": {"max_prompts": most}}
        return with_prompts_of(load_config(write(small)), "confirm").workload

    assert confirmed(1).available() == len(confirmed(10**6).rows()) > 1


@pytest.mark.parametrize(
    ("now", "most", "needed", "proposes", "exhausted"),
    [(9e9, 10**6, 10**6, "all", False), (0.0, 10**6, 10**6, 10**6, True), (9e9, 5, 2, 5, False)],
)
def test_no_more_prompts_are_proposed_than_the_set_has_and_no_fewer_than_the_files(
    small, monkeypatch, now, most, needed, proposes, exhausted
):
    from specexp.sweep import conclusion

    small["sweep"] |= {"n_trials": 1, "minutes": 60, "confirm": {"best": 1, "data": {"max_prompts": most}}}
    small["baselines"] = ["plain"]
    proposed = []
    monkeypatch.setattr("specexp.sweep.confirmation.time", lambda: now)
    monkeypatch.setattr("specexp.sweep.plan.StudyPlan.within", lambda plan, *given, **how: replace(plan, confirmed=1))
    monkeypatch.setattr(conclusion, "verdict_of", lambda *given: SpeedVerdict.CANNOT_TELL)
    monkeypatch.setattr(conclusion, "prompts_needed", lambda *given: needed)
    propose = lambda *given, **how: proposed.append((given[3], how["exhausted"])) or {}  # noqa: E731
    monkeypatch.setattr(conclusion, "more_prompts", propose)
    assert main([write(small)]) == 0
    rows = len(with_prompts_of(load_config("runs/small/config.yaml"), "confirm").workload.rows())
    assert proposed == [(rows if proposes == "all" else proposes, exhausted)]


@pytest.mark.parametrize("fast", [0, 1])
def test_those_go_on_that_are_fastest_in_the_confirmation_not_in_the_search(small, monkeypatch, fast):
    from specexp.sweep import confirmation, prepared

    names, select, paired = [], prepared.select, confirmation.paired_speedup

    def selected(*given):
        trials = select(*given)
        names.extend(map(name_of_trial, trials))
        return trials

    def made_fast(records, arm, *given, **how):
        log_ratio = float(arm == names[fast])
        interval = dict.fromkeys(("ratio", "low", "high"), math.exp(log_ratio))
        speedup = paired(records, arm, *given, **how)
        return replace(speedup, mean_log_ratio=log_ratio, refused=None, n=4, **interval)

    small["sweep"] |= {"n_trials": 2, "confirm": {"best": 1, "data": {"max_prompts": 4}}}
    small["baselines"] = ["plain"]
    monkeypatch.setattr(confirmation, "COMMON", 2)
    monkeypatch.setattr(prepared, "select", selected)
    monkeypatch.setattr(confirmation, "paired_speedup", made_fast)
    assert main([write(small)]) == 0
    prompts = Counter(record.arm for record in read_records(Path("runs/small/confirm.jsonl")))
    assert prompts == {"plain": 4, names[fast]: 4, names[1 - fast]: 2}


def planned(kept, *, storage, clock, monkeypatch):
    """The deadline that a start at this time sets for a study with a stored plan."""
    chosen = settings(minutes=10, storage=storage)
    trials = optuna.create_study()
    if kept is not None:
        trials.set_user_attr(PLAN, kept)
    prompts = SimpleNamespace(prompts=[None] * 8)
    for module in ("plan", "workers"):
        monkeypatch.setattr(f"specexp.sweep.{module}.time", lambda: clock)
    bench = SimpleNamespace(
        data=lambda: prompts,
        cut=lambda *sizes: None,
        other_arms=list,
        config=SimpleNamespace(pair=SimpleNamespace(device="cpu")),
        reference=SimpleNamespace(per_prompt=1.0, start=0.0),
    )
    process = (OneProcess if storage is None else Workers)(bench.config, chosen)
    fit_plan(chosen, bench, trials, clock, 0, process.deadline)
    return trials.user_attrs[PLAN]["until"]


def test_workers_share_a_deadline_and_a_later_start_has_its_own(monkeypatch):
    plan = {"counted": 0, "candidates": 0, "confirmed": 0, "prompts": 8, "minutes": 10}
    given = {"clock": 1000.0, "monkeypatch": monkeypatch}
    own = 1000 + 600 - AFTER_SECONDS
    assert planned(None, storage="sqlite:///shared.db", **given) == own
    joined = {**plan, "until": 1200.0}
    assert planned(joined, storage="sqlite:///shared.db", **given) == 1200
    assert planned({**plan, "until": 900.0}, storage="sqlite:///shared.db", **given) == own
    assert planned(joined, storage=None, **given) == own  # a journal file has one worker, which was killed
