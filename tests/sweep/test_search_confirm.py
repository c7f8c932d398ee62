"""The notes and sentences of a confirmation, from records made by hand."""

from dataclasses import replace

import optuna
import pytest
from helpers import made_records

from specexp.bench.record import SequenceGroup
from specexp.bench.statistics import paired_speedup
from specexp.sweep.confirmation import Confirmation, Confirmed, Watch, answer, select, sentences, table

TREE = "80-node tree"
CHAIN = {"rank_paths": [[0]], "nodes": 1, "depth": 1}


def record(arm, prompt, seconds, tokens=(5, 6, 7, 8)):
    ended = ("eos" if prompt == 0 else "length",)
    return made_records.record(arm, prompt, seconds, token_ids=tokens, finish_reasons=ended, steps=2)


def measured(tree_seconds):
    """A tree that takes so many seconds where plain decoding takes one."""
    records = [record(arm, prompt, 1.0) for arm in ("plain", "hf-eager") for prompt in range(len(tree_seconds))]
    records += [record(TREE, prompt, seconds) for prompt, seconds in enumerate(tree_seconds)]
    over_plain, over_eager = (paired_speedup(records, TREE, baseline) for baseline in ("plain", "hf-eager"))
    attributes = {"rank_paths": [[0], [1]], "nodes": 2, "depth": 1}
    return [Confirmed(TREE, 0, (), attributes, 2.0, 4.0, over_plain, over_eager)], records


def confirmation(confirmed, records):
    return Confirmation(confirmed, records, {}, Watch())


def shown(confirmed, records):
    return table("study", confirmation(confirmed, records))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ((0.5, 0.5, 0.5, 0.5), None),
        ((2.0, 2.0, 2.0, 2.0), "80-node tree is slower than plain decoding: 0.50x [0.50, 0.50]."),
        ((0.99, 1.01, 0.99, 1.01), "is not faster than plain decoding: 1.00x [0.98, 1.02], and a gain worth"),
        ((0.5, 2.0, 0.5, 2.0), "Cannot tell yet whether 80-node tree is faster than plain decoding: 1.00x ["),
        ((0.5, 0.5, 0.5), "2.00x [2.00, 2.00] on 3 prompts; a verdict needs at least 4."),
    ],
)
def test_the_answer_is_one_of_three_verdicts(seconds, text):
    confirmed, records = measured(seconds)
    found = shown(confirmed, records)
    first = [row["tree"] for row in found.records()]
    if text is None:
        assert first == [TREE, "plain decoding", "Hugging Face's loop (hf-eager)"]
        assert answer(confirmation(confirmed, records)).endswith("as fast as plain decoding, with the same output.")
    else:
        assert first == ["plain decoding", "Hugging Face's loop (hf-eager)", TREE]
        assert text in answer(confirmation(confirmed, records))


def test_a_table_names_the_fewer_prompts_of_candidates_for_comparison():
    confirmed, records = measured((0.5,) * 4)
    other = replace(confirmed[0], name="chain")
    records += [replace(record, arm="chain") for record in records[8:10]]
    notes = shown([*confirmed, other], records).notes
    assert "all but the best candidates decoded only the first 2" in notes
    assert not any("only the first" in note for note in shown(confirmed, records[:12]).notes)


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ((0.5,) * 4, (0.6,) * 4, "first"),
        ((0.2, 0.4, 1.6, 0.4), (0.6,) * 4, "second"),  # the fastest in the mean, but not by the interval
        ((1.1, 1.2, 0.9, 1.0), (1.3,) * 4, "first"),  # the fastest, since none is faster than plain decoding
    ],
)
def test_the_verdict_is_on_the_fastest_that_is_shown_to_be_faster(first, second, winner):
    seconds = {"plain": (1.0,) * 4, "first": first, "second": second}
    records = [record(arm, prompt, one) for arm, taken in seconds.items() for prompt, one in enumerate(taken)]
    found = [
        Confirmed(name, number, (), CHAIN, 2.0, 4.0, paired_speedup(records, name, "plain"), None)
        for number, name in enumerate(("first", "second"))
    ]
    found.sort(key=lambda one: -one.over_plain.mean_log_ratio)
    ended = confirmation(found, records)
    assert ended.winner.name == winner
    assert f"{winner} " in answer(ended)


