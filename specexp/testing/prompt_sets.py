"""Conformance tests for prompt sets, to be inherited by the tests of any implementation."""

import inspect

from datasets import Features, Json, List, Value

from specexp.data import PromptSet


class PromptSetContract:
    """Base class for prompt set tests. Subclasses define the fixture ``prompt_set``; pytest then collects the tests.

    The set must be loadable in the test; a small local file is enough.

    Example::

        class TestGreetings(PromptSetContract):
            @pytest.fixture
            def prompt_set(self, tmp_path):
                return Greetings(path=write_small_file(tmp_path))
    """

    def test_rows_have_the_common_columns(self, prompt_set: PromptSet) -> None:
        text = Value("string")
        assert prompt_set.load().features == Features(
            prompt_id=text,
            category=text,
            turns=List(text),
            context=List(Json()),
            chat=Value("bool"),
            structured_outputs=Json(),
        )

    def test_every_prompt_has_an_id_of_its_own_a_category_and_turns(self, prompt_set: PromptSet) -> None:
        """``load`` raises an error for an empty set."""
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
        assert unannotated(prompt_set) == []


def unannotated(part: object) -> list[str]:
    """Return the names of constructor parameters without annotations, which a configuration cannot check."""
    parameters = inspect.signature(type(part)).parameters.values()
    return [one.name for one in parameters if one.annotation is inspect.Parameter.empty]
