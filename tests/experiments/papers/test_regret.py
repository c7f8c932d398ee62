"""Regret is a ratio of paired times: every figure here is computed by hand."""

import pytest
from helpers.made_records import record

from experiments.papers.regret import Regret
from specexp.builders import Chain
from specexp.controllers import Fixed, Oracle
from specexp.core.parts import Parts
from specexp.drafters import DraftModel
from specexp.testing.fakes import hashed_model
from specexp.verifiers import Greedy

SECONDS = {"oracle": (1.0, 2.0), "learned": (1.1, 2.2), "fixed": (1.5, 3.0), "engine": (3.0, 6.0)}
RECORDS = [record(arm, prompt, SECONDS[arm][prompt]) for prompt in range(2) for arm in SECONDS]


def report(records=RECORDS, **given):
    draft = DraftModel(hashed_model(5))
    analysis = Regret(**given)
    analysis.begin(
        {
            "engine": Parts(None, None, Greedy(), Fixed()),
            "oracle": Parts(draft, Chain(4), Greedy(), Oracle()),
            "learned": Parts(draft, Chain(4), Greedy(), Fixed()),
            "fixed": Parts(draft, Chain(4), Greedy(), Fixed(2)),
        }
    )
    return analysis.report(records)


def test_it_is_the_time_per_token_over_the_oracles():
    rows = {row["arm"]: row for row in report().tables["regret"].records()}
    assert rows["learned"]["regret"] == "1.10x [1.10, 1.10]"
    assert rows["fixed"]["regret"] == "1.50x [1.50, 1.50]"
    assert rows["oracle (the oracle)"]["regret"] is None


def test_arms_are_told_against_each_other_in_pairs():
    """1.5 / 1.1 = 1.36 whoever the oracle is; the oracle itself needs no pair."""
    rows = {row["arm"]: row for row in report(compare=["learned", "fixed"]).tables["regret_pairs"].records()}
    assert rows["fixed"]["over learned"] == "1.36x [1.36, 1.36]"
    assert rows["learned"]["over fixed"] == "0.73x [0.73, 0.73]"
    assert rows["learned"]["over learned"] is None
    assert list(rows) == ["learned", "fixed"]


def test_an_arm_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="'none', but the arms are"):
        report(compare=["learned", "none"])
