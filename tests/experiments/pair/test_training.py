from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from experiments.pair.module import CausalLMTraining
from specexp.fit.command import fit, main, read_fit
from specexp.models.pair import load_pair

RECIPES = Path(__file__).parents[3] / "experiments" / "pair"
OTHER_SIZES = ("draft_small",)
"""Recipes like ``draft`` and those but for the architecture, which the smoke form replaces."""
LIBRARY = "experiments.pair.corpus.python_source.PythonLibrary"
ARCHITECTURE = {
    "vocab_size": 400,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
STEP = 2 * 128
"""Tokens of a step, which is two batches of a row."""


def config(cache: Path, work: Path, steps: int = 6, **arguments: Any) -> dict[str, Any]:
    """A training of the small model on the small library, as a file describes it."""
    return {
        "work_dir": str(work),
        "export_to": str(work / "export"),
        "model": {
            "class_path": "experiments.pair.module.CausalLMTraining",
            "init_args": {
                "architecture": ARCHITECTURE,
                **{"tokens": steps * STEP, "repetition_from": 0.3, "mean_every": 1},
                **arguments,
            },
        },
        "data": {
            "class_path": "experiments.pair.training_rows.CorpusRows",
            "init_args": {
                "cache_dir": str(cache),
                "tokenizer_from": str(cache / "tokenizer"),
                "sources": {"library": {"class_path": LIBRARY}},  # read from the cache
                **{"row_length": 128, "batch_size": 1, "validation_rows": 2},
            },
        },
        "trainer": {
            "logger": False,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "val_check_interval": 8,
            "accumulate_grad_batches": 2,
        },
        "checkpoint_every": 2,
    }


def train(work: Path, cache: Path, steps: int = 6, *, stop_at: int = -1, **arguments: Any) -> Any:
    """Train in this process, for ``stop_at`` steps of the budget, and return the module."""
    from lightning.pytorch.loggers import CSVLogger

    file = work / "config.yaml"
    work.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(config(cache, work, steps, **arguments)))
    values = read_fit(file)
    values["trainer"] |= {"logger": CSVLogger(work / "logs"), "log_every_n_steps": 1, "max_steps": stop_at}
    fit(**values)
    return values["model"]


def losses(work: Path) -> list[float]:
    """Training losses of all runs in a work folder, in order."""
    values = []
    for file in sorted(work.glob("logs/lightning_logs/version_*/metrics.csv")):
        with file.open() as lines:
            values += [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    return values


@pytest.fixture(scope="module")
def whole(cache, tmp_path_factory):
    work = tmp_path_factory.mktemp("whole")
    return work, train(work, cache)


def test_a_killed_run_continues_with_the_same_losses_and_weights(whole, cache, tmp_path):
    train(tmp_path, cache, stop_at=4)
    resumed = train(tmp_path, cache)
    assert losses(tmp_path) == losses(whole[0])
    assert len(losses(tmp_path)) == 6
    for name, value in whole[1].model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_an_export_loads_as_a_pair_and_has_no_pickle(whole):
    folder = whole[0] / "export"
    assert not {file.suffix for file in folder.iterdir()} & {".bin", ".pt", ".pkl", ".ckpt"}
    pair = load_pair(str(folder), str(folder), draft_dtype="bfloat16")
    assert pair.target.dtype == torch.bfloat16
    assert pair.draft is not None
    trained = whole[1].model.state_dict()["model.norm.weight"]
    assert torch.equal(pair.target.state_dict()["model.norm.weight"], trained.bfloat16())
    ids = torch.tensor([pair.tokenizer("def f(x):")["input_ids"]])
    assert pair.target(ids).logits.shape == (1, ids.shape[1], 400)


def test_a_student_learns_from_its_teacher(whole, cache, tmp_path):
    ordinary: dict[str, Any] = {"repetition_from": 1.0}
    teacher = {"teacher": str(whole[0] / "export"), **ordinary}
    student = train(tmp_path / "student", cache, 3, distillation=1.0, **teacher)
    assert student.tokens_done == 3 * STEP
    assert not any("teacher" in name for name in student.state_dict())
    late = train(tmp_path / "late", cache, 4, distill_from=0.5, **teacher)
    alone = train(tmp_path / "alone", cache, 4, **ordinary)
    before = [losses(tmp_path / name)[:3] for name in ("late", "alone")]
    assert before[0] == before[1]  # two steps on text alone come before the third loss
    assert not torch.equal(late.model.lm_head.weight, alone.model.lm_head.weight)


def test_the_learning_rate_rises_stays_and_falls_with_the_tokens():
    def scale(step: int, plateau: float) -> float:
        training = CausalLMTraining(ARCHITECTURE, tokens=1000 * STEP, plateau=plateau)
        training._batch_tokens = STEP
        training._trainer = SimpleNamespace(global_step=step, accumulate_grad_batches=1)  # type: ignore[assignment]
        return training.lr_scale()

    assert [scale(step, 0.5) for step in (0, 29, 300, 750)] == [1 / 60, 0.5, 1.0, 0.5]
    assert scale(1000, 0.5) == 0.005
    assert scale(1000, 1.0) == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.init_args.tokns", "5"], "did you mean 'model.init_args.tokens'"),
        (["--model.init_args.tokens", "0"], "model.init_args.tokens must be >= 1, got 0"),
        (["--model.class_path", "experiments.pair.training_rows.CorpusRows"], "is not a LightningModule"),
        (["--trainer.precisoin", "32-true"], "did you mean 'trainer.precision'"),
        (["--work_folder", "runs"], "work_folder is unknown"),
    ],
)
def test_the_command_names_a_mistake_in_one_sentence(arguments, words, capsys):
    assert main([str(RECIPES / "target.yaml"), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_two_processes_train_as_one(cache, tmp_path):
    """With batches of half the size, from the command line, up to the rounding of sums in another order."""

    def trained(name: str, batch_size: int, steps: int, *arguments: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        values = config(cache, tmp_path / name, steps, repetition_from=1.0)
        values["data"]["init_args"] |= {"batch_size": batch_size}
        values["trainer"] |= {"limit_val_batches": 0}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values))
        command = [sys.executable, "-m", "specexp.fit", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return load_file(tmp_path / name / "export" / "model.safetensors")

    alone = trained("alone", 4, 24)

    def distance(weights: dict[str, torch.Tensor]) -> float:
        return sum(
            float((weights[key].double() - weight.double()).abs().sum()) for key, weight in alone.items()
        )

    shared = trained("shared", 2, 24, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    assert distance(shared) < 0.2 * distance(trained("half", 2, 12))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OTHER_SIZES else [])
        for name in sorted(path.stem for path in RECIPES.glob("*.yaml") if "specexp.fit" in path.read_text())
    ],
)
def test_the_command_runs_the_shipped_recipe(name, whole, cache, tmp_path):
    """In its smoke form: a smaller architecture, two steps, and the small library as its only source."""
    from specexp.config.layers import read_layers

    values: dict[str, Any] = dict(read_layers(RECIPES / f"{name}.yaml").values)
    small = config(cache, tmp_path, 2)
    model = values["model"]["init_args"]
    model |= {"architecture": ARCHITECTURE, "tokens": 2 * STEP}
    model |= {role: str(whole[0] / "export") for role in ("start", "teacher") if model.get(role)}
    values["data"]["init_args"] |= {**small["data"]["init_args"], "weights": None}
    values |= {key: small[key] for key in ("work_dir", "export_to")}
    values["trainer"] |= {**small["trainer"], "val_check_interval": 2}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    assert main([str(file), "--data.init_args.seed", "3"]) == 0
    assert (tmp_path / "export" / "model.safetensors").is_file()
    assert (tmp_path / "checkpoints" / "last.ckpt").is_file()


