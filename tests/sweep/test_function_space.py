"""A user's function may draw the settings of a study, as in the example on the page on adding parts."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from helpers.small_study import refused, write

from specexp.sweep.command import main

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCKS = dict(re.findall(r"```(\w+)\n# my_space\.\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


@pytest.fixture
def drawn(small, monkeypatch):
    """The small experiment, with the page's function in a module of the working directory."""
    Path("my_space.py").write_text(BLOCKS["python"])
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "my_space", raising=False)
    small["sweep"] |= yaml.safe_load(BLOCKS["yaml"])["sweep"] | {"enqueue": [], "count_acceptances": None}
    return small


def test_a_dry_run_composes_what_the_function_draws(drawn, capsys):
    assert main([write(drawn), "--dry-run"]) == 0
    assert "my_space.suggest, source" in capsys.readouterr().out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('"nodes": nodes', '"nodez": nodes', "my_space.suggest: builder.init_args.nodez is unknown; did you mean"),
        ('{"builder": {"class_path": "Chain"', '{"pair": {"class_path": "Chain"', "must return keys of drafter"),
        ("return {", "return {}, {", "my_space.suggest must return a mapping of dotted keys to values, got ({}"),
        ("suggest(trial)", "suggests(trial)", "my_space.suggest cannot be called: AttributeError: module"),
    ],
    ids=["unknown key", "key that is not searched", "no mapping", "no function"],
)
def test_a_wrong_function_is_one_sentence(drawn, capsys, was, now, words):
    module = Path("my_space.py")
    assert was in module.read_text()
    module.write_text(module.read_text().replace(was, now))
    sentence = refused(capsys, write(drawn), "--dry-run")
    assert words in sentence
    assert sentence.startswith("small.yaml: sweep.space: my_space.suggest")


@pytest.mark.slow
def test_a_study_with_a_function_is_exported_and_goes_on(drawn, capsys):
    file = write(drawn)
    assert main([file, "--n-trials", "2"]) == 0
    assert main([file, "--n-trials", "3"]) == 0
    assert "2 of 3 trials are finished" in capsys.readouterr().out
    assert Path("artifacts/small/v1/artifact.json").exists()
    module = Path("my_space.py")
    module.write_text(module.read_text().replace('"nodes", depth, 24', '"nodes", depth, 20'))
    sys.modules.pop("my_space")
    assert "exists already with another space" in refused(capsys, file)
