"""The raw texts of DySpec's tables are read from files that a user brings, and one run has all of their cells."""

import json

import pandas as pd
import pytest
from helpers.small_models import byte_tokenizer

from experiments.papers.dyspec.texts import Texts
from specexp.bench.experiment import check_experiment
from specexp.config import load_config
from specexp.data.named_sets import C4, CNNDailyMail, OpenWebText
from specexp.data.workload import Workload

pytestmark = pytest.mark.unit


@pytest.fixture
def sets(tmp_path):
    """A shard of each set in its published form, with two texts."""
    lines = [json.dumps({"text": text, "url": "https://example.com"}) for text in ("one", "two")]
    (tmp_path / "c4.json").write_text("\n".join(lines))
    pd.DataFrame({"text": ["three", "four"]}).to_parquet(tmp_path / "owt.parquet")
    pd.DataFrame({"article": ["five", "six" * 99], "highlights": "", "id": "0"}).to_parquet(tmp_path / "cnn.parquet")
    return [
        C4(f"{tmp_path}/c4.json"),
        OpenWebText(f"{tmp_path}/owt.parquet"),
        CNNDailyMail(f"{tmp_path}/cnn.parquet"),
    ]


def test_texts_follow_each_other_with_their_set_as_category(sets):
    rows = Texts(sets).load()
    assert [turns[0] for turns in rows["turns"]][:5] == ["one", "two", "three", "four", "five"]
    assert rows["category"] == ["C4"] * 2 + ["OpenWebText"] * 2 + ["CNNDailyMail"] * 2
    assert rows["prompt_id"][2] == "OpenWebText/0"


def test_a_text_gives_its_first_128_tokens(sets):
    *_, last = Workload(Texts(sets)).load(byte_tokenizer())
    assert len(last.token_ids) == 128


def test_the_paper_has_an_arm_for_each_method_and_temperature():
    experiment = load_config("experiments/papers/dyspec/paper.yaml")
    arms = {arm.title: arm.config.get("verifier.class_path") for arm in check_experiment(experiment)}
    for method in ("DySpec, greedy, a node a pass", "Sequoia", "SpecInfer, 8 x 8"):
        assert arms[method] == "Greedy"
        assert arms[f"{method}, temperature 0.6"] == "RejectionSampling"
