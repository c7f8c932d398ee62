"""A study of another engine: the same search, confirmation and export, and an engine that fails."""

import csv
import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import fake_server
from helpers.clusters import is_alive
from helpers.waiting import wait_for

from specexp.bench.record import write_records
from specexp.deploy.export.command import export
from specexp.sweep import bench
from specexp.sweep.command import main

COMMAND = f"{sys.executable} {fake_server.__file__} {{{{port}}}}"
FAULTS = {
    "crash": "the server exited with status 3 (the fake server crashed on purpose)",
    "hang": "no complete answer within",
    "error": "status 500",
    "truncate": "the stream ended early",
    "garbage": "must send JSON",
    "no-start": "unknown flag --speculate",
}


def choice(name, class_path, **arguments):
    return {"name": name, "class_path": class_path, "init_args": arguments}


def endpoint(name, arguments="", **given):
    command = f"{COMMAND} {arguments}".replace("{{", "{").replace("}}", "}")
    seconds = {"answer_seconds": 1, "start_seconds": 30, **given}
    return choice(name, "OpenAIEndpoint", command=command, plain_body={"speculative": False}, **seconds)


def openvino(name, drafts, **settings):
    return choice(name, "OpenVINO", drafts=drafts, settings=settings)


@pytest.fixture
def of_engine(experiment, tmp_path, monkeypatch):
    """Writes an experiment over choices of an engine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("".join(f"ab{number} ab{number}\n" for number in range(6)))

    def write(choices, first=(), **sweep):
        kind = choices[0]["class_path"]  # the choices override it
        plain = endpoint("")["init_args"] if kind == "OpenAIEndpoint" else {}
        return experiment(
            drafter=None,
            builder=None,
            verifier={"class_path": "Greedy"},
            engine={"class_path": kind, "init_args": plain},
            data={"prompts": "prompts.txt", "max_prompts": 2},
            sweep={
                "n_trials": len(choices),
                "space": {"engine": {"type": "categorical", "choices": choices}, **sweep.pop("space", {})},
                "enqueue": [{"name": one["name"], "engine": one} for one in first],
                **sweep,
            },
        )

    return write


def rows_of_trials():
    with Path("runs/tiny/trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_an_engine_that_fails_fails_its_trial_and_the_study_goes_on(of_engine, capsys):
    broken = [endpoint(fault, f"--fault {fault} --after 1") for fault in FAULTS]
    healthy = [endpoint("healthy"), endpoint("with logprobs", "--logprobs")]
    path = of_engine([*healthy, *broken], [*broken, healthy[0]], n_trials=2)
    assert main([path]) == 0
    rows = {row["name"] or row["trial"]: row for row in rows_of_trials()}
    for fault, reason in FAULTS.items():
        assert rows[fault]["state"] == "failed"
        assert reason in rows[fault]["reason"]
    assert sum(row["state"] in ("complete", "pruned") for row in rows.values()) == 2
    assert f"crash: failed, {FAULTS['crash']}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_server_that_does_not_start_ends_a_study_with_its_own_last_error(of_engine, capsys):
    path = of_engine([endpoint("one")])
    command = f"{COMMAND} --fault no-start".replace("{{", "{").replace("}}", "}")
    assert main([path, "--engine.init_args.command", command]) == 1
    error = capsys.readouterr().err
    assert f"{path}: engine: plain decoding, with which every trial" in error
    assert "unknown flag --speculate" in error


@pytest.mark.slow
def test_a_full_disk_ends_a_study_without_processes_and_it_goes_on_later(of_engine, tmp_path, monkeypatch, capsys):
    pids, written = tmp_path / "pids", []

    def write(path, records):
        written.append(path)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_records(path, records)

    monkeypatch.setattr(bench, "write_records", write)
    choices = [endpoint("one", f"--child {pids}"), endpoint("broken", "--fault no-start"), endpoint("two")]
    path = of_engine(choices, choices, n_trials=2, confirm={"best": 2, "data": {"max_prompts": 2}})
    assert main([path]) == 1
    assert "No space left on device" in capsys.readouterr().err
    wait_for(lambda: not any(map(is_alive, map(int, pids.read_text().split()))), 20, "a process was left")
    assert main([path]) == 0
    assert "plain decoding" in capsys.readouterr().out
    assert {row["state"] for row in rows_of_trials()} == {"complete", "failed"}


@pytest.mark.slow
def test_every_prompt_is_answered_under_each_load_and_a_table_of_lengths_is_exported(of_engine, tmp_path, capsys):
    def under(name, length):
        settings = {"num_speculative_tokens": length}
        return endpoint(name, "--draft-tokens {num_speculative_tokens}", settings=settings, concurrency=[3, 1])

    choices = [under("short", 1), under("long", 4)]
    path = of_engine(choices, choices, confirm={"best": 2, "data": {"max_prompts": 3}})
    assert main([path, "--engine.init_args.concurrency", "[1, 3]"]) == 0
    assert "Draft length by load: " in capsys.readouterr().out
    forms = json.loads(Path("runs/tiny/loads.json").read_text())
    assert [row[:2] for row in forms["vllm"]["num_speculative_tokens_per_batch_size"]] == [[1, 1], [2, 3]]
    records = [json.loads(line) for line in Path("runs/tiny/confirm.jsonl").read_text().splitlines()]
    assert {record["category"] for record in records} == {"1 request", "3 requests"}
    assert len(records) == 3 * 3 * 2  # prompts, arms, loads


@pytest.mark.slow
def test_a_setting_is_drawn_only_where_a_choice_sets_it(of_engine, capsys):
    drawing = endpoint("drawing", "--draft-tokens {tokens}", settings={"tokens": 1})
    key = "engine.init_args.settings.tokens"
    path = of_engine([drawing, endpoint("none")], n_trials=3, space={key: {"type": "int", "low": 1, "high": 2}})
    assert main([path]) == 0
    with Path("runs/tiny/trials.csv").open() as file:
        drawn = {row[f"params_{key}" if f"params_{key}" in row else key] for row in csv.DictReader(file)}
    assert drawn == {"1", "2", ""}


@pytest.fixture
def interruptible():
    """Ctrl-C ends the processes that a test starts. They inherit that a test run in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_sweep_leaves_no_server(ended_by, of_engine, interruptible, tmp_path):
    pids = tmp_path / "pids"
    path = of_engine([endpoint("one", f"--child {pids} --fault hang --after 1", answer_seconds=600), endpoint("two")])
    with subprocess.Popen([sys.executable, "-m", "specexp.sweep", path]) as sweep:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        server, child = map(int, pids.read_text().split())
        sweep.send_signal(ended_by)
    wait_for(lambda: not any(map(is_alive, (server, child))), 20, "a process was left behind")


