"""The phrase cache by hand: what it stores, what it proposes, and what rides in a draft pass."""

from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import hashed_model


class TestAlone(DrafterContract):
    def make_drafter(self):
        return PhraseCache(phrase_length=4, max_phrases=6)


class TestAloneFromThePrompt(DrafterContract):
    def make_drafter(self):
        return PhraseCache(phrase_length=3, max_keys=10, initialisation="prompt", state="carry")


class TestAroundTokenRecycling(DrafterContract):
    def make_drafter(self):
        return PhraseCache(TokenRecycling(k=4, state="carry"), state="carry")


class TestAroundADraftModel(DrafterContract):
    def make_drafter(self):
        return PhraseCache(DraftModel(hashed_model(self.vocab_size, seed=1)), initialisation="prompt")


class TestInAUnion(DrafterContract):
    def make_drafter(self):
        return Union([PromptLookup(), PhraseCache(max_phrases=4)])
