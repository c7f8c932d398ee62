"""Drafters: who guesses the next tokens."""

from specexp.drafters.draft_model import DraftModel
from specexp.drafters.phrase_cache import PhraseCache
from specexp.drafters.prompt_lookup import PromptLookup
from specexp.drafters.token_recycling import TokenRecycling
from specexp.drafters.union import Union

__all__ = [
    "DraftModel",
    "PhraseCache",
    "PromptLookup",
    "TokenRecycling",
    "Union",
]
