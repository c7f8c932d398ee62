"""What two processes that share a model decode, and one that has it whole."""

from specexp.builders import ParametricTree
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.verifiers import KeyedSampling

PROMPT = "def add(a, b):"


def decoded(pair):
    drafter = DraftModel(pair.draft_runtime())
    decoder = Decoder(pair.target_runtime(), drafter, ParametricTree(nodes=4, depth=2), KeyedSampling(0.7))
    prompt = pair.tokenizer(PROMPT)["input_ids"]
    return decoder.generate(prompt, max_new_tokens=12, seed=3)
