"""Artifacts are saved as versions with aliases and loaded again with their parts, for their own model alone."""

import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import specexp
from specexp.artifacts import ArtifactError, fingerprint, set_alias, store
from specexp.artifacts.fingerprint import first_difference, saved_sizes
from specexp.builders import StaticTree
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.drafters import TokenRecycling
from specexp.verifiers import KeyedSampling


def test_a_tree_is_loaded_by_its_alias_with_parts_ready_for_a_decoder(tree):
    loaded = specexp.load_artifact(tree.folder.parent / "best")

    drafter, builder, verifier, controller = loaded.parts
    assert isinstance(drafter, TokenRecycling)
    assert drafter.k == 4
    assert isinstance(builder, StaticTree)
    assert builder.rank_paths == [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
    assert isinstance(verifier, KeyedSampling)
    assert controller.changes_nothing
    assert tuple(loaded) == loaded.parts
    assert loaded.kind == "static-tree"
    assert loaded.metrics["speedup"] == {"value": 1.4, "low": 1.3, "high": 1.5}
    assert loaded.provenance["trial"] == 7
    assert loaded.provenance["packages"]["torch"] == version("torch")


def test_rank_paths_are_sorted_by_length_then_rank(tmp_path):
    saved = save_artifact(tmp_path / "a", "static-tree", {"tree.json": [[1, 0], [1], [0], [0, 2]]})

    assert saved.value == [[0], [1], [0, 2], [1, 0]]


def test_a_learned_matrix_starts_every_prompt(tmp_path):
    teacher = TokenRecycling(k=3)
    teacher.check_vocabulary(11)
    teacher.matrix[5] = [1, 2, 3]
    saved = save_artifact(tmp_path / "m", "adjacency-matrix", {"matrix.safetensors": teacher.state_dict()})

    drafter = load_artifact(saved.folder).drafter
    assert isinstance(drafter, TokenRecycling)
    drafter.check_vocabulary(11)
    assert drafter.state == "preloaded"
    np.testing.assert_array_equal(drafter.matrix, teacher.matrix)
    np.testing.assert_array_equal(saved.value, teacher.matrix)


def test_versions_count_up_and_aliases_move(tree):
    folder = tree.folder.parent
    second = save_artifact(folder, "static-tree", {"tree.json": [[0]]}, aliases=["latest"])

    assert (tree.folder.name, second.folder.name) == ("v1", "v2")
    assert load_artifact(folder / "latest").folder == second.folder
    assert load_artifact(folder / "best").folder == tree.folder
    assert load_artifact(folder).folder == tree.folder, "the folder alone means the best"
    with (folder / "best.json").open() as reader:
        set_alias(folder, "best", "v2")
        assert json.load(reader) == {"version": "v1"}, "an alias is replaced and never written in place"
    assert load_artifact(folder).folder == second.folder
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]
    second.folder.rename(folder / "v9")
    shutil.copytree(tree.folder, folder / "v10")
    assert save_artifact(folder, "static-tree", {"tree.json": [[0]]}).folder.name == "v11"


def test_a_version_that_another_writer_took_in_between_is_not_overwritten(tree, monkeypatch):
    looks = iter([[], [], ["v1"], ["v1", "v2"]])  # the first two looks are stale
    monkeypatch.setattr(store, "versions", lambda folder: next(looks))
    second = store._write_version(tree.folder.parent, {"artifact.json": b"{}"})
    assert second.name == "v2"
    assert load_artifact(tree.folder).rank_paths == tree.rank_paths


