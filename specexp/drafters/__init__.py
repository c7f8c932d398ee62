"""Drafters: who guesses the next tokens."""

from specexp.core.drafter import Candidates, Drafter, Request
from specexp.drafters.draft_model import DraftModel
from specexp.drafters.phrase_cache import PhraseCache
from specexp.drafters.prompt_lookup import PromptLookup
from specexp.drafters.token_recycling import TokenRecycling
from specexp.drafters.union import Union

__all__ = [
    "Candidates",
    "DraftModel",
    "Drafter",
    "PhraseCache",
    "PromptLookup",
    "Request",
    "TokenRecycling",
    "Union",
]
