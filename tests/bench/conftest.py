"""A tiny target and draft, prompts for them, and records made by hand."""

import random

import pytest
from helpers.small_models import EOS, LetterTokenizer, tiny_llama

from specexp.data import Prompt


@pytest.fixture(scope="session")
def target():
    return tiny_llama(seed=0)


@pytest.fixture(scope="session")
def draft():
    """Near enough to the target for some of its guesses to be right."""
    return tiny_llama(seed=0, noise=0.03)


@pytest.fixture
def tokenizer() -> LetterTokenizer:
    return LetterTokenizer()


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    """Eight prompts of one or two turns, in which tokens repeat so that prompt lookup finds something."""
    made = []
    for number in range(8):
        tokens = random.Random(number).choices(range(EOS + 1, 48), k=4 + number) * 2
        turns = ("first", "second") if number % 2 else ("only",)
        made.append(Prompt(f"p{number}", "even" if number % 2 == 0 else "odd", turns, tuple(tokens), number))
    return made
