"""The sweep command: from a file to a confirmed, exported tree; mistakes are one sentence and leave nothing
behind.
"""

import csv
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from helpers.small_study import CHAIN_OF_2, NODES, ONE_CHAIN, RANDOM, SWEEP, refused, write
from sqlalchemy.exc import OperationalError

import specexp
from specexp.bench.live import DecoderArm
from specexp.builders import KConfig
from specexp.core.language_model import LanguageModel
from specexp.scheduling import Job, Serial
from specexp.sweep import acceptance_counts
from specexp.sweep.command import main
from specexp.sweep.workers import Claim, TakenOverError

ROOT = Path(__file__).parents[2]


def search(low, high, **others):
    """A search of the nodes alone, with nothing measured first."""
    nodes = {NODES: {"type": "int", "low": low, "high": high}}
    return {"space": nodes, "enqueue": [], "count_acceptances": None, **others}


def trials():
    with Path("runs/small/trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_sweep_ends_with_a_confirmed_and_exported_tree(small, capsys):
    assert main([write(small)]) == 0
    printed = capsys.readouterr().out
    for word in ("chain of 2", "80-node tree", "plain decoding", "hf-eager", "prompt by prompt"):
        assert word in printed
    assert re.search(r"Confirming [34] candidates on 3 other prompts.\n", printed)  # the best may be a known one
    folder = Path("runs/small")
    files = (
        "config.yaml environment.json journal.log trials.csv confirm.md confirm.csv acceptance_counts.json "
        "reference.json confirm.jsonl confirmed.json"
    )
    for name in files.split():
        assert (folder / name).stat().st_size > 0, name
    assert sum(row["state"] in ("complete", "pruned") for row in trials()) == 5
    confirmed = {json.loads(line)["arm"] for line in (folder / "confirm.jsonl").read_text().splitlines()}
    assert {"plain", "hf-eager", "chain of 2", "80-node tree"} <= confirmed
    assert not (folder / "tree.png").exists(), "the page and the text have the tree already"
    settings = json.loads((folder / "confirmed.json").read_text())
    assert {"chain of 2", "80-node tree"} <= {one["label"] for one in settings}
    assert "runs in: " in printed

    artifact = specexp.load_artifact("artifacts/small/best-tree")
    assert artifact.provenance["study"] == "small"
    assert artifact.metrics["speedup_over_plain"]["low"] <= artifact.metrics["speedup_over_plain"]["high"]
    assert artifact.builder.max_nodes >= 1
    # The resolved configuration alone repeats the command; the study has ended, so nothing is measured.
    reference = (folder / "reference.json").read_text()
    assert main([str(folder / "config.yaml")]) == 0
    assert "Study small has ended, so nothing was measured" in capsys.readouterr().out
    assert (folder / "reference.json").read_text() == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("costs", "nodes"), [({2: 1.0, 33: 1.9, 65: 2.1}, [30, 32]), ({2: 1.0, 17: 1.9, 65: 2.1}, [30])], ids=str
)
def test_acceptances_are_counted_with_larger_trees_where_rows_are_cheap(costs, nodes, small, monkeypatch):
    small["sweep"]["count_acceptances"] = {**SWEEP["count_acceptances"], "most_cost": 2}
    small["sweep"] |= {"confirm": None, "export": None, **ONE_CHAIN}
    monkeypatch.setattr(acceptance_counts, "step_ms", lambda *given: costs)
    counted, known = acceptance_counts.counted, []
    monkeypatch.setattr(
        acceptance_counts,
        "counted",
        lambda bench, builder, begin: known.append(builder["init_args"]["nodes"]) or counted(bench, builder, begin),
    )
    assert main([write(small)]) == 0
    assert known == nodes


def test_a_study_does_not_replace_the_results_of_a_run(small, capsys):
    folder = Path("runs/small")
    folder.mkdir(parents=True)
    (folder / "records.jsonl").write_text("")
    sentence = refused(capsys, write(small))
    assert sentence.endswith(
        "name: runs/small already holds the results of a run; choose another name (--name NEW), or remove that folder"
    )
    assert [path.name for path in folder.iterdir()] == ["records.jsonl"]


@pytest.mark.slow
def test_an_export_goes_to_a_folder_of_the_studys_name_and_takes_no_other_studys_best(small, capsys):
    small["sweep"] |= search(5, 5, n_trials=1, export={"kind": "static-tree"})
    small["sweep"]["confirm"] = {"best": 1, "data": {"max_prompts": 4}}  # fewer give no verdict
    # A gain for certain, because `best` exists only with one.
    small["latency"] = {"name": "free drafts", "target_ms": {1: 100, 8: 100}}
    small["drafter"]["init_args"] = {"k": 4, "state": "carry"}
    small["verifier"] = {"class_path": "Greedy"}
    small["generation"]["max_new_tokens"] = 24
    assert main([write(small), "--name", "mine"]) == 0
    best = Path("artifacts/mine/best.json").read_text()
    for dry_run in ([], ["--dry-run"]):
        sentence = refused(capsys, "small.yaml", "--name", "other", "--sweep.export.to", "artifacts/mine", *dry_run)
        assert sentence == (
            "command line: sweep.export.to: artifacts/mine/best is the artifact of 'mine', another study: choose "
            "another folder (--sweep.export.to artifacts/other)"
        )
    assert not Path("runs/other").exists()
    assert Path("artifacts/mine/best.json").read_text() == best


