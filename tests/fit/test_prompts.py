from __future__ import annotations

from pathlib import Path

import pytest

from specexp.data.corpus.modules import held_out_texts
from specexp.data.stdlib_functions import prompt_of, stdlib_functions


@pytest.mark.parametrize("split", ["validation", "test"])
def test_there_are_prompts_enough_for_search_and_confirmation(split: str) -> None:
    prompts = stdlib_functions(split)  # type: ignore[arg-type]
    assert len(prompts) >= 200
    assert len(set(prompts["prompt_id"])) == len(prompts)
    assert len(set(prompts["category"])) >= 15
    assert stdlib_functions(split, limit=5)["prompt_id"] == prompts["prompt_id"][:5]  # type: ignore[arg-type]
    assert all(not prompt.endswith("\n") for prompt in prompts["prompt"])
    texts = held_out_texts(split)  # type: ignore[arg-type]
    for prompt in prompts["prompt"][:20]:
        assert any(text.startswith(prompt + "\n") for text in texts)


def test_validation_and_test_share_no_module() -> None:
    modules = [
        {name.split(".")[0] for name in stdlib_functions(s)["category"]} for s in ("validation", "test")
    ]
    assert not modules[0] & modules[1]


def test_a_prompt_is_head_docstring_and_some_of_the_body() -> None:
    lines = ["def f(self, value):", '    """Does what it says, at some length, so that it counts."""']
    lines += [f"    step_{i} = self.compute(value, {i})" for i in range(12)]
    prompt = prompt_of("\n".join(lines) + "\n")
    assert prompt is not None
    assert prompt.splitlines() == lines[: len(prompt.splitlines())]
    assert 4 <= len(prompt.splitlines()) <= 8
    assert prompt_of("def f():\n    return 1\n") is None


def test_errors_name_split_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split is 'dev'; allowed are train, validation, test"):
        stdlib_functions("dev")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=str(tmp_path)):
        stdlib_functions("test", root=tmp_path)
