"""A space is checked word by word before the first trial, and draws only keys of the chosen part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
import pytest
from helpers.fake_bench import FakeBench, read_section, settings

from specexp.config import ConfigError
from specexp.config.check import Checker
from specexp.sweep.space import Space, check_goals

NODES = {"builder.init_args.nodes": {"type": "int", "low": 1, "high": 8}}


def space_of(section: Mapping[str, Any]) -> Space:
    return Space(read_section({"space": section}))


def refused(section: Mapping[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        space_of(section)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"type": "integer", "low": 1, "high": 2}, "got 'integer'"),
        ({"type": "int", "low": 1, "hihg": 2}, "did you mean 'sweep.space.builder.init_args.nodes.high'"),
        ({"type": "int", "low": 1}, "high is missing"),
        ({"type": "int", "low": 1.5, "high": 2}, "low must be an integer, got 1.5"),
        ({"type": "int", "low": 3, "high": 2}, "low 3 is above high 2"),
        ({"type": "float", "low": 0.0, "high": 2.0, "log": True}, "must be above 0"),
        ({"type": "float", "low": 1.0, "high": 2.0, "log": True, "step": 0.1}, "do not go together"),
        ({"type": "int", "low": 1, "high": 2, "step": 0}, "step must be >= 1, got 0"),
        ({"type": "categorical", "choices": []}, "choices is empty"),
        ({"type": "categorical", "choices": [{"class_path": "Chain"}]}, "needs a name"),
        ({"type": "categorical", "choices": ["a", "a"]}, "two choices are called 'a'"),
        (7, "a mapping"),
        ({"type": "int", "low": "1", "high": 2}, "low must be an integer, got '1'"),
    ],
)
def test_a_malformed_entry_is_refused_in_one_sentence(entry: Any, words: str) -> None:
    sentence = refused({"builder.init_args.nodes": entry})
    assert "builder.init_args.nodes" in sentence
    assert words in sentence


def test_what_all_trials_share_cannot_be_searched() -> None:
    assert "pair.target cannot be searched" in refused(
        {"pair.target": {"type": "categorical", "choices": ["a"]}}
    )


def test_an_empty_space_is_refused() -> None:
    assert "at least one dotted key" in refused({})


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"space": NODES, "n_trails": 3}, "did you mean 'sweep.n_trials'"),
        ({"space": NODES, "n_trials": 0}, "sweep.n_trials must be >= 1, got 0"),
        ({"space": NODES, "objectives": ["sped"]}, "did you mean 'speedup'"),
        (
            {"space": NODES, "objectives": {"speedup": "up"}},
            "speedup must be ",
        ),
        ({"space": NODES, "constraints": {"max_nodes": 3}}, "did you mean 'max_draft_nodes'"),
        ({"space": NODES, "enqueue": [{"builder": "a"}, {"builder": "a"}]}, "two configurations"),
        ({"space": NODES, "confirm": {"best": 0}}, "sweep.confirm.best must be >= 1, got 0"),
    ],
)
def test_a_wrong_section_is_refused_in_one_sentence(section: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_goals(read_section(section), Checker(lambda key: "mine.yaml"))
    assert words in str(caught.value)


def test_a_key_is_drawn_only_where_the_chosen_class_has_it() -> None:
    space, bench = Space(settings()), FakeBench()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(20):
        overrides = space.suggest(study.ask(), bench.applies)
        chosen = overrides["builder"]["class_path"]
        assert ("builder.init_args.decay" in overrides) == (chosen == "Bush")
        seen.add(chosen)
    assert seen == {"Bush", "Chain"}


def test_a_known_configuration_inside_the_space_becomes_its_parameters() -> None:
    space = Space(settings())
    inside = {"builder": {"class_path": "Chain"}, "builder.init_args.nodes": 7}
    assert space.params_of(inside) == {"builder": "chain", "builder.init_args.nodes": 7}
    assert space.params_of({"builder": {"class_path": "Elsewhere"}}) is None
    assert space.params_of({"builder": {"class_path": "Chain"}, "builder.init_args.nodes": 65}) is None


BOUNDED = {
    "execution.init_args.n": {"type": "int", "low": 1, "high": 8},
    "execution.init_args.verify_batch": {
        "type": "int",
        "low": 1,
        "high": 8,
        "at_most": "execution.init_args.n",
    },
}


def test_a_number_stays_within_the_one_that_bounds_it_and_is_stored_as_drawn() -> None:
    study, pairs = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5)), set()
    for _ in range(30):
        trial = study.ask()
        drawn = space_of(BOUNDED).suggest(trial, lambda key, overrides: True)
        assert trial.params == drawn
        n, batch = drawn.values()
        assert 1 <= batch <= n
        pairs.add((n, batch))
        study.tell(trial, n - batch)
    assert any(batch == n > 1 for n, batch in pairs), "the bound itself is drawn"
    assert any(batch < n for n, batch in pairs)


def test_a_bound_that_is_not_drawn_bounds_nothing() -> None:
    def applies(key: str, overrides: Mapping[str, Any]) -> bool:
        return key.endswith("verify_batch")

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = {
        space_of(BOUNDED).suggest(study.ask(), applies)["execution.init_args.verify_batch"] for _ in range(40)
    }
    assert drawn == set(range(1, 9))


@pytest.mark.parametrize(
    ("at_most", "words"),
    [
        ("execution.init_args.m", "allowed are execution.init_args.n"),
        ("execution.init_args.verify_batch", "a whole number of the space that stands before it"),
        (3, "at_most must be "),
    ],
)
def test_a_bound_that_cannot_be_followed_is_refused(at_most: Any, words: str) -> None:
    key = "execution.init_args.verify_batch"
    sentence = refused({**BOUNDED, key: {**BOUNDED[key], "at_most": at_most}})
    assert key in sentence
    assert words in sentence


CHAIN = {"builder": {"class_path": "Chain"}}
SURE = {**CHAIN, "controller": {"class_path": "Sure"}}
METHODS = {
    "method": {
        "type": "categorical",
        "choices": [
            {"name": "chain", **CHAIN},
            {"name": "chain while sure", **SURE},
            {"name": "bush", "builder": {"class_path": "Bush"}},
        ],
    },
    **NODES,
    "builder.init_args.decay": {"type": "float", "low": 0.1, "high": 1.0},
}


def test_a_method_brings_its_parts_and_the_keys_of_these() -> None:
    space, bench = space_of(METHODS), FakeBench()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(20):
        trial = study.ask()
        overrides = space.suggest(trial, bench.applies)
        method = trial.params["method"]
        assert ("controller" in overrides) == (method == "chain while sure")
        assert ("builder.init_args.decay" in overrides) == (method == "bush")
        assert "method" not in overrides
        assert space.params_of(overrides) == trial.params
        seen.add(method)
    assert seen == {"chain", "chain while sure", "bush"}


def test_a_known_configuration_asks_for_a_method_by_its_name() -> None:
    first = [{"name": "sure of 2", "method": "chain while sure", "builder.init_args.nodes": 2}]
    chosen = read_section({"space": METHODS, "enqueue": first})
    assert chosen.known[0].overrides == {**SURE, "builder.init_args.nodes": 2}
    params = {"method": "chain while sure", "builder.init_args.nodes": 2}
    assert Space(chosen).params_of(chosen.known[0].overrides) == params


def test_parts_that_are_no_methods_lie_outside_the_space() -> None:
    assert space_of(METHODS).params_of({"builder": {"class_path": "Elsewhere"}}) is None


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"method": {"type": "int", "low": 1, "high": 2}}, "type is 'int'"),
        ({"method": {"type": "categorical", "choices": ["chain"]}}, "needs a name and parts"),
        ({"method": {"type": "categorical", "choices": [{"name": "nothing"}]}}, "'nothing' sets nothing"),
        (
            {"method": {"type": "categorical", "choices": [{"name": "chain", "bilder": {}}]}},
            "did you mean 'builder'",
        ),
        (
            {**METHODS, "builder": {"type": "categorical", "choices": [{"name": "a", "class_path": "A"}]}},
            "searched and set by the method 'chain'",
        ),
    ],
)
def test_a_malformed_method_is_refused_in_one_sentence(space: Any, words: str) -> None:
    assert words in refused(space)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"enqueue": [{"name": "a", "method": "chian"}]}, "did you mean 'chain'"),
        ({"confirm": {"of_each": "methods"}}, "did you mean 'method'"),
        ({"confirm": {"of_each": "builder.init_args.nodes"}}, "a key of the space with choices"),
    ],
)
def test_what_names_no_method_or_choice_is_refused(section: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_section({"space": METHODS, **section})
    assert words in str(caught.value)