@pytest.mark.slow
def test_the_best_of_the_configured_kind_is_exported(small, capsys):
    small["pair"]["draft"] = small["pair"]["target"]
    small["drafter"] = {"class_path": "DraftModel", "init_args": {"temperature": 0.6}}
    small["builder"] = {"class_path": "DySpecThreshold", "init_args": {"max_nodes": 12}}
    small["verifier"] = {"class_path": "RejectionSampling", "init_args": {"temperature": 0.6}}
    small["sweep"] |= {
        "n_trials": 3,
        "pruner": {"class_path": "optuna.pruners.NopPruner"},  # on a busy machine all trials may look slow
        "space": {"builder.init_args.threshold": {"type": "float", "low": 0.05, "high": 0.5, "log": True}},
        "enqueue": [CHAIN_OF_2],
        "count_acceptances": None,
        "confirm": {"best": 2, "data": {"max_prompts": 3}},
    }
    assert main([write(small)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "threshold=" in printed
    assert "hf-eager" not in printed, "it cannot follow a verifier that draws"
    artifact = specexp.load_artifact("artifacts/small/best-tree")
    assert artifact.builder.rank_paths == [[0], [0, 0]]
    assert artifact.recorded["builder"]["init_args"]["candidates"] == "top-k"
    assert "chain of 2 is in artifacts/small/v1" in printed


@pytest.fixture
def schedules(small):
    """A search for an execution strategy; its drafts come from a thread, because a process takes longer to start."""
    thread = {"class_path": "Scheduled", "init_args": {"workers": "thread"}}
    n, batch = "execution.init_args.n", "execution.init_args.verify_batch"
    small["pair"]["draft"] = small["pair"]["target"]
    small["drafter"] = {"class_path": "DraftModel", "init_args": {"coupled": True}}
    small["builder"] = {"class_path": "Chain", "init_args": {"length": 2}}
    small["execution"] = thread
    small["generation"] = {"max_new_tokens": 8, "samples": 3, "threads": 1}
    small["sweep"] = {
        "n_trials": 4,
        "sampler": RANDOM,
        "space": {
            "execution": {"type": "categorical", "choices": [{"name": "scheduled", **thread}]},
            n: {"type": "int", "low": 1, "high": 4},
            batch: {"type": "int", "low": 1, "high": 4, "at_most": n},
        },
        "enqueue": [
            {"name": "serial", "execution": {"class_path": "SerialSpeculative"}},
            {"name": "broken", "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 1]}}},
            {"name": "batched", "execution": {"class_path": "Batched", "init_args": {"n": 3}}},
        ],
        "confirm": {"best": 1, "data": {"max_prompts": 2}},
        "export": {"kind": "schedule", "to": "artifacts/small"},
    }
    return small


@pytest.mark.slow
def test_a_sweep_over_executions_exports_a_schedule_that_opens(schedules, capsys, monkeypatch):
    def break_down(self, root, plan):
        raise RuntimeError("the builder broke")

    monkeypatch.setattr(KConfig, "build", break_down)
    assert main([write(schedules)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "broken, 4 nodes: failed, RuntimeError: the builder broke" in printed
    assert "target busy" in printed
    assert "hf-eager" not in printed, "it decodes no groups"
    left = [thread for thread in threading.enumerate() if thread.name == "specexp drafts"]
    assert left == [], "every trial closes what it started, also one that fails"

    rows = {row["name"]: row for row in trials()}
    assert {"serial", "broken", "batched"} < rows.keys()
    drawn = [row for row in rows.values() if row["execution.init_args.n"]]
    assert drawn
    for row in drawn:
        assert int(row["execution.init_args.verify_batch"]) <= int(row["execution.init_args.n"])
    assert Path("runs/small/time_line.png").stat().st_size > 0
    record = json.loads(Path("runs/small/confirm.jsonl").read_text().splitlines()[0])
    assert record["group"]["sequences"] == len(record["turn_tokens"]) == 3

    artifact = specexp.load_artifact("artifacts/small/best-tree")
    assert artifact.kind == "schedule"
    resolved = artifact.provenance["config"]
    assert artifact.schedule == resolved["execution"]
    folder = resolved["pair"]["target"]
    pair = specexp.load_pair(folder, folder, target_dtype="float32")
    jobs = [Job((5, 6, 7), sequence=number, max_new_tokens=8) for number in range(3)]
    with Serial().open(LanguageModel(pair.target), artifact.new_parts(pair.draft)) as plain:
        expected = [result.token_ids for result in plain.run(jobs).results]
    with artifact.open(pair.target, pair.draft) as executor:
        assert [result.token_ids for result in executor.run(jobs).results] == expected


@pytest.mark.slow
def test_a_database_that_does_not_come_back_is_one_sentence(small, capsys, monkeypatch):
    def lost(*given):
        raise OperationalError("select", {}, Exception("the server at postgresql://me:pa55@host is gone"))

    monkeypatch.setattr("specexp.sweep.workers.claim_confirmation", lost)
    small["sweep"] |= ONE_CHAIN
    assert main([write(small), "--storage", "sqlite:///study.db"]) == 1
    printed = capsys.readouterr().err.splitlines()[-1]
    assert printed.startswith("error: storage 'sqlite:///study.db' failed: ")
    assert "is gone" in printed
    assert "pa55" not in printed


@pytest.mark.slow
def test_prompts_that_fail_in_the_confirmation_are_exit_code_1(small, capsys, monkeypatch):
    decode, broken = DecoderArm.decode, []

    def breaking(arm, *given, **named):
        # in the search it is a trial; afterwards its tree is drawn
        if arm.name == "chain of 2" and len(broken) < 4:  # a warm-up and three prompts
            broken.append(given)
            raise RuntimeError("the builder broke")
        return decode(arm, *given, **named)

    monkeypatch.setattr(DecoderArm, "decode", breaking)
    small["sweep"] |= ONE_CHAIN
    assert main([write(small)]) == 1
    printed = capsys.readouterr()
    assert "answers failed (chain of 2: all 3), e.g. chain of 2 on prompt" in printed.err
    assert "the reasons are in runs/small/confirm.jsonl" in printed.err
    assert "the figures are of the others" in " ".join(printed.out.split())
    assert Path("artifacts/small/v1/artifact.json").exists()


@pytest.mark.slow
def test_a_study_of_two_objectives_is_confirmed_from_its_front(small, capsys):
    small["sweep"].update(n_trials=4, objectives={"speedup": "maximize", "nodes_per_step": "minimize"})
    assert main([write(small), "--storage", "sqlite:///study.db"]) == 0
    assert "nodes per step" in capsys.readouterr().out


def test_dry_run_shows_what_would_be_searched_and_writes_nothing(small, capsys):
    assert main([write(small), "--dry-run", "--n-trials", "9"]) == 0
    printed = capsys.readouterr().out
    for word in ("9 trials", "init_args.rank_decay", "float 0.5 to 3", "parametric, fitted", "80-node tree"):
        assert word in printed
    assert not Path("runs").exists()


def test_a_mistake_found_with_models_and_prompts_leaves_no_files(small, capsys):
    file = write(small)
    Path("empty.jsonl").write_text("")
    Path("long.jsonl").write_text(12 * (json.dumps({"question": "long " * 40, "answer": "1"}) + "\n"))
    for arguments, words in (
        (["--data.prompts.init_args.path", "missing.jsonl"], "missing.jsonl"),
        (["--data.prompts.init_args.path", "empty.jsonl"], "empty.jsonl"),
        (["--pair.target", "no/such/folder"], "no/such/folder"),
        (["--data.max_prompts", "null"], "data.max_prompts is null"),
        (["--sweep.confirm.data.offset", "2"], "is one of the search's"),
        (["--sweep.confirm.data.offset", "99"], "offset"),
        (["--data.prompts.init_args.path", "long.jsonl"], "but the target holds 160"),
        (["--sweep", "null"], "has no sweep: section, so nothing is searched; run it with python -m specexp.run"),
    ):
        assert words in refused(capsys, file, *arguments)
        assert not Path("runs").exists()


def test_a_journal_on_a_full_disk_keeps_whole_lines_only(tmp_path):
    code = (
        "import pathlib, resource, signal, sys; from specexp.sweep.storage import JournalFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "journal = JournalFile(pathlib.Path(sys.argv[1]))\n"
        "try:\n    [journal.append_logs([{'op_code': n, 'text': 'x' * 90}]) for n in range(99)]\n"
        "except OSError as error: sys.exit(0)\nsys.exit(1)\n"
    )
    path = tmp_path / "journal.log"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["op_code"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 3
    assert lines[-1].endswith("\n")


@pytest.mark.slow
def test_a_confirmation_that_another_worker_took_over_leaves_nothing(small, monkeypatch):
    def lost(claim):
        raise TakenOverError

    monkeypatch.setattr(Claim, "check", lost)
    small["sweep"] |= ONE_CHAIN
    assert main([write(small), "--storage", "sqlite:///study.db"]) == 0
    assert (Path("runs/small") / "trials.csv").exists()
    assert not [*Path("runs/small").glob("*confirm*")]
    assert not [*Path("artifacts").rglob("artifact.json")]
