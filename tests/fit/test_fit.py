from __future__ import annotations

import csv
import itertools
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from experiments.pair.corpus.python_source import PythonLibrary
from specexp.fit.command import fit, main
from specexp.models.pair import load_pair

RECIPES = Path(__file__).parents[2] / "experiments" / "pair"
OTHER_SIZES = ("draft_small", "target_large")
"""Recipes like ``draft`` and ``target_decay`` but for the architecture, which the smoke form replaces."""
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


def train(
    work: Path,
    cache: Path,
    *,
    stop_at: int = -1,
    export_to: Path | None = None,
    **arguments: Any,
) -> Any:
    from lightning.pytorch.loggers import CSVLogger

    from experiments.pair.module import CausalLMTraining
    from specexp.fit.data import CorpusRows

    arguments = {"max_steps": 6, "repetition_from": 0.3, "mean_every": 1, **arguments}
    model = CausalLMTraining(ARCHITECTURE, **arguments)
    sources: dict[str, Any] = {
        "library": PythonLibrary(),
        "library-tests": PythonLibrary("tests"),
    }  # as in the cache
    data = CorpusRows(str(cache), sources, row_length=128, batch_size=2, validation_rows=2, vocab_size=400)
    trainer = {
        "logger": CSVLogger(work / "logs"),
        "log_every_n_steps": 1,
        "max_steps": stop_at,
        "val_check_interval": 4,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    given = {"work_dir": work, "export_to": export_to, "checkpoint_every": 2}
    fit(model, data, trainer=trainer, **given)
    return model


def losses(work: Path) -> list[float]:
    """Training losses of all runs in a work folder, in order."""
    values = []
    for file in sorted(work.glob("logs/lightning_logs/version_*/metrics.csv")):
        with file.open() as lines:
            values += [float(row["train/loss"]) for row in csv.DictReader(lines) if row.get("train/loss")]
    return values


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    work = tmp_path_factory.mktemp("whole")
    return work, train(work, cache, export_to=work / "export")


def test_a_killed_run_continues_with_the_same_losses_and_weights(
    whole: tuple[Path, Any], cache: Path, tmp_path: Path
) -> None:
    train(tmp_path, cache, stop_at=4)
    resumed = train(tmp_path, cache)
    assert losses(tmp_path) == losses(whole[0])
    assert len(losses(tmp_path)) == 6
    for name, value in whole[1].model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_a_finished_run_trains_no_further(whole: tuple[Path, Any], cache: Path) -> None:
    before = {name: value.clone() for name, value in whole[1].model.state_dict().items()}
    again = train(whole[0], cache)
    assert again.batches_done == 6
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in before.items())


def test_an_export_loads_as_a_pair_and_has_no_pickle(whole: tuple[Path, Any]) -> None:
    folder = whole[0] / "export"
    assert not {file.suffix for file in folder.iterdir()} & {".bin", ".pt", ".pkl", ".ckpt"}
    pair = load_pair(str(folder), str(folder), draft_dtype="bfloat16")
    assert pair.target.dtype == torch.bfloat16
    assert pair.draft is not None
    trained = whole[1].model.state_dict()["model.norm.weight"]
    assert torch.equal(pair.target.state_dict()["model.norm.weight"], trained.bfloat16())
    ids = torch.tensor([pair.tokenizer("def f(x):")["input_ids"]])
    assert pair.target(ids).logits.shape == (1, ids.shape[1], 400)


def test_a_student_learns_from_its_teacher_alone(
    whole: tuple[Path, Any], cache: Path, tmp_path: Path
) -> None:
    teacher = str(whole[0] / "export")
    student = train(tmp_path, cache, max_steps=3, teacher=teacher, distillation=1.0, repetition_from=1.0)
    assert student.batches_done == 3
    assert not any("teacher" in name for name in student.state_dict())
    late = train(
        tmp_path / "late", cache, max_steps=4, teacher=teacher, repetition_from=1.0, distill_from=0.5
    )
    alone = train(tmp_path / "alone", cache, max_steps=4, repetition_from=1.0)
    told = [losses(tmp_path / name)[:3] for name in ("late", "alone")]
    assert told[0] == told[1]  # the third one is of what two steps on text alone made
    assert not torch.equal(late.model.lm_head.weight, alone.model.lm_head.weight)


