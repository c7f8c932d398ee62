"""Fifty short prompts, a target and a draft that depend on the last three tokens, and recordings of them."""

from specexp.bench.live import DecoderArm
from specexp.config.schema import Generation
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.data import Prompt
from specexp.drafters.ranking import Scoring
from specexp.replay.format.recording import Recording, RecordingManifest, write_turns
from specexp.replay.record.recorder import Coverage, Recorder
from specexp.testing.fakes import FakeCausalLM, hashed_model

VOCABULARY, LIMIT, TOKENS, EOS = 10, 48, 10, 9
GENERATION = Generation(max_new_tokens=TOKENS)
_TOKENS = [tuple((n * 7 + place * 3) % 8 for place in range(3 + n % 9)) for n in range(50)]
PROMPTS = [Prompt(f"p{number}", "math", ("?",), tokens, number) for number, tokens in enumerate(_TOKENS)]
COUNTS = ("steps", "accepted_drafts", "bonus_tokens", "drafted_nodes", "draft_passes")


class Tokenizer:
    """Only an EOS token: the prompts are tokens already."""

    eos_token_id = EOS


class Models:
    """A target, and a draft that is sometimes right."""

    def __init__(self):
        self.target = LanguageModel(hashed_model(VOCABULARY, 0, LIMIT), self_check=False)
        other = hashed_model(VOCABULARY, 1, LIMIT)

        def mixed(tokens):
            ours, theirs = self.target.model.next_logits(tokens), other.next_logits(tokens)
            return [0.6 * one + 0.4 * two for one, two in zip(ours, theirs, strict=True)]

        self.draft = LanguageModel(FakeCausalLM(mixed, VOCABULARY, LIMIT), self_check=False)


def record(folder, verifier, drafter, source, coverage, coupled=False, prompts=PROMPTS, *, target=None, **wanted):
    """Record prompts; ``source`` is the draft model's source in the drafter, or None."""
    drafter.check_vocabulary(VOCABULARY)
    wanted = {"seed": 0, "max_new_tokens": TOKENS, "stop_at_repetition": False, **wanted}
    recorder = Recorder(target or Models().target, verifier, drafter, Coverage(coverage, VOCABULARY, 4))
    turns = []
    for prompt in prompts:
        turns += recorder.conversation(
            prompt,
            0,
            lambda turn, before, prompt=prompt: list(prompt.token_ids),
            Generation(**wanted),
            frozenset({EOS}),
        )
    made_of = {
        "pair": {"target_dtype": "float32", "device": "cpu"},
        "law": verifier.sampling_settings,
        "scoring": None if source is None else vars(Scoring(coupled=coupled)),
        "generation": wanted,
    }
    files = {"turns.parquet": write_turns(folder / "turns.parquet", turns)}
    limits = {"target": LIMIT, "draft": LIMIT}
    RecordingManifest({}, made_of, VOCABULARY, limits, files, complete=True).save(folder)
    return Recording(folder)


def decoded(drafter, builder, verifier, controller, generation=GENERATION, prompts=PROMPTS):
    """Decode prompts live; return their records."""
    decoder = Decoder(Models().target, drafter, builder, verifier, controller)
    arm = DecoderArm("live", decoder, Tokenizer(), generation)
    arm.reset()
    return [arm.decode(prompt) for prompt in prompts]


def counts(records):
    """Return everything that a replay must reproduce."""
    return [
        (one.token_ids, one.finish_reasons, one.prompt_tokens, [getattr(one, name) for name in COUNTS])
        for one in records
    ]
