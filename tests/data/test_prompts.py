"""Workloads in configurations and in Lightning: bounds, and one prompt a batch in the workload's order."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning import LightningModule, Trainer

from specexp.config import ConfigError, load_config
from specexp.data import GSM8K, LoadedPrompts, Prompt, Workload


class Collect(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []

    def test_step(self, batch: Prompt, batch_idx: int) -> None:
        self.prompts.append(batch)

    def transfer_batch_to_device(self, batch: Prompt, device: torch.device, dataloader_idx: int) -> Prompt:
        return batch

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def test_a_trainer_gets_prompt_after_prompt_and_they_are_read_once(write, tokenizer, tmp_path, monkeypatch):
    path = write("test.jsonl", [{"question": f"How many {i}?", "answer": "1"} for i in range(6)])
    workload = Workload(GSM8K(path), max_prompts=4, shuffle_seed=0)
    expected = workload.load(tokenizer)
    module, data = Collect(), LoadedPrompts(workload, tokenizer)
    assert data.prompts
    monkeypatch.setattr(workload, "load", lambda tokenizer: pytest.fail("read again"))
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, barebones=False,
    )  # fmt: skip
    trainer.test(module, dataloaders=data.loader(), verbose=False)
    assert module.prompts == data.prompts == expected
    assert len(expected) == 4


@pytest.mark.parametrize(
    ("prompts", "key", "value"),
    [
        ("GSM8K", "max_prompts", 0),
        ("GSM8K", "offset", -1),
        ("GSM8K", "too_long", "drop"),
        ("OpenWebText", "prompts.init_args.prompt_tokens", 0),
        ("StdlibFunctions", "prompts.init_args.split", "dev"),
    ],
)
def test_bounds_are_those_of_the_signature(tmp_path: Path, prompts: str, key: str, value: object):
    file = tmp_path / "bounds.yaml"
    file.write_text(f"data: {{prompts: {{class_path: {prompts}}}}}")
    with pytest.raises(ConfigError, match=key):
        load_config(file, [f"--data.{key}={value}"])


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"lightning", "datasets", "torch", "transformers"}
    code = f"import sys, specexp.data; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
