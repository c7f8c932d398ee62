"""Drafters guess the next tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in

if TYPE_CHECKING:
    from specexp.drafters.dflash import DFlash as DFlash
    from specexp.drafters.draft_model import DraftModel as DraftModel
    from specexp.drafters.eagle import Eagle as Eagle
    from specexp.drafters.eagle3 import Eagle3 as Eagle3
    from specexp.drafters.early_exit import EarlyExit as EarlyExit
    from specexp.drafters.grammar import Grammar as Grammar
    from specexp.drafters.lookahead import Lookahead as Lookahead
    from specexp.drafters.medusa import Medusa as Medusa
    from specexp.drafters.mtp import Mtp as Mtp
    from specexp.drafters.phrase_cache import PhraseCache as PhraseCache
    from specexp.drafters.prompt_lookup import PromptLookup as PromptLookup
    from specexp.drafters.suffix_automaton import SuffixAutomaton as SuffixAutomaton
    from specexp.drafters.token_recycling import TokenRecycling as TokenRecycling
    from specexp.drafters.union import Union as Union

__getattr__ = classes_in(__name__)
