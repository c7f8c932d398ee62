from __future__ import annotations

from pathlib import Path

from experiments.pair.corpus.word_problems import Arithmetic
from experiments.pair.samples import Samples, prompts, write_samples
from specexp.models.pair import load_pair


def test_a_draft_learns_from_the_targets_own_answers_and_not_from_the_prompts(tmp_path: Path) -> None:
    source, file = Arithmetic(8), tmp_path / "samples.jsonl"
    write_samples(load_pair("stdlib-small"), {"arithmetic": source}, 4, file)
    samples = Samples(str(file), held_out=0)
    train = list(samples.texts("train"))
    assert {given for text in train for given in text.given} == set(prompts(source, 4))
    assert all(text.text.startswith(text.given[0]) for text in train)
    assert not list(samples.texts("validation"))
    assert len(list(Samples(str(file), held_out=1).texts("validation"))) == 4