@pytest.mark.parametrize(("slowest", "fold"), [(37.0, "37-fold"), (2.0, None)])
def test_the_answer_warns_of_a_busy_machine(slowest, fold):
    confirmed, records = measured((0.5, 0.5, 0.5, 0.5))
    records[0] = record("plain", 0, slowest)
    text = answer(confirmation(confirmed, records))
    sentence = f"time per token varied {fold} between prompts: the machine was busy, so read the intervals"
    assert (sentence in text) == (fold is not None)


def test_shares_of_eos_and_loops_stand_under_the_table_and_equality_in_it():
    confirmed, records = measured((0.5, 0.5, 0.5, 0.5))
    records[-1] = record(TREE, 3, 0.5, (5, 6, 7, 9))
    found = shown(confirmed, records)
    notes = "\n".join(found.notes)
    assert "of plain decoding's answers, 25 % end with EOS and 0 % in a loop" in notes
    assert [row["equal outputs"] for row in found.records()] == ["3/4, 1 DIFFER", "reference", "4/4"]


def test_settings_of_groups_have_a_column_of_the_targets_use():
    records = [record("plain", prompt, 1.0) for prompt in range(4)]
    records += [record("trial 7", prompt, 0.5) for prompt in range(4)]
    records += [record("serial chain", prompt, 0.8) for prompt in range(4)]
    busy = {"plain": 0.9, "trial 7": 0.75, "serial chain": 0.5}
    records = [replace(one, group=SequenceGroup(2, 2.0, busy_seconds=2 * busy[one.arm])) for one in records]
    confirmed = [
        Confirmed(name, number, chosen, CHAIN, 2.0, 4.0, paired_speedup(records, name, "plain"), None)
        for number, (name, chosen) in enumerate([("trial 7", ("scheduled", "n=3")), ("serial chain", ())])
    ]

    found = shown(confirmed, records)
    rows = {str(row["setting"]): row["target busy"] for row in found.records()}
    assert rows == {"trial 7 (scheduled, n=3)": 0.75, "serial chain": 0.5, "plain decoding": 0.9}
    assert any("is faster than serial chain: " in sentence for sentence in sentences(confirmation(confirmed, records)))
    assert not any("best chain" in sentence for sentence in sentences(confirmation(confirmed, records)))


def searched():
    """Two methods: chains of 1.1, 1.3 and 1.2, a bush of 0.9; the slowest chain was known before."""
    study = optuna.create_study(direction="maximize")
    for method, value in [("chain", 1.1), ("chain", 1.3), ("bush", 0.9), ("chain", 1.2)]:
        attributes = {"known": "first"} if value == 1.1 else {}
        space = {"method": optuna.distributions.CategoricalDistribution(["chain", "bush"])}
        study.add_trial(
            optuna.create_trial(params={"method": method}, distributions=space, value=value, user_attrs=attributes)
        )
    return study


def test_the_best_are_confirmed_with_the_known_ones_or_with_the_best_of_each_choice():
    assert [trial.value for trial in select(searched(), 1)] == [1.3, 1.1]
    assert [trial.value for trial in select(searched(), 1, "method")] == [1.3, 0.9]
    assert [trial.value for trial in select(searched(), 2, "method")] == [1.3, 1.2, 0.9]


def test_the_winner_is_compared_with_the_best_of_every_other_method():
    seconds = {"plain": 1.0, "trial 1": 0.5, "trial 3": 0.6, "trial 2": 0.8}
    records = [record(arm, prompt, taken) for arm, taken in seconds.items() for prompt in range(4)]
    methods = [("trial 1", "chain"), ("trial 3", "chain"), ("trial 2", "bush")]
    confirmed = [
        Confirmed(name, number, (method,), CHAIN, 2.0, 4.0, paired_speedup(records, name, "plain"), None, method)
        for number, (name, method) in enumerate(methods)
    ]
    text = sentences(confirmation(confirmed, records))
    assert text == [
        "trial 1 (chain) is faster than the best confirmed of bush (trial 2): 1.60x [1.60, 1.60], prompt by prompt."
    ]
    assert {row["method"] for row in shown(confirmed, records).records()} > {"trial 2 (bush)"}
