"""For contracts of drafters that read the states of their target: a small Llama as the target."""

from helpers.small_models import VOCABULARY, small_model
from specexp.core.language_model import LanguageModel


class OnLlama:
    """Laid over a contract of drafters."""

    vocab_size = VOCABULARY
    hidden_size = 32

    def make_target(self):
        return LanguageModel(small_model("Llama"))
