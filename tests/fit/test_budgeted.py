"""Training on a budget of tokens: a killed run continues, and processes train as one."""

import csv
import json
import subprocess
import sys

import pytest
import torch
import yaml
from helpers.small_models import tiny_llama
from lightning.pytorch.loggers import CSVLogger
from safetensors.torch import load_file
from transformers import AutoTokenizer

from specexp.fit.command import fit, main, read_fit
from specexp.fit.heads import lr_scale

STEP = 2 * 32
"""Tokens of a step, which is two batches of a row."""


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Return the folder of a small random target with 48 tokens."""
    folder = tmp_path_factory.mktemp("target")
    text = "def f(x):\n    return x + 1\n"
    embedded = AutoTokenizer.from_pretrained("specexp/models/stdlib/target")
    model = tiny_llama(0)
    tokenizer = embedded.train_new_from_iterator([text] * 5, vocab_size=280)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"def f{i}(x):\n    return x + {i}\n"}) + "\n" for i in range(99)))
    return folder


def config(target, work, steps):
    """Return a training of Medusa's heads for the small target, as a file describes it."""
    model = {"target": str(target), "heads": 1, "tokens": steps * STEP}
    data = {"tokenizer_from": str(target), "texts": str(target / "texts.jsonl"), "row_length": 32, "batch_size": 1}
    return {
        "work_dir": str(work),
        "export_to": str(work / "export"),
        "model": {"class_path": "specexp.fit.heads.MedusaTraining", "init_args": model},
        "data": {"class_path": "experiments.heads.text_rows.TextRows", "init_args": data},
        "trainer": {
            "logger": False,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "val_check_interval": 8,
            "accumulate_grad_batches": 2,
        },
        "checkpoint_every": 2,
    }


def train(target, work, stop_at=-1):
    """Train for ``stop_at`` of six steps; the default trains all."""
    work.mkdir(exist_ok=True)
    (work / "config.yaml").write_text(yaml.safe_dump(config(target, work, 6)))
    values = read_fit(work / "config.yaml")
    values["trainer"] |= {"logger": CSVLogger(work / "logs"), "log_every_n_steps": 1, "max_steps": stop_at}
    fit(**values)
    return values["model"]


def losses(work):
    """Return the training losses of all runs in a folder, in order."""
    found = []
    for file in sorted(work.glob("logs/lightning_logs/version_*/metrics.csv")):
        with file.open() as lines:
            found += [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    return found


def test_a_killed_run_continues_with_the_same_losses_and_weights(target, tmp_path):
    whole = train(target, tmp_path / "whole")
    train(target, tmp_path / "killed", stop_at=4)
    resumed = train(target, tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert len(losses(tmp_path / "whole")) == 6
    for name, value in whole.head.state_dict().items():
        assert torch.equal(value, resumed.head.state_dict()[name]), name
    written = {file.suffix for file in (tmp_path / "whole" / "export").rglob("*")}
    assert not written & {".bin", ".pt", ".pkl", ".ckpt"}


def test_the_learning_rate_rises_stays_and_falls_with_the_tokens():
    assert [lr_scale(step, step / 1000) for step in (0, 29, 100, 200, 600)] == [1 / 60, 0.5, 1.0, 1.0, 0.5]
    assert lr_scale(1000, 1.0) == 0.005


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.init_args.tokns", "5"], "did you mean 'model.init_args.tokens'"),
        (["--model.init_args.tokens", "0"], "model.init_args.tokens must be >= 1, got 0"),
        (["--model.class_path", "experiments.heads.text_rows.TextRows"], "is not a LightningModule"),
        (["--trainer.precisoin", "32-true"], "did you mean 'trainer.precision'"),
        (["--trainer.precision", "8bit", "--dry-run"], "command line: trainer.precision: Precision '8bit'"),
        (["--trainer.devices", "0", "--dry-run"], "command line: trainer.devices: `Trainer(devices=0)`"),
        (["--trainer.max_time", "5x"], "command line: trainer.max_time: `Timer(duration='5x')`"),
        (["--trainer.enable_checkpointing", "false", "--dry-run"], "command line: trainer.enable_checkpointing: "),
        (["--work_folder", "runs"], "work_folder is unknown"),
    ],
)
def test_the_command_names_a_mistake_in_one_sentence(arguments, words, capsys):
    assert main(["experiments/heads/medusa.yaml", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_two_processes_train_as_one(target, tmp_path):
    """With batches of half the size, from the command line, up to the rounding of sums in another order."""

    def trained(name, batch_size, steps, *arguments):
        values = config(target, tmp_path / name, steps)
        values["data"]["init_args"] |= {"batch_size": batch_size}
        values["trainer"] |= {"limit_val_batches": 0}
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(values))
        command = [sys.executable, "-m", "specexp.fit", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return load_file(next((tmp_path / name / "export").rglob("head.safetensors")))

    alone = trained("alone", 4, 24)

    def distance(weights):
        return sum(float((weights[key].double() - weight.double()).abs().sum()) for key, weight in alone.items())

    shared = trained("shared", 2, 24, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    assert distance(shared) < 0.2 * distance(trained("half", 2, 12))


@pytest.mark.parametrize("name", ["eagle", "eagle3", "medusa", "suffix_corpus"])
def test_the_command_runs_the_shipped_recipe(name, target, tmp_path):
    """In its smoke form: the small target, two steps, and a few texts."""
    small = config(target, tmp_path, 2)
    given = [f"--data.init_args.{key}={value}" for key, value in small["data"]["init_args"].items()]
    given += [f"--trainer.{key}={json.dumps(value)}" for key, value in small["trainer"].items()]
    given += ["--trainer.limit_val_batches=0", "--trainer.precision=32-true", "--model.init_args.tokens", str(2 * STEP)]
    if name == "suffix_corpus":  # optimizes by hand
        given += ["--trainer.accumulate_grad_batches=1"]
    else:
        given += ["--model.init_args.target", str(target)]
    if name == "eagle":
        given += ["--model.init_args.heads=2", "--model.init_args.inner=16"]
    if name == "eagle3":
        given += ["--model.init_args.layers=[0,1,1]"]
    folders = ["--work_dir", str(tmp_path / "work"), "--export_to", str(tmp_path / "export")]
    assert main([f"experiments/heads/{name}.yaml", *given, *folders]) == 0
    assert list((tmp_path / "export").rglob("*.safetensors"))