def test_a_stage_starts_from_exported_weights(whole):
    stage = CausalLMTraining(ARCHITECTURE, tokens=1, start=str(whole[0] / "export"))
    trained = whole[1].model.state_dict()
    for name, value in stage.model.state_dict().items():
        assert torch.equal(value, trained[name].bfloat16().float()), name
    assert stage.tokens_done == 0


def test_the_end_of_a_plateau_can_be_averaged_also_after_a_kill(cache, tmp_path):
    def weights(work: str, steps: int = 6, **more: Any) -> dict[str, torch.Tensor]:
        module = train(tmp_path / work, cache, steps, plateau=1.0, repetition_from=1.0, **more)
        return {name: weight.double() for name, weight in module.model.state_dict().items()}

    last = [weights(f"alone {steps}", steps) for steps in (4, 5, 6)]
    mean = weights("mean", mean_from=0.5)
    weights("killed", stop_at=5, mean_from=0.5)
    resumed = weights("killed", mean_from=0.5)
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(one[name] for one in last) / 3, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(resumed[name], weight, rtol=1e-5, atol=1e-6)


def test_a_narrower_start_grows_without_changing_its_logits(whole):
    """New weights contribute nothing at first, and learn from the first step on."""
    start = str(whole[0] / "export")
    heads = ARCHITECTURE["num_attention_heads"] * 2
    shape = {"hidden_size": 2 * ARCHITECTURE["hidden_size"], "num_attention_heads": heads}
    wide = CausalLMTraining(
        {**ARCHITECTURE, **shape, "num_key_value_heads": heads, "intermediate_size": 80},
        tokens=1,
        start=start,
    ).model
    same = CausalLMTraining(ARCHITECTURE, tokens=1, start=start).model
    tokens = torch.arange(40)[None]
    torch.testing.assert_close(
        wide(input_ids=tokens).logits, same(input_ids=tokens).logits, rtol=1e-4, atol=1e-5
    )
    wide(input_ids=tokens).logits.square().mean().backward()
    layer, old = wide.model.layers[0], same.model.layers[0]
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        new, before = layer.get_submodule(name).weight, old.get_submodule(name).weight
        assert new.grad[:, before.shape[1] :].any(), "new heads and neurons learn"
        assert new.grad[before.shape[0] :].any(), "new channels learn"


@pytest.mark.parametrize(
    ("role", "change", "sentence"),
    [
        ("start", {"num_hidden_layers": 3}, "must have the architecture's number of layers"),
        ("start", {"head_dim": 4}, "must have the architecture's number of layers"),
        ("teacher", {"vocab_size": 401}, "must have architecture.vocab_size = 401 tokens, got 400"),
    ],
)
def test_a_start_or_teacher_of_another_shape_is_refused(whole, role, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        CausalLMTraining({**ARCHITECTURE, **change}, tokens=1, **{role: str(whole[0] / "export")})
