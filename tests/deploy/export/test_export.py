"""``python -m specexp.export``: every format, and every way of asking for it wrongly."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specexp.artifacts import Artifact, ArtifactError
from specexp.builders import TokenRecyclingTree
from specexp.config.artifacts import save_artifact
from specexp.deploy.export.command import export, main
from specexp.deploy.export.export_format import all_formats
from specexp.deploy.export.formats.model_folder import HuggingFaceModel
from specexp.models.pair import load_pair

DRAFT = {"class_path": "specexp.drafters.DraftModel"}


@pytest.fixture
def paper(tmp_path: Path) -> Artifact:
    payloads = {"tree.json": TokenRecyclingTree().rank_paths, "parts.json": {"drafter": DRAFT}}
    return save_artifact(tmp_path / "tree", "static-tree", payloads)


def test_a_generation_config_keeps_the_best_chain_and_the_other_keys_of_the_file(
    paper: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import GenerationConfig

    file = tmp_path / "generation_config.json"
    file.write_text('{"eos_token_id": [1, 2], "num_assistant_tokens": 20}')
    assert main([str(paper.folder), "--to", "hf-generation-config", "--output", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{file}\n"
    words = ("best chain, of length 6", "74 of 80 nodes", "draft's folder", "; written for transformers 5.23\n")
    assert all(one in err for one in words)
    config = GenerationConfig.from_pretrained(file.parent)
    assert (config.num_assistant_tokens, config.eos_token_id) == (6, [1, 2])
    assert config.num_assistant_tokens_schedule == "constant"
    assert config.assistant_confidence_threshold == 0


@pytest.mark.slow
def test_an_embedded_model_becomes_an_ordinary_folder(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,), _ = export("stdlib-small", "hf", tmp_path / "small")
    pair = load_pair("stdlib-small")
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, weight in pair.target.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == pair.tokenizer.get_vocab()
    with pytest.raises(ArtifactError, match="already exists"):
        export("stdlib-small", "hf", tmp_path / "small")


@pytest.mark.slow
def test_what_shares_weights_with_its_target_becomes_whole(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from specexp.drafters.eagle3_network import Eagle3Network

    pair = load_pair("smollm2", "smollm2", mode="eager")
    output = pair.target.get_output_embeddings().weight
    (folder,), _ = export("smollm2-draft", "hf", tmp_path / "draft")
    draft = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(draft.get_output_embeddings().weight, output.to(torch.bfloat16))
    (folder,), _ = export("smollm2:eagle3", "hf", tmp_path / "head")
    head = Eagle3Network.load(folder)
    assert torch.equal(head.lm_head.weight, output[head.kept].to(torch.bfloat16))
    commands = {name: HuggingFaceModel().deployed_by(name, [tmp_path / name]) for name in ("draft", "head")}
    assert commands["draft"] == "transformers serve draft"
    assert commands["head"].startswith(
        "python -m vllm.entrypoints.openai.api_server --model MODEL --speculative-config"
    )
    assert str(tmp_path / "head") in commands["head"]


def test_of_a_schedule_the_best_chain_is_kept_and_the_strategy_dropped(tmp_path: Path) -> None:
    strategy = {"class_path": "Scheduled", "init_args": {"n": 3, "policy": {"class_path": "FirstCome"}}}
    parts = {
        "drafter": {"class_path": "DraftModel"},
        "builder": {"class_path": "KConfig", "init_args": {"widths": [2, 2, 1]}},
    }
    payloads = {"schedule.json": strategy, "parts.json": parts}
    folder = save_artifact(tmp_path / "schedule", "schedule", payloads).folder

    content, dropped = export(folder, "hf-generation-config")
    assert content["num_assistant_tokens"] == 3
    assert "kept the tree's best chain, of length 3; dropped the strategy Scheduled(n=3, policy=FirstCome," in dropped
    assert "7 of 10 nodes" in dropped

    payloads["parts.json"] = {**parts, "builder": {"class_path": "DySpecThreshold"}}
    folder = save_artifact(tmp_path / "grown", "schedule", payloads).folder
    with pytest.raises(ArtifactError, match="the trees of DySpecThreshold differ from step to step"):
        export(folder, "hf-generation-config")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tree}", "--to", "openvin"], "did you mean 'openvino'?"),
        (["{tree}", "--to", "xml"], f"allowed are {', '.join(all_formats())}"),
        (["{tree}/v9", "--to", "hf-generation-config"], "no such artifact folder"),
        (["{tree}", "--to", "hf-generation-config", "--output", "{tree}"], "must be a file, got the folder"),
        (["{tree}", "--to", "hf-generation-config", "--output", "{tree}/best.json/x"], "cannot be written"),
        (["{tree}", "--to", "hf-generation-config", "--output", "{tree}/v1/tree.json"], "is not a JSON object"),
        (["{matrix}", "--to", "sglang"], "'adjacency-matrix' cannot be exported to sglang"),
        (["{matrix}", "--to", "vllm"], "the artifact records no builder"),
        (["{tree}/v1", "--to", "hf"], "--to hf takes a model or a head, got the artifact"),
        (["smollm2:eagle3", "--to", "vllm"], "is a draft head, not an artifact: python -m specexp.export"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    paper: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    import numpy as np

    matrix = {"matrix.safetensors": {"matrix": np.zeros((3, 2), np.int32)}}
    save_artifact(tmp_path / "matrix", "adjacency-matrix", matrix)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    places = {"tree": paper.folder.parent, "matrix": tmp_path / "matrix"}

    assert main([argument.format(**places) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (err.count("\n"), out) == (1, "")
    assert before == {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("command", ["export", "serve"])
def test_help_needs_no_model_library(command: str) -> None:
    words = [sys.executable, "-X", "importtime", "-m", f"specexp.{command}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"usage: python -m specexp.{command}")
    assert " torch\n" not in done.stderr
