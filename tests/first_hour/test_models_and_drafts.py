"""Models and drafts that cannot be used, told by a dry run from their files alone."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.first_hour import Row, check, make

TYPED = "run mine.yaml --pair.target model --pair.target_dtype float32 --dry-run"
DRAFTED = f"{TYPED} --pair.draft draft --drafter DraftModel"
Spoil = Callable[[Path], None]


@dataclass(frozen=True)
class Spoilt:
    """What is done to a model's folder, and what must be answered.

    Args:
        spoil: Changes the folder that holds ``model`` and ``draft``, both whole.
        answered: Fragments of the sentence.
        typed: The command.
        code: Its exit code.
    """

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


def changed(name: str, **values: object) -> Spoil:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | values))

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


SPOILT = {
    "no such folder": Spoilt(
        nothing, ("pair.target", "'./modell' is no existing folder"), TYPED.replace("model ", "./modell ")
    ),
    "a folder of something else": Spoilt(
        without("model/config.json"), ("pair.target", "without config.json")
    ),
    "a configuration cut short": Spoilt(
        half("model/config.json"), ("pair.target", "config.json cannot be read")
    ),
    "a model type that there is not": Spoilt(
        changed("model/config.json", model_type="llamma"), ("pair.target", "'model'", "llamma")
    ),
    "an encoder and a decoder": Spoilt(
        written("model/config.json", '{"model_type": "t5"}'), ("pair.target", "encoder-decoder")
    ),
    "an encoder": Spoilt(
        written("model/config.json", '{"model_type": "vit"}'),
        ("pair.target", "could not be loaded as a causal model"),
    ),
    "sliding windows and soft caps": Spoilt(
        written("model/config.json", '{"model_type": "gemma2"}'),
        ("pair.target", "layers without full attention"),
    ),
    "positions without a limit": Spoilt(
        written("model/config.json", '{"model_type": "bloom"}'),
        ("command line: pair.target", "bloom model states no max_position_embeddings", "learned or rotary"),
    ),
    "positions without a limit, attention by hand": Spoilt(
        written("model/config.json", '{"model_type": "bloom"}'),
        ("command line: pair.target", "bloom model states no max_position_embeddings"),
        f"{TYPED} --pair.attn_implementation eager",
    ),
    "no fused attention": Spoilt(
        written("model/config.json", '{"model_type": "gptj"}'),
        ("command line: pair.target", "attn_implementation 'sdpa'; set attn_implementation to 'eager'"),
    ),
    "no attention": Spoilt(
        written("model/config.json", '{"model_type": "mamba"}'), ("pair.target", "has no attention")
    ),
    "no tokenizer": Spoilt(
        without("model/tokenizer.json", "model/tokenizer_config.json"),
        ("pair.target", "has no tokenizer", "save_pretrained"),
    ),
    "a tokenizer cut short": Spoilt(
        half("model/tokenizer.json"), ("pair.target", "has no tokenizer that could be")
    ),
    "a tokenizer that holds nothing": Spoilt(
        written("model/tokenizer.json", "{}"),
        ("pair.target", "no tokenizer that could be loaded: its files hold no 'added_tokens'"),
    ),
    "more tokens than logits": Spoilt(
        one_more_token, ("pair.target", "gives 257 logits", "its tokenizer has 258 tokens")
    ),
    "no weights": Spoilt(
        without("model/model.safetensors"), ("pair.target", "holds no weights in safetensors")
    ),
    "weights cut short": Spoilt(
        half("model/model.safetensors"), ("pair.target", "no whole safetensors file")
    ),
    "weights of another model": Spoilt(
        changed("model/config.json", hidden_size=64), ("pair.target", "no weights that fit")
    ),
    "an end that no token has": Spoilt(
        changed("model/generation_config.json", eos_token_id=99999),
        ("pair.target", "eos_token_id: 99999; ids 0 to 256 are there"),
    ),
    "a file of weights": Spoilt(
        nothing,
        ("pair.target", "'model/model.safetensors' is a file; the folder of a saved model"),
        TYPED.replace("model ", "model/model.safetensors "),
    ),
    "a folder of GGUF files": Spoilt(
        written("models/target.gguf", "GGUF"),
        ("pair.target", "'models' is a folder of GGUF files; name one of them, such as 'models/target.gguf'"),
        TYPED.replace("model ", "models "),
    ),
    "heads that do not divide": Spoilt(
        changed("model/config.json", num_attention_heads=5),
        ("pair.target", "32", "not a multiple of the number of attention heads (5)"),
    ),
    "an activation that there is not": Spoilt(
        changed("model/config.json", hidden_act="zilu"),
        ("pair.target", "its config.json says 'zilu', which transformers does not know"),
    ),
    "fewer than no layers": Spoilt(
        changed("model/config.json", num_hidden_layers=-1),
        ("pair.target", "its config.json says num_hidden_layers: -1; 1 or more are needed"),
    ),
    "code of its own": Spoilt(
        changed("model/config.json", model_type="mine", auto_map={"AutoConfig": "mine.Config"}),
        ("pair.target", "run by code of its own", "models that transformers itself knows"),
    ),
    "weights packed by what is not installed": Spoilt(
        changed("model/config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        ("pair.target", "has quantised weights that cannot be read here", "bfloat16, float16 or float32"),
    ),
    "weights packed by nobody knows what": Spoilt(
        changed("model/config.json", quantization_config={"quant_method": "zip"}),
        ("pair.target", "has quantised weights that cannot be read here"),
    ),
    "no such GGUF file": Spoilt(
        nothing, ("pair.target", "m.gguf' is no existing file"), TYPED.replace("model ", "./m.gguf ")
    ),
    "a GGUF file of something else": Spoilt(
        written("m.gguf", "GGML"),
        ("pair.target", "m.gguf is no GGUF file: it does not begin with GGUF"),
        TYPED.replace("model ", "m.gguf "),
    ),
    "a draft with other tokens": Spoilt(
        other_tokens, ("pair.draft", "another vocabulary", "4 entries differ"), DRAFTED
    ),
    "a draft model and no draft": Spoilt(nothing, ("drafter", "pair.draft"), f"{TYPED} --drafter DraftModel"),
    "a tree larger than the context": Spoilt(
        nothing, ("192", "lower its budget"), f"{TYPED} --builder.init_args.length 200"
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_one_sentence(
    name: str,
    model_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make({}, tmp_path)
    for copy in ("model", "draft"):
        shutil.copytree(model_folder, tmp_path / copy)
    spoilt = SPOILT[name]
    spoilt.spoil(tmp_path)
    monkeypatch.chdir(tmp_path)
    check(Row(name, spoilt.typed, spoilt.answered), capsys)


def test_whole_models_pass(
    model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make({}, tmp_path)
    for copy in ("model", "draft"):
        shutil.copytree(model_folder, tmp_path / copy)
    monkeypatch.chdir(tmp_path)
    check(Row("whole models", DRAFTED, ("mine",), code=0), capsys)
