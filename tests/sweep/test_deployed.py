"""A study exports what it measured: a warm winner, and no ``best`` if nothing is faster.

A latency profile models the seconds, so that the winner does not depend on the load of this machine.
"""

import json
import shutil
from pathlib import Path

import pytest
from helpers import made_artifacts as made
from helpers.made_records import record
from helpers.small_study import DEAR, FREE, study, write

import specexp
from specexp.artifacts import ArtifactError
from specexp.bench.arm import eos_of, sequence_name
from specexp.bench.statistics import metric_interval
from specexp.config import build_data, load_config
from specexp.config.load import with_prompts_of
from specexp.sweep.command import main


@pytest.fixture(scope="module")
def ended(tmp_path_factory, study_model):
    folder = tmp_path_factory.mktemp("ended")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "disabled")
        assert main([write(study(study_model, FREE)), "--require-gain"]) == 0
    return folder


@pytest.fixture
def gained(ended, tmp_path, monkeypatch):
    """The file of that study, in a folder of its own."""
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return "small.yaml"


def answers(artifact, *, anew=False):
    """Its decoder's answers to the prompts of the confirmation; ``anew`` loads it for each."""
    config = load_config("runs/small/config.yaml")
    pair = specexp.load_pair(config.get("pair.target"), target_dtype="float32")
    data = build_data(with_prompts_of(config, "confirm"), pair.tokenizer)
    decoder = artifact.decoder(pair.target)
    for prompt in data.prompts:
        if anew:
            decoder = specexp.load_artifact(artifact.folder).decoder(pair.target)
        yield decoder.generate(
            prompt.token_ids,
            max_new_tokens=config.get("generation.max_new_tokens"),
            eos_token_id=eos_of(pair.tokenizer, pair.target),
            seed=config.get("generation.seed"),
            sequence=sequence_name(prompt, 0),
        )


def tokens_per_step(results):
    found = list(results)
    return sum(len(one.token_ids) for one in found) / sum(one.steps for one in found)


@pytest.mark.slow
def test_a_winner_measured_warm_is_deployed_warm(gained):
    artifact = specexp.load_artifact("artifacts/small")
    assert artifact.kind == "static-tree"
    assert artifact.folder == specexp.load_artifact("artifacts/small/best-tree").folder
    assert artifact.state_bytes > 4 * 257 * 4
    assert (artifact.provenance["runtime"], artifact.provenance["dtype"]) == ("eager", "float32")
    speedup, stated = artifact.metrics["modelled_speedup_over_plain"], artifact.metrics["tokens_per_step"]
    assert speedup["low"] > 1
    deployed = tokens_per_step(answers(artifact))
    assert stated["low"] <= deployed <= stated["high"]
    assert deployed == pytest.approx(stated["value"])


def test_the_command_of_a_study_that_has_ended_prints_its_result_and_measures_nothing(gained, capsys, monkeypatch):
    def load_nothing(config, weights):
        raise AssertionError("a finished study needs no model")

    monkeypatch.setattr("specexp.sweep.study_config.build_pair", load_nothing)
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert main([gained, "--require-gain"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("plain decoding", "artifacts/small/v1, with its learned state (", "so nothing was measured"):
        assert text in printed
    after = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} <= {
        Path("runs/small/.lock"),
        Path("runs/small/journal.log"),
    }
    assert not Path("artifacts/small/v2").exists()


def test_an_artifact_is_not_searched(gained, capsys):
    assert main([gained, "--artifact", "artifacts/small/best"]) == 2
    error = capsys.readouterr().err
    assert "--artifact names one setting, so nothing is searched: leave it out to search, or use" in error
    assert "python -m specexp.run small.yaml --artifact artifacts/small/best" in error


@pytest.mark.slow
def test_a_winner_exported_cold_states_what_a_first_request_gets(gained, capsys):
    assert main([gained, "--cold"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    artifact = specexp.load_artifact("artifacts/small/best")
    assert (artifact.folder.name, artifact.state_bytes) == ("v2", 0)
    cold = artifact.metrics["cold_tokens_per_step"]["value"]
    assert f"It starts cold, as configured: a first request has {cold:.2f} tokens per step" in printed
    assert "modelled_cold_speedup_over_plain" in artifact.metrics
    assert tokens_per_step(answers(artifact, anew=True)) == pytest.approx(cold)


@pytest.mark.slow
def test_there_is_no_best_if_nothing_is_faster(study_model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    file = write(study(study_model, DEAR))
    assert main([file]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "artifacts/small/best is not written, because no static-tree is shown to be faster" in printed
    assert "best-tree" not in printed.split("Next: ")[1]
    with pytest.raises(ArtifactError, match=r"best\.json is missing; name one of best-tree, v1"):
        specexp.load_artifact("artifacts/small")
    tree = specexp.load_artifact("artifacts/small/best-tree")
    assert (tree.kind, tree.folder.name) == ("static-tree", "v1")
    stated = tree.metrics["tokens_per_step"]
    assert stated["low"] <= tokens_per_step(answers(tree)) <= stated["high"]

    assert main([file, "--require-gain"]) == 3
    assert not Path("artifacts/small/v2").exists()


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"drafter": {"matrix": {"tensor": "x"}}}, "uses the tensor 'x', which state.safetensors does not"),
        ({"drafter": {"rows": {"tensor": "drafter.matrix"}}}, "state.json: drafter does not fit this part"),
        ({"drafter": {"a": 1}}, "state.json does not use the tensor 'drafter.matrix' of state.safetensors"),
        ({}, "state.json must not be empty"),
    ],
)
def test_a_state_that_is_not_the_parts_own_is_refused(gained, state, text):
    folder = Path("artifacts/small/v1")
    made.rewrite(folder, "state.json", json.dumps(state).encode())
    with pytest.raises(ArtifactError) as caught:
        specexp.load_artifact(folder)
    assert text in str(caught.value)


def test_the_interval_of_a_metric_is_over_prompts():
    records = [record("a", prompt, steps=1 + prompt % 2) for prompt in range(16)]
    low, high = metric_interval(records, "a", "tokens_per_step") or (0.0, 0.0)
    assert 2 < low < 64 / 24 < high < 4
    assert metric_interval(records[:1], "a", "tokens_per_step") is None
