"""Heads learn their target's distribution, and an exported head drafts for this target only."""

import json

import numpy as np
import pytest
import torch
import yaml

from specexp.artifacts import ArtifactError
from specexp.builders import Chain
from specexp.config.artifacts import load_artifact
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.loop import Decoder
from specexp.drafters import Eagle3
from specexp.fit.command import main
from specexp.fit.heads import Eagle3Training, EagleTraining, MedusaTraining, eagle3_head
from specexp.fit.suffix_corpus import SuffixCorpus
from specexp.models.pair import load_pair

ROWS = torch.arange(96).view(2, 48) * 7 % 300


@pytest.fixture(scope="module")
def pair():
    return load_pair("stdlib", target_dtype="float32", mode="eager")


def trained(made, steps):
    """Losses on the same rows."""
    optimizer, losses = made.configure_optimizers(), []
    made.log = lambda *arguments, **others: None
    for _ in range(steps):
        loss = made.training_step(ROWS, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_lossless(pair, drafter):
    plain, drafted = (
        Decoder(pair.target, *parts).generate([5, 6, 7], max_new_tokens=8).token_ids
        for parts in ((), (drafter, Chain(2)))
    )
    assert drafted == plain


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: MedusaTraining("stdlib", heads=2, tokens=1),
        lambda: EagleTraining("stdlib", heads=2, inner=64, lr=2e-4, tokens=1),
    ],
    ids=["medusa", "eagle"],
)
def test_a_head_learns_its_target_and_is_exported_for_it(make, pair, tmp_path):
    made = make()
    losses = trained(made, 6)
    assert losses[-1] < losses[0]
    made.export(pair.tokenizer, tmp_path / "head")
    artifact = load_artifact(tmp_path / "head")
    artifact.check(pair.target, pair.tokenizer)
    check_lossless(pair, artifact.drafter)
    with pytest.raises(ValueError, match="was trained for another target than this llama model"):
        Decoder(pair.draft, load_artifact(tmp_path / "head").drafter, Chain(2))


@pytest.mark.slow
def test_an_eagle3_head_learns_its_target_and_is_exported_in_the_published_layout(pair, tmp_path):
    vocabulary = tmp_path / "vocabulary.json"
    vocabulary.write_text(json.dumps([*range(400)]))
    made = Eagle3Training("stdlib", layers=[1, 2, 5], steps=2, vocabulary=str(vocabulary), lr=2e-4, tokens=1)
    losses = trained(made, 6)
    assert losses[-1] < losses[0]
    made.export(pair.tokenizer, tmp_path / "head")
    check_lossless(pair, Eagle3(str(tmp_path / "head"), layers=[1, 2, 5]))


def test_an_unlearned_eagle3_head_is_the_last_layer_of_its_target(pair):
    head = eagle3_head(pair.target, [1, 2, 5], None)
    last = pair.target.model.layers[-1]
    assert torch.equal(head.tensors()["layers.0.mlp.down_proj.weight"], last.mlp.down_proj.weight)
    width = pair.target.config.hidden_size
    queries = head.tensors()["layers.0.self_attn.q_proj.weight"]
    assert torch.equal(queries[:, width:], last.self_attn.q_proj.weight)


def test_unlearned_medusa_heads_repeat_the_next_token(pair):
    """Unlearned heads repeat the next token's distribution: their loss is its cross-entropy under the later one."""
    made = MedusaTraining("stdlib", heads=2, tokens=1)
    with torch.no_grad():
        logits = pair.target(input_ids=ROWS).logits
        found = made._losses(ROWS)
        for number in range(2):
            predicted, right = logits[:, : -number - 1].log_softmax(-1), logits[:, number + 1 :].softmax(-1)
            expected = 0.8**number * float(-(right * predicted).sum(-1).mean())
            assert float(found[f"head_{number}"]) == pytest.approx(expected, rel=1e-4)


def test_rows_become_a_corpus(pair, tmp_path):
    corpus = SuffixCorpus(tokens=4)
    corpus._rows = [torch.tensor([[3, 4, 5], [4, 6, 3]], dtype=torch.int32)]
    corpus.export(pair.tokenizer, tmp_path / "corpus")
    drafter = load_artifact(tmp_path / "corpus").drafter
    context = Context([9, 4])
    drafter.begin(context, None)
    zero = np.zeros(1, dtype=np.int64)
    answer = drafter.propose(context, Request(np.array([4]), zero - 1, zero - 1, zero, 2))
    assert sorted(answer.tokens[0].tolist()) == [5, 6]


def test_an_embedded_head_is_named_by_its_family(pair):
    """It drafts for the embedded target alone, and what it drafts leaves the output as it is."""
    for name in ("stdlib:eagle", "stdlib:medusa"):
        check_lossless(pair, load_artifact(name).drafter)
        with pytest.raises(ValueError, match="was trained for another target than this llama model"):
            Decoder(pair.draft, load_artifact(name).drafter, Chain(2))
    with pytest.raises(ArtifactError, match="stdlib:eagles"):
        load_artifact("stdlib:eagles")


def test_the_resolved_training_is_printed_and_nothing_is_trained(tmp_path, capsys):
    file = tmp_path / "corpus.yaml"
    config = {
        "model": {"class_path": "specexp.fit.suffix_corpus.SuffixCorpus", "init_args": {"tokens": 10}},
        "data": {"class_path": "experiments.heads.text_rows.TextRows", "init_args": {"tokenizer_from": "x"}},
        "work_dir": str(tmp_path / "work"),
    }
    file.write_text(yaml.safe_dump(config))
    assert main([str(file), "--print-config", "--model.init_args.tokens", "20"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["init_args"] == {"tokens": 20}
    assert printed["data"]["init_args"]["batch_size"] == 4  # a default
    assert printed["checkpoint_every"] == 100
    assert not (tmp_path / "work").exists()
