"""The distillation of SmolLM2's drafts, on a tiny target and shards of random text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from experiments.smollm2 import export, train
from experiments.smollm2.train import Conversation, Draft, divergence, held_out, main, padded
from specexp import load_pair
from specexp.builders import Chain
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.drafters.eagle3_network import Eagle3Network

pytestmark = pytest.mark.slow

WIDTH, TOKENS = 32, 64


@pytest.fixture(autouse=True)
def layers_of_the_tiny_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "CAPTURED", (1, 2, 3))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    words = {f"w{number}": number for number in range(TOKENS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.fixture
def shards(target: Path, tmp_path: Path) -> Path:
    model = LlamaForCausalLM.from_pretrained(target)
    torch.manual_seed(1)
    ids = model.generate(torch.randint(64, (60, 4)), max_new_tokens=28, min_new_tokens=28, do_sample=True)
    with torch.inference_mode():
        hidden = model(ids, output_hidden_states=True).hidden_states
    count, length = ids.shape
    states = torch.stack([hidden[at] for at in (1, 2, 3, 4)], dim=2)
    (tmp_path / "shards").mkdir()
    each = torch.full((count,), length, dtype=torch.int32)
    content = {"ids": ids.flatten().int(), "states": states.flatten(0, 1).half(), "lengths": each}
    content |= {"turn_from": each * 0 + 1, "answer_from": each * 0 + 4, "temperature": each.float()}
    save_file(content, tmp_path / "shards" / "0-0000.safetensors")
    return tmp_path / "shards"


def arguments(kind: str, target: Path, shards: Path, folder: Path, tokens: int) -> list[str]:
    sizes = ["--vocabulary", "40", "--layers", "0", "3", "--steps", "2", "--lr", "3e-3"]
    return [kind, str(target), str(shards), str(folder), "--tokens", str(tokens), *sizes]


def shown(text: str, name: str) -> list[float]:
    return [float(line.split(name)[1].split()[0]) for line in text.splitlines() if name in line]


@pytest.mark.variants(1)
@pytest.mark.parametrize("kind", ["draft", "eagle3"])
def test_training_brings_the_distributions_together(
    kind: str,
    target: Path,
    shards: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "BATCH_TOKENS", 300)
    main(arguments(kind, target, shards, tmp_path / "run", 40_000))
    overlap = shown(capsys.readouterr().out, "shared 1 ")
    assert overlap[-1] > overlap[0] + 0.02


def test_a_second_run_continues_from_the_checkpoint(
    target: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments("draft", target, shards, tmp_path / "run", 3_000))
    first = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    main(arguments("draft", target, shards, tmp_path / "run", 6_000))
    second = torch.load(tmp_path / "run" / "last.pt", weights_only=True)
    assert second["tokens"] >= 6_000 > first["tokens"]
    assert second["step"] > first["step"]
    assert torch.equal(first["kept"], second["kept"])


def test_a_draft_of_all_layers_shares_everything_that_its_vocabulary_has(target: Path, shards: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(target).requires_grad_(False)
    texts = train.Conversations(shards, 0)
    kept = torch.arange(TOKENS)
    found = held_out(Draft(model, [0, 1, 2, 3]), texts.held, model.lm_head.weight, kept)
    assert found["same 1"] > 0.98  # the states are stored in half precision
    assert found["tokens per step, shared"] == pytest.approx(5.0, abs=0.1)


def test_the_divergence_of_equal_distributions_is_the_entropy_at_their_mixing_weight() -> None:
    logits = torch.tensor([[0.7 * 1.0, 0.0]])
    p = torch.tensor([1.0, 0.0]).softmax(-1)
    entropy = -(p * p.log()).sum()
    assert divergence(logits, logits) == pytest.approx(float(torch.exp(torch.tensor(-3.0)) * entropy))


def test_padding_follows_a_row_and_is_not_valid() -> None:
    rows = [Conversation(torch.arange(n), torch.zeros(n, 4, WIDTH), 1, 0.0) for n in (2, 3)]
    batch = padded(rows)
    assert batch.ids.tolist() == [[0, 1, 0], [0, 1, 2]]
    assert batch.valid.tolist() == [[True, True, False], [True, True, True]]


def test_an_exported_head_is_the_trained_one(target: Path, shards: Path, tmp_path: Path) -> None:
    main(arguments("eagle3", target, shards, tmp_path / "run", 2_000))
    given = [str(one) for one in (target, shards, tmp_path / "run", tmp_path / "head")]
    export.main(["eagle3", *given, "--vocabulary", "50"])
    head = Eagle3Network.load(tmp_path / "head")
    trained = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["module"]
    assert head.config.draft_vocab_size == 50
    assert head.lm_head is None  # its rows are the target's
    wanted = trained["net.fc.weight"]
    assert (head.fc.weight - wanted).abs().max() <= wanted.abs().max() / 127  # 8 bits


@pytest.fixture
def draft(target: Path, shards: Path, tmp_path: Path) -> Path:
    main(arguments("draft", target, shards, tmp_path / "run", 2_000))
    given = [str(one) for one in (target, shards, tmp_path / "run", tmp_path / "draft")]
    export.main(["draft", *given, "--vocabulary", "50"])
    return tmp_path / "draft"


def test_an_exported_draft_has_the_embeddings_of_its_target_and_drafts_with_a_reduced_head(
    target: Path, draft: Path, tmp_path: Path
) -> None:
    pair = load_pair(str(target), str(draft), target_dtype="float32", draft_dtype="bfloat16")
    assert pair.draft is not None
    embeddings = pair.target.get_input_embeddings().weight
    for layer in (pair.draft.get_input_embeddings(), pair.draft.get_output_embeddings()):
        assert torch.equal(layer.weight, embeddings.bfloat16())
    trained = torch.load(tmp_path / "run" / "last.pt", weights_only=True)["module"]
    name = "model.layers.1.mlp.up_proj.weight"
    wanted, made = trained[name], pair.draft.state_dict()[name].float()
    # half a step of 8 bits, and bfloat16
    assert (made - wanted).abs().max() <= wanted.abs().max() * (0.5 / 127 + 2**-8)
    ranked = json.loads((tmp_path / "run" / "vocabulary.json").read_text())
    assert sorted(ranked) == list(range(TOKENS))
    assert pair.draft.config.draft_vocabulary == sorted(ranked[:50])
    drafters = [DraftModel(pair.draft_runtime()) for _ in range(2)]
    models = [drafter.models[0].model for drafter in drafters]
    assert models[0] is models[1]  # packed once
    assert models[0].lm_head.weight.shape == (50, WIDTH)
    assert drafters[0].max_candidates == TOKENS  # the target's vocabulary
    plain, drafted = (
        Decoder(pair.target, *parts).generate([5, 6], max_new_tokens=24).token_ids
        for parts in ((), (drafters[0], Chain(3)))
    )
    assert drafted == plain
