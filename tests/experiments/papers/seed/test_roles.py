"""Table 2: generator and evaluator apart."""

import pytest
from helpers.made_groups import group_of, role_of, rows_in

from experiments.papers.seed.speedups import Roles
from specexp.testing.analyses import AnalysisContract


class TestRoles(AnalysisContract):
    def make_analysis(self):
        return Roles(published=[seed("generator", 0.41), {"role": "judge", "method": "x"}])


def seed(role, acceptance, **figures):
    return {"role": role, "method": "SEED", "acceptance": acceptance, **figures}


RECORDS = [
    group_of(
        "engine", 0, 9.0, roles={"generator": role_of(4.0, drafted=0), "evaluator": role_of(3.0, prefill=1.0)}
    ),
    group_of("seed", 0, 9.0, roles={"generator": role_of(2.0), "evaluator": role_of(1.5, prefill=0.5)}),
    group_of("engine", 1, 9.0, roles={"generator": role_of(8.0, drafted=0)}),
    group_of("seed", 1, 9.0, roles={"generator": role_of(1.0, accepted=15, steps=10)}),
]


def rows_of(records=RECORDS, published=None, table="roles", **wanted):
    return rows_in(Roles(published=published), table, records, **wanted)


def test_a_component_has_its_own_speedup():
    """Ratios 2 and 8 of the generator; of the evaluator 3 / 1.5, with prefills 4 / 2."""
    (generator,) = rows_of(component="generator", arm="seed")
    assert generator["decoding vs engine"] == "4.00x [2.00, 8.00]"
    (evaluator,) = rows_of(component="evaluator", arm="seed")
    assert evaluator["decoding vs engine"] == "2.00x (one prompt)"
    assert evaluator["with prefills"] == "2.00x (one prompt)"


def test_its_drafts_are_counted():
    (row,) = rows_of(component="generator", arm="seed")
    assert (row["sequences"], row["tokens"]) == (6, 20)
    assert row["tokens/step"] == pytest.approx(20 / 15)
    assert row["accepted/step"] == pytest.approx(20 / 15)
    assert row["alpha"] == 0.5


def test_plain_decoding_drafts_nothing():
    (row,) = rows_of(component="generator", arm="engine")
    assert (row["accepted/step"], row["alpha"], row["with prefills"]) == (None, None, None)


def test_published_rows_stand_with_their_component():
    published = [seed("evaluator", 0.35, speedup=1.35), seed("generator", 0.41)]
    found = [(row["component"], row["arm"]) for row in rows_of(published=published)]
    assert found == [
        ("generator", "engine"),
        ("generator", "seed"),
        ("generator", "SEED (not run here)"),
        ("evaluator", "engine"),
        ("evaluator", "seed"),
        ("evaluator", "SEED (not run here)"),
    ]
    (row,) = rows_of(published=published, arm="SEED (not run here)", component="evaluator")
    assert (row["alpha"], row["with prefills"]) == (0.35, "1.35x published")
