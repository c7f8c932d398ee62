"""A target whose weights wait on the disk says what it says in memory; what cannot be spread is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.spread_decoding import decoded

from specexp.core.language_model import compute_device, is_spread
from specexp.models.pair import load_pair
from specexp.models.sources import PairError

ON_DISK = {
    "model.embed_tokens": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
    "model.layers": "disk",
}


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """The embedded target as an ordinary folder; 8 bits cannot be spread."""
    folder = tmp_path_factory.mktemp("ordinary")
    pair = load_pair("stdlib")
    pair.target.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_weights_on_the_disk_give_the_same_tokens_and_the_model_is_not_compiled(ordinary):
    given = {"target_dtype": "float32"}
    spread_pair = load_pair(ordinary, "stdlib", device_map=ON_DISK, **given)
    assert is_spread(spread_pair.target)
    assert spread_pair.target.model.layers[0].mlp.up_proj.weight.device.type == "meta"
    assert str(compute_device(spread_pair.target)) == "cpu"
    modules = list(spread_pair.target.hf_device_map.values())
    stated = {f"{place} ({modules.count(place)} module{'s' * (modules.count(place) > 1)})" for place in set(modules)}
    assert set(spread_pair.target_runtime().placement.split(", ")) == stated
    runtime = spread_pair.target_runtime()
    assert type(runtime).__name__ == "LanguageModel"
    whole = load_pair("stdlib", mode="eager", **given)
    assert decoded(spread_pair).token_ids == decoded(whole).token_ids


SPLIT = """
import torch.distributed
from pathlib import Path
from sys import argv
from helpers.spread_decoding import decoded
from specexp.models.pair import load_pair
pair = load_pair(argv[2], "stdlib", device_map="tensor-parallel", target_dtype="float32")
said = f"{pair.target_runtime().placement}\\n{decoded(pair).token_ids}"
Path(argv[1], str(torch.distributed.get_rank())).write_text(said)
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_matrices_split_over_two_processes_give_the_same_tokens(tmp_path, ordinary):
    program = tmp_path / "split.py"
    program.write_text(SPLIT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([*launch, str(program), str(tmp_path), ordinary], check=True, env=environment)
    whole = decoded(load_pair("stdlib", mode="eager", target_dtype="float32")).token_ids
    for rank in ("0", "1"):
        told = (tmp_path / rank).read_text().splitlines()
        assert told == ["cpu (tensor parallel over 2 processes)", str(whole)]


@pytest.mark.parametrize(
    ("arguments", "key", "sentence"),
    [
        ({"device_map": "tensor-parallel"}, "device_map", "at least two processes: start them with torchrun"),
        ({"device_map": "atuo"}, "device_map", "device_map must be a placement .* got 'atuo'; did you mean 'auto'?"),
        ({"device_map": "auto", "mode": "compiled"}, "mode", "if a device_map spreads the target"),
        ({"offload_folder": "/tmp/x"}, "offload_folder", "without a device_map"),
    ],
)
def test_what_cannot_be_spread_is_refused(ordinary, arguments, key, sentence):
    with pytest.raises(PairError, match=sentence.replace("?", r"\?")) as refused:
        load_pair(ordinary, weights=False, **arguments)
    assert refused.value.argument == key


def test_an_embedded_model_is_exported_before_it_is_spread():
    with pytest.raises(PairError, match="must be left out for an embedded model") as refused:
        load_pair("stdlib", device_map="auto")
    assert refused.value.argument == "device_map"
