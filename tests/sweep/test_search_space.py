"""A space is checked key by key before the first trial, and draws only keys of the chosen part."""

from typing import Any

import optuna
import pytest
from helpers.fake_bench import FakeBench, read_section, settings

from specexp.config import ConfigError
from specexp.config.check import Checker
from specexp.config.sweep import name_of
from specexp.sweep.space import Space, check_goals

NODES = {"builder.init_args.nodes": {"type": "int", "low": 1, "high": 8}}
CHAIN = {"builder": {"class_path": "Chain"}}
SURE = {**CHAIN, "controller": {"class_path": "Sure"}}
BUSH = {"builder": {"class_path": "Bush"}}
METHODS = {
    "method": {
        "type": "categorical",
        "choices": [
            {"name": "chain", **CHAIN},
            {"name": "chain while sure", **SURE},
            {"name": "bush", **BUSH},
        ],
    },
    **NODES,
    "builder.init_args.decay": {"type": "float", "low": 0.1, "high": 1.0},
}
N, BATCH = "execution.init_args.n", "execution.init_args.verify_batch"
BOUNDED: dict[str, Any] = {
    N: {"type": "int", "low": 1, "high": 8},
    BATCH: {"type": "int", "low": 1, "high": 8, "at_most": N},
}


def space_of(section):
    return Space(read_section({"space": section}))


def bounded_by(key):
    return {**BOUNDED, BATCH: {**BOUNDED[BATCH], "at_most": key}}


def choices(key, *found):
    return {key: {"type": "categorical", "choices": list(found)}}


def nodes(**entry):
    return {"builder.init_args.nodes": entry}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "at least one dotted key"),
        (choices("pair.target", "a"), "pair.target cannot be searched"),
        (nodes(type="integer", low=1, high=2), "got 'integer'"),
        (nodes(type="int", low=1, hihg=2), "did you mean 'sweep.space.builder.init_args.nodes.high'"),
        (nodes(type="int", low=1.5, high=2), "builder.init_args.nodes.low must be an integer, got 1.5"),
        (nodes(type="int", low=3, high=2), "low must be <= high, got low 3 and high 2"),
        (nodes(type="float", low=0.0, high=2.0, log=True), "must be > 0 if log is true"),
        (nodes(type="float", low=1.0, high=2.0, log=True, step=0.1), "step cannot be combined with log: true"),
        (choices("builder.init_args.nodes"), "choices must not be empty"),
        (choices("builder.init_args.nodes", {"class_path": "Chain"}), "must have a name"),
        (choices("builder.init_args.nodes", "a", "a"), "two choices are called 'a'"),
        (bounded_by("execution.init_args.m"), f"{BATCH}: at_most must be an earlier integer"),
        (bounded_by(BATCH), "an earlier integer of the space"),
        ({"method": {"type": "int", "low": 1, "high": 2}}, "type must be categorical"),
        (choices("method", "chain"), "must set a name and at least one of"),
        (choices("method", {"name": "nothing"}), "{'name': 'nothing'} must set a name and at least one of"),
        (choices("method", {"name": "chain", "bilder": {}}), "did you mean 'builder'"),
        ({**METHODS, **choices("builder", {"name": "a", **CHAIN})}, "is searched, but also set by the method 'chain'"),
    ],
)
def test_a_malformed_space_is_refused_in_one_sentence(space, words):
    with pytest.raises(ConfigError) as caught:
        space_of(space)
    assert "\n" not in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"n_trails": 3}, "did you mean 'sweep.n_trials'"),
        ({"objectives": ["spedup"]}, "did you mean 'speedup'"),
        ({"constraints": {"max_nodes": 3}}, "did you mean 'max_nodes_per_step'"),
        ({"constraints": {"min_nodes_per_step": 9, "max_nodes_per_step": 8}}, "must be <= max_nodes_per_step, got 9"),
        ({"enqueue": [{"builder": "a"}, {"builder": "a"}]}, "two configurations"),
        ({"confirm": {"best": 0}}, "sweep.confirm.best must be >= 1, got 0"),
        ({"enqueue": [{"name": "a", "method": "chian"}]}, "did you mean 'chain'"),
        ({"confirm": {"of_each": "methods"}}, "did you mean 'method'"),
        ({"confirm": {"of_each": "builder.init_args.nodes"}}, "a key of the space with choices"),
    ],
)
def test_a_wrong_section_is_refused_in_one_sentence(section, words):
    with pytest.raises(ConfigError) as caught:
        check_goals(read_section({"space": METHODS, **section}), Checker(lambda key: "mine.yaml"))
    assert words in str(caught.value)


def test_a_key_is_drawn_only_where_the_chosen_class_has_it():
    space, bench = Space(settings()), FakeBench()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [space.suggest(study.ask(), bench.applies) for _ in range(20)]
    kinds = {(one["builder"]["class_path"], "builder.init_args.decay" in one) for one in drawn}
    assert kinds == {("Bush", True), ("Chain", False)}


def test_a_number_stays_within_the_one_that_bounds_it_and_is_stored_as_drawn():
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


def test_a_method_brings_its_parts_and_the_keys_of_these():
    space, bench = space_of(METHODS), FakeBench()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    methods = set()
    for _ in range(20):
        trial = study.ask()
        overrides = space.suggest(trial, bench.applies)
        method = trial.params["method"]
        assert ("controller" in overrides) == (method == "chain while sure")
        assert ("builder.init_args.decay" in overrides) == (method == "bush")
        assert "method" not in overrides
        assert space.params_of(overrides) == trial.params
        methods.add(method)
    assert methods == {"chain", "chain while sure", "bush"}


def test_a_known_configuration_names_a_method():
    first = [{"name": "sure of 2", "method": "chain while sure", "builder.init_args.nodes": 2}]
    chosen = read_section({"space": METHODS, "enqueue": first})
    assert chosen.known[0].overrides == {**SURE, "builder.init_args.nodes": 2}
    params = {"method": "chain while sure", "builder.init_args.nodes": 2}
    assert Space(chosen).params_of(chosen.known[0].overrides) == params
    assert Space(chosen).params_of({"builder": {"class_path": "Elsewhere"}}) is None


def test_a_settings_name_leaves_out_what_is_not_set():
    settings = {"method": "ngram", "num_speculative_tokens": 4, "model": None}
    engine = {
        "class_path": "specexp.engines.vllm.VLLM",
        "init_args": {"settings": settings, "target": None, "eager": True},
    }
    assert name_of({"engine": engine}) == "VLLM(settings=(method=ngram, num_speculative_tokens=4), eager=True)"
