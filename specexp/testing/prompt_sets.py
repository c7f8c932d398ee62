"""The promises of every prompt set, as tests that an implementation inherits, also outside this project."""

import inspect

import pytest
from datasets import Features, List, Value

from specexp.data import PromptSet


class PromptSetContract:
    """Inherit, and say how to make one in the fixture ``prompt_set``; pytest finds the rest.

    Example::

        class TestGreetings(PromptSetContract):
            @pytest.fixture
            def prompt_set(self, tmp_path):
                return Greetings(path=write_small_file(tmp_path))
    """

    @pytest.fixture
    def prompt_set(self) -> PromptSet:
        """Return a set that can be loaded here; a small local file is enough."""
        raise NotImplementedError(f"{type(self).__name__} has to override the fixture prompt_set.")

    def test_rows_have_the_common_columns(self, prompt_set: PromptSet) -> None:
        text = Value("string")
        message = {"role": text, "content": text}
        assert prompt_set.load().features == Features(
            prompt_id=text, category=text, turns=List(text), context=List(message), chat=Value("bool")
        )

    def test_every_prompt_has_an_id_of_its_own_a_category_and_turns(self, prompt_set: PromptSet) -> None:
        """``load`` raises for an empty set."""
        ids = list(prompt_set.load()["prompt_id"])
        assert ids
        assert len(set(ids)) == len(ids)
        assert all(prompt_id.strip() for prompt_id in ids)
        for row in prompt_set.load():
            assert row["category"].strip()
            assert row["turns"]
            assert all(turn.strip() for turn in row["turns"])

    def test_every_load_gives_the_same_rows(self, prompt_set: PromptSet) -> None:
        assert prompt_set.load().to_list() == prompt_set.load().to_list()

    def test_every_constructor_parameter_is_annotated(self, prompt_set: PromptSet) -> None:
        assert prompt_set.prompt_tokens is None or prompt_set.prompt_tokens >= 1
        parameters = inspect.signature(type(prompt_set)).parameters.values()
        assert [p.name for p in parameters if p.annotation is inspect.Parameter.empty] == []
