"""The joint test of a composition on the toy targets, sampled in this process."""

from collections.abc import Iterable, Sequence

from specexp.verify.joint import JointTest
from specexp.verify.result import LosslessCheck
from specexp.verify.toy import Manner, PartsFactory, Tally, ToyLaw, compose, sample_chunk, toy_vocabulary


def joint_test(
    make_parts: PartsFactory,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    total_variation: float = 0.05,
    level: float = 1e-3,
    most: int | None = None,
    seed: int = 0,
) -> LosslessCheck:
    """Sample a composition on the toy targets until a deviation from the target's distribution is found or excluded.

    ``temperature``, ``top_k`` and ``top_p`` define this distribution.

    Args:
        make_parts: Function that takes the toy draft model and returns new parts, exactly as configured.
        total_variation: Size of the deviation to find or exclude, in the joint distribution of three tokens.
        level: Maximum probability of rejecting an exact composition.
        most: Maximum number of token triples on each toy; None takes as many as the decision needs.
        seed: Seed of the toy models and of the run.
    """
    law = ToyLaw(temperature, top_k, top_p, toy_vocabulary(make_parts), seed)
    verifier = compose(make_parts, law)[1].parts.verifier

    def chunks(manner: Manner, numbers: Sequence[int]) -> Iterable[Tally]:
        return (sample_chunk(make_parts, law, manner, number) for number in numbers)

    return JointTest(chunks, law, verifier.sampling != "deterministic", total_variation, level, most).check
