"""Models and drafts that cannot be used: refused by a dry run from their configurations, or when they are loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers.first_hour import Row, check, make

LOADED = "run mine.yaml --pair.target model --pair.target_dtype float32"
TYPED = f"{LOADED} --dry-run"
DRAFTED = f"{TYPED} --pair.draft draft --drafter DraftModel"
Spoil = Callable[[Path], None]


class Spoilt(NamedTuple):
    """What is done to the folder of ``model`` and ``draft``, and fragments of the sentence that must follow."""

    spoil: Spoil
    answered: tuple[str, ...]
    typed: str = TYPED


def nothing(folder: Path) -> None:
    """Leaves both as they are."""


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


def half(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return spoil


def one_more_token(folder: Path) -> None:
    added = {"id": 257, "content": "<|more|>", "special": True, "single_word": False, "lstrip": False}
    path = folder / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({**added, "rstrip": False, "normalized": False})
    path.write_text(json.dumps(content))


def other_tokens(folder: Path) -> None:
    path = folder / "draft" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(content))


def target(*fragments: str) -> tuple[str, ...]:
    return ("command line: pair.target", *fragments)


SPOILT = {
    # names and files
    "no such folder": Spoilt(
        nothing, target("'./modell' is no existing folder"), TYPED.replace("model ", "./modell ")
    ),
    "an embedded pair misspelt": Spoilt(
        nothing, target("did you mean 'stdlib'?"), TYPED.replace("model ", "sdtlib ")
    ),
    "a folder of something else": Spoilt(without("model/config.json"), target("without config.json")),
    "a file of weights": Spoilt(
        nothing,
        target("'model/model.safetensors' is a file"),
        TYPED.replace("model ", "model/model.safetensors "),
    ),
    "a folder of GGUF files": Spoilt(
        written("models/target.gguf", "GGUF"),
        target("name one of its GGUF files, such as 'models/target.gguf'"),
        TYPED.replace("model ", "models "),
    ),
    "no such GGUF file": Spoilt(
        nothing, target("m.gguf' is no existing file"), TYPED.replace("model ", "./m.gguf ")
    ),
    "a GGUF file of something else": Spoilt(
        written("m.gguf", "GGML"), target("does not begin with GGUF"), TYPED.replace("model ", "m.gguf ")
    ),
    # configurations
    "a configuration cut short": Spoilt(half("model/config.json"), target("'model'", "config.json")),
    "a model type that there is not": Spoilt(of_type("llamma"), target("'model'", "llamma")),
    "code of its own": Spoilt(
        changed(model_type="mine", auto_map={"AutoConfig": "mine.Config"}), target("custom code")
    ),
    "heads that do not divide": Spoilt(changed(num_attention_heads=5), target("32", "(5)")),
    "an activation that there is not": Spoilt(changed(hidden_act="zilu"), target("'model'", "zilu")),
    # models that take no tree passes
    "an encoder and a decoder": Spoilt(of_type("t5"), target("encoder-decoder")),
    "an encoder": Spoilt(of_type("vit"), target("vit model")),
    "sliding windows and soft caps": Spoilt(of_type("gemma2"), target("layers without full attention")),
    "no attention": Spoilt(of_type("mamba"), target("has no attention")),
    "positions without a limit": Spoilt(
        of_type("bloom"), target("bloom model states no max_position_embeddings")
    ),
    "no fused attention": Spoilt(of_type("gptj"), target('attn_implementation="eager"')),
    # tokenizers
    "no tokenizer": Spoilt(
        without("model/tokenizer.json", "model/tokenizer_config.json"),
        target("the tokenizer of target 'model'"),
    ),
    "a tokenizer cut short": Spoilt(half("model/tokenizer.json"), target("the tokenizer of target 'model'")),
    "a tokenizer that holds nothing": Spoilt(
        written("model/tokenizer.json", "{}"), target("the tokenizer of target 'model'", "'added_tokens'")
    ),
    "more tokens than logits": Spoilt(
        one_more_token, target("gives 257 logits", "its tokenizer has 258 tokens")
    ),
    "a draft with other tokens": Spoilt(
        other_tokens, ("pair.draft", "another vocabulary", "4 entries differ"), DRAFTED
    ),
    # parts
    "a draft model and no draft": Spoilt(nothing, ("drafter", "pair.draft"), f"{TYPED} --drafter DraftModel"),
    "a tree larger than the context": Spoilt(
        nothing, ("192", "lower its budget"), f"{TYPED} --builder.init_args.length 200"
    ),
    # weights, which a dry run does not read
    "no weights": Spoilt(without("model/model.safetensors"), target("model.safetensors"), LOADED),
    "weights cut short": Spoilt(half("model/model.safetensors"), target("'model'"), LOADED),
    "weights of another shape": Spoilt(changed(hidden_size=64), target("12 tensors do not fit"), LOADED),
    "weights of fewer layers": Spoilt(
        changed(num_hidden_layers=2), target("9 tensors do not fit", "'model.layers.1."), LOADED
    ),
    "weights packed by what is not installed": Spoilt(
        changed(quantization_config={"quant_method": "gptq", "bits": 4}), target("'model'"), LOADED
    ),
}


@pytest.fixture
def here(model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a whole ``model`` and a whole ``draft``."""
    make({}, tmp_path)
    for copy in ("model", "draft"):
        shutil.copytree(model_folder, tmp_path / copy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", SPOILT)
def test_one_sentence(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoilt = SPOILT[name]
    spoilt.spoil(here)
    check(Row(name, spoilt.typed, spoilt.answered), capsys)


@pytest.mark.usefixtures("here")
def test_whole_models_pass(capsys: pytest.CaptureFixture[str]) -> None:
    check(Row("whole models", DRAFTED, ("mine",), code=0), capsys)
