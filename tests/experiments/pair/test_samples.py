from __future__ import annotations

import torch

from experiments.pair import embed
from experiments.pair.corpus.word_problems import Arithmetic
from experiments.pair.samples import Samples, prompts, write_samples
from specexp.core.packed import unpack
from specexp.deploy.export.command import export
from specexp.models.pair import load_pair
from specexp.models.sources import sources_of


def test_a_draft_learns_from_the_targets_own_answers_and_not_from_the_prompts(tmp_path):
    source, file = Arithmetic(8), tmp_path / "samples.jsonl"
    write_samples(load_pair("stdlib-small"), {"arithmetic": source}, 4, file)
    samples = Samples(str(file), held_out=0)
    train = list(samples.texts("train"))
    assert {given for text in train for given in text.given} == set(prompts(source, 4))
    assert all(text.text.startswith(text.given[0]) for text in train)
    assert not list(samples.texts("validation"))
    assert len(list(Samples(str(file), held_out=1).texts("validation"))) == 4


def test_an_exported_model_becomes_the_embedded_one_of_a_name(tmp_path, monkeypatch):
    export("stdlib-small", "hf", tmp_path / "exported")
    monkeypatch.setattr("experiments.pair.embed.PAIRS", tmp_path)
    (tmp_path / "stdlib").mkdir()
    assert embed.main([str(tmp_path / "exported"), "tiny"]) == 0
    again, shipped = unpack(str(tmp_path / "stdlib/tiny")), unpack(sources_of("stdlib-small")[0])
    assert again.keys() == shipped.keys()
    for name, weight in shipped.items():
        torch.testing.assert_close(again[name], weight, rtol=2**-7, atol=1e-4)
