"""A target with a table of answers, which may pause, and its expected outputs from plain decoding."""

from functools import cache

from helpers.pauses import PausingDrafter
from specexp.builders import Chain, KConfig
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.scheduling import FirstCome, Job, LeastProgress, MostConfident
from specexp.verifiers import Greedy, KeyedSampling
from specexp.verify.toy import LIVE, ToyModel, toy_models

TARGET, DRAFT = toy_models(vocabulary=6, seed=5)[:2]
PROMPT = (0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 1, 2)
"""It has all tokens, and some pairs twice, so that retrieval and recycling have candidates."""
POLICIES = (FirstCome, LeastProgress, MostConfident)
VERIFIERS = {"greedy": Greedy, "keyed": lambda: KeyedSampling(1.0)}
PARTS = {
    "chain": lambda: Parts(DraftModel(DRAFT), Chain(2)),
    "k-config": lambda: Parts(TokenRecycling(k=2), KConfig([2, 1])),
    "lookup": lambda: Parts(PromptLookup(), Chain(3)),
    "recycling": lambda: Parts(TokenRecycling(k=2, state="carry"), KConfig([2, 1])),
}
PROMPTS = ((0, 1, 2, 3, 4, 0, 1), (3,), (2, 4), (1, 0, 1, 0))


class PausingTarget(ToyModel):
    """The same target after a pause."""

    def __init__(self, pause):
        super().__init__(TARGET.table)
        self.pause = pause

    def tree_pass(self, slots, trees):
        self.pause()
        return super().tree_pass(slots, trees)


def pausing(parts, pause):
    """Return the parts with a drafter that pauses."""
    return parts._replace(drafter=PausingDrafter(parts.drafter, pause))


@cache
def plain(verifier, prompt, sequence, eos):
    """Return 12 tokens of plain decoding; shorter outputs are prefixes."""
    decoder = Decoder(ToyModel(TARGET.table), verifier=VERIFIERS[verifier]())
    result = decoder.generate(prompt, max_new_tokens=12, eos_token_id=eos, sequence=sequence, seed=0)
    return tuple(result.token_ids)


def expected(verifier, job, eos):
    """Return the output of plain decoding for a job."""
    return list(plain(verifier, job.prompt, job.sequence, eos))[: job.max_new_tokens]


def jobs_of(generator, count):
    """Return random jobs of 1 to 6 tokens, which may end in the middle of a draft."""
    return [
        Job(generator.choice(PROMPTS), number, max_new_tokens=generator.choice((1, 2, 4, 6))) for number in range(count)
    ]


def first_token(verifier, job):
    """Return the job's first token; as EOS it ends the job at once."""
    return plain(verifier, job.prompt, job.sequence, LIVE)[0]


class OddError(Exception):
    """An exception that cannot be unpickled, since its arguments are not those of its constructor."""

    def __init__(self, number, tokens):
        super().__init__(f"{number} after {len(tokens)} tokens")


def fail_oddly(tokens):
    """Fail instead of guessing."""
    raise OddError(3, tokens)


def leave(tokens):
    """End the worker instead of guessing."""
    raise SystemExit(7)


class Unlearning(PromptLookup):
    """Fails to learn from the last step of a sequence."""

    def observe(self, outcome):
        super().observe(outcome)
        if len(outcome.context) - outcome.context.prompt_length == 3:
            raise ValueError("cannot learn from three tokens")
