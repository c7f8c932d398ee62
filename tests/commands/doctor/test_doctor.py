"""The doctor reports each finding, missing packages and what to do about them."""

from __future__ import annotations

import importlib.metadata
import json

import pytest
import torch
from helpers.made_records import record
from helpers.small_gguf import tokenizer
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, MambaConfig

from specexp.base.kernels import CannotCompileError
from specexp.bench.record import write_records
from specexp.commands import doctor
from specexp.commands.doctor import Diagnosis, main

SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def by_topic(diagnoses: object) -> dict[str, Diagnosis]:
    return {diagnosis.topic: diagnosis for diagnosis in diagnoses}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_every_line_is_a_finding(capsys, monkeypatch):
    assert main(["--json"]) == 0
    diagnoses = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {
        "python",
        "specexp",
        "packages",
        "processor",
        "memory",
        "disk",
        "wandb",
        "compiled passes",
        "rows",
        "speculation",
    } <= {one["topic"] for one in diagnoses}
    assert {one["verdict"] for one in diagnoses} <= {"ok", "note"}


def test_a_missing_or_old_package_is_a_problem_and_ends_the_examination(capsys, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(doctor, "version", lambda name: {"optuna": "4.9.0"}.get(name) or real(name))
    assert main([]) == 1
    shown = capsys.readouterr().out
    assert "! optuna: 4.9.0 is installed, but optuna<6,>=5 is needed\n    pip install 'optuna<6,>=5'" in shown
    assert "compiled passes" not in shown


def test_a_machine_without_a_compiler_gets_a_note_with_the_reason(monkeypatch):
    def refuse(model: object) -> None:
        raise CannotCompileError("there is no C++ compiler")

    monkeypatch.setattr("specexp.models.compiled.CompiledModel", refuse)
    (diagnosis,) = doctor.compiled()
    assert (diagnosis.verdict, diagnosis.finding) == ("note", "there is no C++ compiler")


def test_instructions_and_a_busy_machine_are_noted(monkeypatch):
    monkeypatch.setattr("specexp.commands.doctor.device_name", lambda device: "Old with AVX2")
    monkeypatch.setattr("os.getloadavg", lambda: (99.0, 0.0, 0.0))
    found = by_topic(doctor.processor())
    assert "AVX2" in found["processor"].finding
    assert found["load"].finding.startswith("99.0 processes")


def test_a_folder_that_cannot_be_written_is_a_problem(monkeypatch):
    monkeypatch.setattr("os.access", lambda folder, how: False)
    assert {diagnosis.verdict for diagnosis in doctor.memory() if diagnosis.topic == "disk"} == {"problem"}


def test_a_cache_that_cannot_be_written_is_noted(monkeypatch, tmp_path):
    file = tmp_path / "a file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    found = {one.topic: one for one in doctor.services()}
    for topic, folder in (("smollm2", "models"), ("kernels", "kernels")):
        assert found[topic].finding == f"{file}/specexp/{folder} cannot be written"
        assert found[topic].advice.startswith("set XDG_CACHE_HOME to a writable folder")


@pytest.mark.parametrize(("threads", "noted"), [("many", True), ("4", False), ("4,2", False)])
def test_a_number_of_threads_that_torch_ignores_is_noted(monkeypatch, threads, noted):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert any("torch ignores" in one.finding for one in doctor.processor()) == noted


def test_the_drafts_of_a_run_are_judged_by_position(capsys, tmp_path):
    """A wrong pair and a healthy draft, 400 steps each."""
    accepted = {"wrong": (1, 0), "healthy": (280, 196)}
    made = [
        record(arm, 0, steps=400, draft_passes=800, drafted_nodes=800, drafted_at=(400, 400), accepted_at=counts)
        for arm, counts in accepted.items()
    ]
    write_records(tmp_path / "records.jsonl", made)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "- wrong: accepted by position: 0 %, 0 %"
    assert lines[1].strip().startswith("0.2 % of 400 first drafts are accepted, as by chance")
    assert lines[2] == "  healthy: accepted by position: 70 %, 49 %"


def test_a_folder_without_a_run_is_a_problem(capsys, tmp_path):
    assert main([str(tmp_path)]) == 2
    assert "has no records.jsonl or confirm.jsonl: name a folder that specexp" in capsys.readouterr().err
    (tmp_path / "confirm.jsonl").write_text("{}\n{}\n")
    assert main([str(tmp_path)]) == 2
    assert "confirm.jsonl, line 1: not a prompt record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "verdict", "finding"),
    [
        (LlamaConfig(**SIZES), "ok", "has compiled passes"),
        (GPTNeoXConfig(**SIZES), "note", "runs in mode eager, since compiled passes support Llama, Mistral"),
        (MambaConfig(num_hidden_layers=2), "problem", "linear_attention in layer 0): after a rejected draft the"),
    ],
    ids=["compiled", "eager", "refused"],
)
def test_a_model_is_judged_by_its_configuration(tmp_path, capsys, config, verdict, finding):
    config.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    if verdict != "problem":
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    else:
        save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert main([str(tmp_path), "--json"]) == (verdict == "problem")
    found = json.loads(capsys.readouterr().out)
    assert (found["topic"], found["verdict"]) == ("model", verdict)
    assert finding in found["finding"]