def test_a_budget_in_minutes_ends_the_training(cache: Path, tmp_path: Path) -> None:
    model = train(tmp_path, cache, max_steps=None, minutes=0.01)
    assert model.progress == 1.0
    assert model.lr_scale() < 0.01


def test_wrong_arguments_are_refused() -> None:
    from experiments.pair.module import CausalLMTraining

    with pytest.raises(ValueError, match="neither minutes nor max_steps"):
        CausalLMTraining(ARCHITECTURE)


def test_a_teacher_with_another_vocabulary_is_refused(whole: tuple[Path, Any]) -> None:
    from experiments.pair.module import CausalLMTraining

    with pytest.raises(ValueError, match=r"has 400 tokens, but architecture.vocab_size is 401"):
        CausalLMTraining({**ARCHITECTURE, "vocab_size": 401}, max_steps=1, teacher=str(whole[0] / "export"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model.init_args.minuts", "5"], "did you mean 'model.init_args.minutes'"),
        (["--model.init_args.seed", "first"], "model.init_args.seed is 'first'; allowed is an integer"),
        (["--model.class_path", "specexp.fit.data.CorpusRows"], "is no LightningModule"),
        (["--model.init_args.minutes", "null"], "model: a training needs a budget"),
        (["--trainer.precisoin", "32-true"], "did you mean 'trainer.precision'"),
        (["--checkpoint_every", "0"], "an integer of at least 1"),
        (["--work_folder", "runs"], "unknown key 'work_folder'"),
    ],
)
def test_the_command_names_a_mistake_in_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(RECIPES / "target.yaml"), *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_source_that_is_not_there_is_named_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {
        "class_path": "experiments.pair.corpus.documentation.PythonDocumentation",
        "init_args": {"path": "missing"},
    }
    config = yaml.safe_load((RECIPES / "target.yaml").read_text())
    config["model"]["init_args"].update(architecture=ARCHITECTURE)
    config["data"]["init_args"].update(
        cache_dir=str(tmp_path / "cache"), sources={"docs": source}, weights=None
    )
    config.update(work_dir=str(tmp_path), trainer={"logger": False, "accelerator": "cpu"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert main([str(tmp_path / "config.yaml")]) == 2
    assert "error: missing: there is no page" in capsys.readouterr().err


def test_the_command_names_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


def test_processes_share_the_stream_of_rows_out() -> None:
    """Their batches beside each other are those of one process with a batch as many times as large."""
    from specexp.fit.data import MixedRows

    documents = {
        "a": [[number] * 5 for number in range(40)],
        "b": [[100 + number] * 3 for number in range(40)],
    }

    def taken(count: int, **arguments: int) -> list[torch.Tensor]:
        return list(
            itertools.islice(MixedRows(documents, {"a": 1, "b": 1}, row_length=4, **arguments), count)
        )

    alone = taken(6, batch_size=4)
    first, second = (taken(6, batch_size=2, first_batch=rank, every=2) for rank in (0, 1))
    assert all(torch.equal(torch.cat(pair), one) for *pair, one in zip(first, second, alone, strict=True))
    goes_on = taken(2, batch_size=2, first_batch=4 * 2 + 1, every=2)  # the second process after four steps
    assert all(torch.equal(a, b) for a, b in zip(goes_on, second[4:], strict=True))


@pytest.mark.slow
def test_two_processes_train_what_one_does(cache: Path, tmp_path: Path) -> None:
    """With batches of half the size, from the command line, up to the rounding of sums in another order."""

    def trained(name: str, batch_size: int, *arguments: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        config = {
            "work_dir": str(tmp_path / name / "work"),
            "export_to": str(tmp_path / name / "export"),
            "model": {
                "class_path": "experiments.pair.module.CausalLMTraining",
                "init_args": {"architecture": ARCHITECTURE, "max_steps": 12, "repetition_from": 1.0},
            },
            "data": {
                "class_path": "specexp.fit.data.CorpusRows",
                "init_args": {
                    "cache_dir": str(cache),
                    "sources": {
                        "library": {"class_path": "experiments.pair.corpus.python_source.PythonLibrary"}
                    },
                    "row_length": 128,
                    "batch_size": batch_size,
                    "vocab_size": 400,
                },
            },
            "trainer": {"logger": False, "accelerator": "cpu", "limit_val_batches": 0},
        }
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "specexp.fit", str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        return load_file(tmp_path / name / "export" / "model.safetensors")

    alone = trained("alone", 4)

    def distance(weights: dict[str, torch.Tensor]) -> float:
        return sum(
            float((weights[key].double() - weight.double()).abs().sum()) for key, weight in alone.items()
        )

    shared = trained("shared", 2, "--trainer.devices", "2", "--trainer.strategy", "ddp")
    assert distance(shared) < 0.2 * distance(trained("half", 2))


def test_a_cluster_is_not_for_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECIPES / "draft.yaml"), "--on", "local", "--workers", "2"]) == 2
    told = capsys.readouterr().err
    assert "--trainer.devices N" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OTHER_SIZES else [])
        for name in sorted(path.stem for path in RECIPES.glob("*.yaml") if "specexp.fit" in path.read_text())
    ],
)
def test_the_command_runs_the_shipped_recipe(
    name: str, whole: tuple[Path, Any], cache: Path, tmp_path: Path
) -> None:
    """In its smoke form: a smaller architecture, two steps, and the small library as its only source."""
    from specexp.config.files import read_layers

    config: dict[str, Any] = dict(read_layers(RECIPES / f"{name}.yaml").values)
    before = str(whole[0] / "export")
    model = config["model"]["init_args"]
    model.update(architecture=ARCHITECTURE, minutes=None, max_steps=2)
    model.update({role: before for role in ("start", "teacher") if model.get(role)})
    data = config["data"]["init_args"]
    data.update(
        sources={"library": {"class_path": "experiments.pair.corpus.python_source.PythonLibrary"}},
        weights=None,
    )
    data.update(cache_dir=str(cache), tokenizer_from=None, row_length=128, batch_size=2, vocab_size=400)
    config["trainer"].update(logger=False, accelerator="cpu", val_check_interval=2)
    config.update(work_dir=str(tmp_path / "work"), export_to=str(tmp_path / "export"))
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    assert main([str(file), "--data.init_args.seed", "3"]) == 0
    assert (tmp_path / "export" / "model.safetensors").is_file()
    assert (tmp_path / "work" / "checkpoints" / "last.ckpt").is_file()