@pytest.mark.slow
def test_a_study_confirms_and_exports_the_settings_of_openvino(of_engine, tmp_path, capsys):
    pytest.importorskip("openvino_genai", reason="pip install 'specexp[openvino]'")
    choices = [
        openvino("lookup", "prompt-lookup", num_assistant_tokens=4, max_ngram_size=2),
        openvino("static", "model", num_assistant_tokens=3),
    ]
    path = of_engine(
        choices,
        choices,
        confirm={"best": 1, "data": {"max_prompts": 1}},
        export={"kind": "engine-settings", "to": str(tmp_path / "artifacts" / "tiny")},
    )
    assert main([path]) == 0
    assert "Safe: 2/2 outputs equal plain decoding's." in capsys.readouterr().out
    folder = tmp_path / "artifacts" / "tiny" / "best-tree"
    settings = json.loads((tmp_path / "artifacts" / "tiny" / "v1" / "settings.json").read_text())
    assert settings["engine"] == "openvino"
    written, _ = export(folder, "openvino")
    assert written == settings["settings"]
    assert written in [choice["init_args"]["settings"] for choice in choices]


@pytest.mark.slow
def test_hugging_faces_generate_is_an_engine_too(of_engine, capsys):
    lookup = {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2}
    choices = [
        choice("lookup", "HuggingFace", drafts="prompt-lookup", settings=lookup),
        choice("assisted", "HuggingFace", drafts="model", settings={"num_assistant_tokens": 3}),
        choice("static cache", "HuggingFace", settings={"cache_implementation": "static"}),
    ]
    path = of_engine(choices, confirm={"best": 3, "data": {"max_prompts": 1}})
    assert main([path]) == 0
    assert "Safe: 3/3 outputs equal plain decoding's." in capsys.readouterr().out


MISSPELT = openvino("one", "model", num_assistant_token=3)
TOO_FEW = openvino("one", "prompt-lookup", num_assistant_tokens=2)


@pytest.mark.parametrize(
    ("engine", "more", "error"),
    [
        (endpoint("one"), ["--verifier", "KeyedSampling"], "engine: outputs are compared token by token"),
        (MISSPELT, [], "did you mean 'engine.init_args.settings.num_assistant"),
        (TOO_FEW, [], "must be exactly max_ngram_size and num_ass"),
    ],
)
def test_a_wrong_engine_is_refused_before_anything_starts(engine, more, error, of_engine, capsys):
    assert main([of_engine([engine]), *more, "--dry-run"]) == 2
    assert error in capsys.readouterr().err
