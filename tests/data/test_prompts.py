"""The Lightning side: one prompt a batch, in the workload's order."""

import pytest
import torch
from lightning import LightningModule, Trainer

from specexp.data import GSM8K, Prompt, Workload
from specexp.data.prompts import PromptDataModule


class Seen(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[Prompt] = []

    def test_step(self, batch: Prompt, batch_idx: int) -> None:
        self.prompts.append(batch)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


@pytest.fixture
def workload(write):
    path = write("test.jsonl", [{"question": f"How many {i}?", "answer": "1"} for i in range(6)])
    return Workload(GSM8K(path), max_prompts=4, shuffle_seed=0)


def test_a_trainer_gets_prompt_after_prompt_as_they_are(workload, tokenizer, tmp_path):
    module, data = Seen(), PromptDataModule(workload, tokenizer)
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, barebones=False,
    )  # fmt: skip
    trainer.test(module, datamodule=data, verbose=False)
    assert module.prompts == workload.load(tokenizer)
    assert module.prompts == data.prompts


def test_prompts_are_read_once(workload, tokenizer, monkeypatch):
    data = PromptDataModule(workload, tokenizer)
    data.setup("test")
    monkeypatch.setattr(workload, "load", lambda tokenizer: pytest.fail("read again"))
    data.setup("test")
    assert len(data.prompts) == 4