@pytest.mark.parametrize(("alias", "version"), [("Best", "v1"), ("v1", "v1"), ("best", "v9"), ("../x", "v1")])
def test_an_alias_names_an_existing_version(tree, alias, version):
    with pytest.raises(ArtifactError):
        set_alias(tree.folder.parent, alias, version)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full_disk(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    save_artifact(tmp_path / "a", "static-tree", {"tree.json": [[0]]})
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(ArtifactError, match="No space left"):
        save_artifact(tmp_path / "a", "static-tree", {"tree.json": [[1], [0]]})
    assert sorted(tmp_path.rglob("*")) == before


def test_values_that_json_cannot_express_are_refused(tmp_path):
    metrics = {"speedup": float("nan")}
    with pytest.raises(ArtifactError, match="provenance"):
        save_artifact(tmp_path / "a", "static-tree", {"tree.json": [[0]]}, {"metrics": metrics})


@pytest.mark.parametrize(
    ("reference", "mode", "message"),
    [
        ("wandb:name", "offline", "entity/project/name:alias"),
        ("wandb:me/specexp/tree:best", "offline", "WANDB_MODE is 'offline'"),
        ("wandb:me/specexp/tree:best", "online", "wandb login"),
    ],
)
def test_a_wandb_reference_that_cannot_be_followed_is_one_sentence(reference, mode, message, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ArtifactError, match=message):
        load_artifact(reference)


def test_a_wandb_reference_is_the_folder_that_the_api_downloads(tree, monkeypatch):
    import wandb

    entries = {file.name: SimpleNamespace(ref=None, size=1) for file in tree.folder.iterdir()}

    class Api:
        manifest = SimpleNamespace(entries=entries)

        def artifact(self, name: str) -> "Api":
            assert name == "me/specexp/tree:best"
            return self

        def download(self) -> str:
            return str(tree.folder)

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "Api", Api)
    assert load_artifact("wandb:me/specexp/tree:best").folder == tree.folder


def test_writers_at_the_same_time_get_a_version_each(tmp_path):
    def write(trial: int) -> str:
        tree = {"tree.json": [[0]]}
        saved = save_artifact(tmp_path / "a", "static-tree", tree, {"trial": trial}, aliases=[])
        assert saved.provenance["trial"] == trial
        return saved.folder.name

    expected = [f"v{number}" for number in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8))) == expected
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == expected


def tokenizer(words: str, eos: str = "b") -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos)


def model(hidden_size: int = 16) -> LlamaForCausalLM:
    sizes = {"vocab_size": 4, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(hidden_size=hidden_size, max_position_embeddings=32, **sizes))


@pytest.fixture
def bound(tmp_path):
    marks = fingerprint(model(), tokenizer("abcd"))
    save_artifact(tmp_path / "t", "static-tree", {"tree.json": [[0]]}, None, marks)
    return load_artifact(tmp_path / "t")


def test_its_own_model_and_tokenizer_pass_without_a_warning(bound):
    own = tokenizer("abcd")
    own.pad_token = own.eos_token  # a habit of users, which does not make another tokenizer
    with warnings.catch_warnings(action="error"):
        bound.check(model().to(torch.bfloat16), own)


@pytest.mark.parametrize(
    ("words", "eos", "field"),
    [
        ("abce", "b", "vocabulary_sha256"),
        ("acbd", "b", "vocabulary_sha256"),
        ("abcd", "c", "eos_token_id is 1"),
    ],
)
def test_a_foreign_tokenizer_is_refused(bound, words, eos, field):
    with pytest.raises(ArtifactError, match=rf"fingerprint\.tokenizer\.{field}.*another tokenizer"):
        bound.check(tokenizer=tokenizer(words, eos))


def test_a_foreign_model_is_refused_only_if_one_is_recorded(bound, tree):
    with pytest.raises(ArtifactError, match="hidden_size is 16, but the given model has 32"):
        bound.check(model(32))
    save_artifact(bound.folder.parent, "static-tree", {"tree.json": [[0]]}).check(model(32), tokenizer("ba"))


def test_the_sizes_of_a_saved_model_are_refused_by_its_config_alone(bound, tmp_path):
    for size in (16, 32):
        model(size).config.save_pretrained(tmp_path / f"saved{size}")
    bound.check_saved(str(tmp_path / "saved16"))
    bound.check_saved("org/model")  # elsewhere; compared when it is loaded
    with pytest.raises(ArtifactError, match="hidden_size is 16, but the given model has 32"):
        bound.check_saved(str(tmp_path / "saved32"))
    for unreadable in ('{"broken', "[]"):  # named by the check of the model itself
        (tmp_path / "saved32/config.json").write_text(unreadable)
        bound.check_saved(str(tmp_path / "saved32"))
    named = {**model(16).config.to_dict(), "model_type": "of_the_whole"}  # a multimodal model's text part has another
    assert first_difference(bound.fingerprint, saved_sizes(named)) is None
