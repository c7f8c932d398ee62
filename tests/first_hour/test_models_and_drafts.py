"""Models and drafts that cannot be used: refused by a dry run from their configurations, or when they are loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from helpers.first_hour import Row
from helpers.small_models import END
from safetensors.torch import load_file, save_file

from specexp.config import ConfigError, check_rows, load_config
from specexp.models.sources import PairError, checked_sources

LOADED = "run mine.yaml --pair.target model --pair.target_dtype float32"
TYPED = f"{LOADED} --dry-run"
DRAFTED = f"{TYPED} --pair.draft draft --drafter DraftModel"
Spoil = Callable[[Path], None]


def without(*names: str) -> Spoil:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def written(name: str, content: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)

    return spoil


def of_type(model_type: str) -> Spoil:
    return written("model/config.json", json.dumps({"model_type": model_type}))


def changed(**values: object) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / "model/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return spoil


def index(**content: object) -> Spoil:
    return written("model/model.safetensors.index.json", json.dumps(content))


def saved(family: str, purpose: str = "Model") -> Spoil:
    """Replace the model by one of another architecture, with the same tokenizer."""

    def spoil(folder: Path) -> None:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        config = getattr(transformers, f"{family}Config")(
            vocab_size=257, tie_word_embeddings=True, pad_token_id=0, max_position_embeddings=192, **sizes
        )
        getattr(transformers, family + purpose)(config).save_pretrained(folder / "model")

    return spoil


def half(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return spoil


def link_to_nothing(folder: Path) -> None:
    (folder / "model/model.safetensors").unlink()
    (folder / "model/model.safetensors").symlink_to("gone")


def one_more_token(folder: Path) -> None:
    added = {"id": 257, "content": "<|more|>", "special": True, "single_word": False, "lstrip": False}
    path = folder / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({**added, "rstrip": False, "normalized": False})
    path.write_text(json.dumps(content))


def spoil(change: Spoil, sentence: str, typed: str = TYPED) -> tuple[Spoil, Row]:
    """A change of the folder ``model``, and the expected answer."""
    return change, Row(typed, f"command line: pair.target ... {sentence}")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
SPOILT = [
    spoil(written("model/model.safetensors", POINTER), "has a pointer of Git LFS instead of model.safetensors: run"),
    # names and files
    spoil(lambda folder: None, "but it is another file", TYPED.replace("model ", "model/model.safetensors ")),
    spoil(
        written("models/target.gguf", "GGUF"),
        "name one of its GGUF files, such as 'models/target.gguf'",
        TYPED.replace("model ", "models "),
    ),
    spoil(lambda folder: None, "does not exist; did you mean 'model'?", TYPED.replace("model ", "./modle ")),
    # configurations
    spoil(of_type("llamma"), "'model' ... llamma"),
    spoil(written("model/config.json", '{"model_type": '), "has a config.json that cannot be read: Expecting value"),
    spoil(
        written("model/config.json", '{"model_type": '),
        "has a config.json that cannot be read: Expecting value",
        f"{TYPED} --artifact smollm2:tree",
    ),
    spoil(written("model/config.json", "[]"), "has a config.json that cannot be read: it must hold a mapping"),
    spoil(changed(model_type="mine", auto_map={"AutoConfig": "mine.Config"}), "custom code"),
    spoil(changed(num_attention_heads=5), "32 ... (5)"),
    # models that take no tree passes
    spoil(of_type("bloom"), "bloom model states no max_position_embeddings"),
    # tokenizers
    spoil(without("model/tokenizer.json", "model/tokenizer_config.json"), "target 'model' has no tokenizer.json"),
    spoil(written("model/tokenizer.json", "{}"), "the tokenizer of target 'model' ... 'added_tokens'"),
    spoil(one_more_token, "gives 257 logits ... its tokenizer has 258 tokens"),
    # a tree that is larger than the context
    (lambda folder: None, Row(f"{TYPED} --builder.init_args.length 200", "192 ... lower its budget")),
    # weights, of which a dry run reads only the headers
    spoil(without("model/model.safetensors"), "has no weights: copy its .safetensors files into the folder"),
    spoil(
        half("model/model.safetensors"),
        "damaged: model.safetensors does not have the size that its header states",
    ),
    spoil(written("model/model.safetensors", "x"), "damaged: model.safetensors"),
    spoil(link_to_nothing, "has weights that cannot be read (model.safetensors: No such file or directory)"),
    spoil(
        lambda folder: (folder / "model/model.safetensors").rename(folder / "model/pytorch_model.bin"),
        "has its weights in .bin files only: save the model as safetensors",
    ),
    spoil(index(weight_map={"lm_head.weight": "model-00002-of-00002.safetensors"}), "lacks model-00002-of-00002"),
    spoil(index(metadata={}), "model.safetensors.index.json cannot be read; copy it again"),
    spoil(changed(hidden_size=64), "12 tensors are missing or misshapen"),
    spoil(changed(num_hidden_layers=2), "9 tensors are missing or misshapen ... model.layers.1."),
    spoil(changed(num_hidden_layers=0), "its files have 9 tensors that a LlamaForCausalLM does not use"),
    spoil(changed(quantization_config={"quant_method": "gptq", "bits": 4}), "'model'"),
    spoil(changed(quantization_config={"quant_method": "awq", "bits": 4}), "requires gptqmodel"),
    # models for other uses
    spoil(saved("Bert"), "the bert model is an encoder: use a causal model"),
    spoil(saved("Bert", "LMHeadModel"), "the bert model is an encoder: use a causal model"),
    spoil(
        saved("Qwen3", "ForSequenceClassification"),
        "1 tensor that a Qwen3ForCausalLM does not use ... 'score.weight'",
    ),
]


@pytest.mark.parametrize(("change", "row"), SPOILT, ids=[row.sentence for _, row in SPOILT])
def test_a_model_that_cannot_be_used_is_one_sentence(change, row, folder, answered):
    change(folder)
    answered(row)


def changed_vocabulary(folder: Path, **tokens: int) -> dict[str, int]:
    """Change ids in the draft's tokenizer, and return the target's ids."""
    path = folder / "draft/tokenizer.json"
    content = json.loads(path.read_text())
    before = dict(content["model"]["vocab"])
    content["model"]["vocab"] |= tokens
    path.write_text(json.dumps(content))
    return before


def test_a_token_that_only_one_tokenizer_has_is_named(folder, answered):
    changed_vocabulary(folder, ab=300, **{END: 256})
    answered(Row(DRAFTED, "pair.draft ... 1 token differs: 'ab' (draft only)"))


def test_a_special_token_that_gives_way_to_another_token_is_named_too(folder, answered):
    """Special tokens outside the vocabulary are numbered after it, whatever ids their file has."""
    changed_vocabulary(folder, ab=300)
    names = f"2 tokens differ: '{END}' (id 257 in the draft, 256 in the target), 'ab' (draft only)"
    answered(Row(DRAFTED, f"pair.draft ... {names}"))


def test_tokens_with_swapped_ids_and_too_long_answers_are_named_from_files_alone(folder, answered):
    ids = changed_vocabulary(folder)
    a, b = ids["A"], ids["B"]
    changed_vocabulary(folder, A=b, B=a)
    names = f"2 tokens differ: 'A' (id {b} in the draft, {a} in the target), 'B' (id {a} in the draft, {b} in"
    answered(Row(DRAFTED, f"pair.draft ... {names}"))
    with pytest.raises(PairError, match="2 tokens differ"):  # before torch is imported, which takes seconds
        checked_sources("model", "draft")
    longer = load_config("mine.yaml", ["--pair.target", "model", "--generation.max_new_tokens", "193"])
    with pytest.raises(ConfigError, match=r"max_new_tokens must leave room .* context of 192 tokens, got 193"):
        check_rows(longer)


def nan(folder: Path) -> None:
    """Plant a NaN in the norm before the output layer."""
    file = folder / "model/model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, {"format": "pt"})


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("mode", ["auto", "eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_without_numbers_is_one_sentence_with_the_cause(command, mode, dynamic, folder, answered, monkeypatch):
    """With OMP_DYNAMIC, PyTorch's own passes give NaN on some machines."""
    nan(folder)
    if dynamic:
        monkeypatch.setenv("OMP_DYNAMIC", "true")
    cause = "unset OMP_DYNAMIC" if dynamic else "check its weights, or set another dtype"
    typed = f"{LOADED.replace('run', command)} --pair.mode {mode}"
    answered(Row(typed, f"pair: the llama model gives NaN logits in a pass without a tree: {cause}"))


def test_init_refuses_a_model_that_no_study_can_use(folder, answered):
    saved("Bert")(folder)
    answered(
        Row(
            "init study --target model",
            "--target: target 'model' cannot be loaded: the bert model is an encoder",
        )
    )


@pytest.mark.usefixtures("folder")
def test_whole_models_pass(answered):
    answered(Row(DRAFTED, "mine", code=0))


@pytest.fixture
def folder(model_folder, tmp_path):
    """A folder with a whole ``model`` and a whole ``draft``."""
    for copy in ("model", "draft"):
        shutil.copytree(model_folder, tmp_path / copy)
    return tmp_path