def test_a_phase_starts_from_weights_alone_and_stays_on_its_plateau(whole: tuple[Path, Any]) -> None:
    from experiments.pair.module import CausalLMTraining

    phase = CausalLMTraining(ARCHITECTURE, max_steps=100, plateau=1.0, start=str(whole[0] / "export"))
    trained = whole[1].model.state_dict()
    for name, value in phase.model.state_dict().items():
        assert torch.equal(value, trained[name].bfloat16().float()), name
    assert phase.batches_done == 0
    phase.batches_done = 100
    assert phase.lr_scale() == 1.0
    assert CausalLMTraining(ARCHITECTURE, max_steps=100, plateau=0.0).lr_scale() == 1 / 60


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.double() for name, weight in model.model.state_dict().items()}


def test_the_end_of_a_plateau_can_be_averaged_also_after_a_kill(cache: Path, tmp_path: Path) -> None:
    def ended(after: int, work: str, **more: Any) -> dict[str, torch.Tensor]:
        return weights_of(
            train(
                tmp_path / work,
                cache,
                max_steps=after,
                plateau=1.0,
                repetition_from=1.0,
                export_to=tmp_path / work / "out",
                **more,
            )
        )

    last = [ended(steps, f"alone {steps}") for steps in (4, 5, 6)]
    mean = ended(6, "mean", mean_from=0.5)
    ended(6, "killed", stop_at=5, mean_from=0.5)
    resumed = ended(6, "killed", mean_from=0.5)
    for name, weight in mean.items():
        torch.testing.assert_close(weight, sum(one[name] for one in last) / 3, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(resumed[name], weight, rtol=1e-5, atol=1e-6)


def test_a_start_with_fewer_layers_is_deepened_without_changing_what_it_computes(
    whole: tuple[Path, Any],
) -> None:
    """Each new layer has trained weights and two silent outputs, from which its gradients come."""
    from experiments.pair.module import CausalLMTraining

    start = str(whole[0] / "export")
    deep = CausalLMTraining(
        {**ARCHITECTURE, "num_hidden_layers": 6}, max_steps=1, plateau=1.0, start=start
    ).model
    same = CausalLMTraining(ARCHITECTURE, max_steps=1, plateau=1.0, start=start).model
    tokens = torch.arange(40)[None]
    assert torch.equal(deep(input_ids=tokens).logits, same(input_ids=tokens).logits)
    layers, before = deep.model.layers, same.model.layers
    for number, layer in enumerate(layers):
        assert torch.equal(layer.mlp.up_proj.weight, before[number // 3].mlp.up_proj.weight)
        assert (
            bool(layer.self_attn.o_proj.weight.any())
            == bool(layer.mlp.down_proj.weight.any())
            == (number % 3 == 0)
        )
    deep(input_ids=tokens).logits.square().mean().backward()
    assert layers[1].mlp.down_proj.weight.grad.any()
    assert layers[1].self_attn.o_proj.weight.grad.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 64}, "has hidden_size 32, but architecture.hidden_size is 64"),
        ({"num_hidden_layers": 3}, "has 2 layers; architecture.num_hidden_layers is 3, and a multiple"),
        ({"num_hidden_layers": 1}, "has 2 layers; architecture.num_hidden_layers is 1, and a multiple"),
    ],
)
def test_a_start_of_another_shape_is_refused(
    whole: tuple[Path, Any], change: dict[str, int], words: str
) -> None:
    from experiments.pair.module import CausalLMTraining

    with pytest.raises(ValueError, match=words):
        CausalLMTraining({**ARCHITECTURE, **change}, max_steps=1, start=str(whole[0] / "export"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_killed_six_times_ends_with_the_weights_of_an_undisturbed_one(
    library: Path, tmp_path: Path
) -> None:
    config = {
        "model": {
            "class_path": "experiments.pair.module.CausalLMTraining",
            "init_args": {"architecture": ARCHITECTURE, "max_steps": 40, "repetition_from": 0.3},
        },
        "data": {
            "class_path": "specexp.fit.data.CorpusRows",
            "init_args": {
                "cache_dir": str(tmp_path / "cache"),
                "sources": {
                    "library": {
                        "class_path": "experiments.pair.corpus.python_source.PythonLibrary",
                        "init_args": {"root": str(library)},
                    }
                },
                **{"row_length": 128, "batch_size": 2, "validation_rows": 2, "vocab_size": 400},
            },
        },
        "trainer": {
            "logger": False,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "val_check_interval": 8,
        },
        "checkpoint_every": 1,
    }
    file, rng = tmp_path / "config.yaml", random.Random(0)
    file.write_text(yaml.safe_dump({**config, "work_dir": "runs/work"}))

    def start(name: str) -> subprocess.Popen[bytes]:
        paths = ["--work_dir", str(tmp_path / name), "--export_to", str(tmp_path / name / "exported")]
        return subprocess.Popen(
            [sys.executable, "-m", "specexp.fit", str(file), *paths], cwd=RECIPES.parents[1]
        )

    assert start("undisturbed").wait() == 0
    last, killed = tmp_path / "killed" / "checkpoints" / "last.ckpt", 0
    while killed < 6:
        process, before = start("killed"), last.stat().st_mtime_ns if last.exists() else 0
        while process.poll() is None and not (last.exists() and last.stat().st_mtime_ns != before):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        if process.poll() is not None:
            break  # it was done before it could be killed as often
        process.kill()
        process.wait()
        killed += 1
    assert start("killed").wait() == 0
    assert killed >= 3
    weights = [
        (tmp_path / name / "exported" / "model.safetensors").read_bytes()
        for name in ("undisturbed", "killed")
    ]
    assert weights[0] == weights[1]
