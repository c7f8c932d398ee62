"""The contest of backends, from a file to a profile for each backend and tables that compare them."""

import csv
import sys

import pytest

from experiments.passes.contest import main
from specexp.config.artifacts import load_artifact

SHORT = {"max_tokens": 4, "prefixes": [8], "repeats": 2, "prompts": 2, "max_new_tokens": 10}
ARMS = {"chain": {"title": "a chain", "drafter": {"class_path": "DraftModel", "init_args": {"coupled": True}}}}


@pytest.mark.slow
def test_backends_are_measured_in_turns_and_have_a_profile_each(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    path = experiment(arms=ARMS, profile={**SHORT, "to": str(tmp_path / "profiles")})
    assert main([path, "--backends", "eager", "compiled", "openvino"]) == 0
    names = [load_artifact(tmp_path / "profiles" / backend / "best").profile.name for backend in ("eager", "compiled")]
    assert [name.rpartition(", ")[2] for name in names] == ["eager", "compiled"]
    folder = tmp_path / "runs" / "tiny"
    rows = list(csv.DictReader((folder / "points.csv").read_text().splitlines()))
    assert {(row["backend"], row["pass"]) for row in rows} == {
        ("eager", "target"), ("eager", "draft"),
        ("compiled", "target"), ("compiled", "draft"),
    }  # fmt: skip
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    assert [(row["backend"], row["arm"]) for row in steps] == [
        (backend, arm) for backend in ("eager", "compiled") for arm in ("plain decoding", "a chain")
    ]
    assert "openvino is left out: " in capsys.readouterr().out


def test_llama_cpp_runs_files_of_the_pair_beside_its_own_loop(experiment, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = experiment(arms=ARMS, profile={**SHORT, "to": str(tmp_path / "profiles")})
    assert main([path, "--backends", "llama.cpp"]) == 0
    assert load_artifact(tmp_path / "profiles" / "llama.cpp" / "best").measured.target_dtype == "float32"
    folder = tmp_path / "runs" / "tiny"
    rows = csv.DictReader((folder / "points.csv").read_text().splitlines())
    assert "llama_decode of a chain" in {row["pass"] for row in rows}
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    assert steps[-1]["backend"].startswith("llama.cpp's loop")


def test_a_contest_without_a_backend_that_runs_the_pair_is_one_sentence(experiment, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    path = experiment(profile={**SHORT, "to": str(tmp_path / "profiles")})
    assert main([path, "--backends", "openvino", "--profile.repeats", "3"]) == 2  # it uses the section profile
    assert "none of these backends can run the pair: openvino is left out" in capsys.readouterr().err
