"""Does a server sample from the same law with speculation as without? An exact test of what it says first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.core.messages import counted
from specexp.engines.openai_client import Streamed
from specexp.verify.statistics import detectable_total_variation, p_text

AskSampled = Callable[[str, int], Streamed]
"""Asks for the answer to a prompt with a seed."""

BEGINNING = 2
"""Characters of an answer that count as its beginning: no more than a token or two."""
_TESTS = ("the beginning", "the whole")
_SHUFFLES_PER_LEVEL = 20
_COARSEST = 0.75
"""A test that finds nothing smaller than this total variation tells nothing."""


@dataclass(frozen=True)
class SampledLaw:
    """What the first tokens of many answers say.

    Attributes:
        prompts: How many were asked.
        samples: Answers to each, with speculation and as many without.
        tokens: Of every answer.
        temperature: They were sampled at.
        level: Probability of blaming a server that is exact.
        p_values: By what was compared: the beginnings of the answers, and the answers as a whole.
        detectable: Total variation of every prompt's law that would have been found with 95 %, about; by the same.
    """

    prompts: int
    samples: int
    tokens: int
    temperature: float
    level: float
    p_values: dict[str, float]
    detectable: dict[str, float]

    @property
    def verdict(self) -> str:
        """``wrong`` where a test at its share of the level refuses; ``cannot tell`` where none could have found
        anything; else ``equal``.
        """
        if any(value <= self.level / len(_TESTS) for value in self.p_values.values()):
            return "wrong"
        return "cannot tell" if min(self.detectable.values()) > _COARSEST else "equal"

    def lines(self) -> list[str]:
        """For the report."""
        told = [
            f"- {name}: p = {p_text(value)}; "
            + (
                f"a law off by {self.detectable[name]:.2f} in total variation would have been found with 95 %"
                if self.detectable[name] <= 1
                else "nothing could have been found, for all answers are one"
            )
            for name, value in self.p_values.items()
        ]
        return [
            f"## Temperature {self.temperature:g}: {self.verdict}",
            "",
            f"{counted(self.samples, 'answer')} with speculation and as many without to each of "
            f"{counted(self.prompts, 'prompt')}, {counted(self.tokens, 'token')} each. Whether they come from one law: "
            f"an exact permutation test, which blames an exact server with a probability of at most {self.level:g}.",
            *told,
        ]


def compare_laws(
    prompts: Iterable[str],
    speculative: AskSampled,
    plain: AskSampled,
    *,
    samples: int,
    tokens: int,
    temperature: float,
    level: float,
    tell: Callable[[str], None] = lambda line: None,
) -> SampledLaw:
    """Sample the first tokens of answers with speculation and without, every one with a seed of its own.

    Args:
        prompts: Texts.
        speculative: Asks with speculation.
        plain: Asks without.
        samples: Answers to each prompt, of each kind.
        tokens: Of an answer, as both are asked.
        temperature: As both are asked.
        level: Probability of blaming a server that is exact.
        tell: Called after every prompt.

    Raises:
        EngineError: A server does not answer.
    """
    pairs: list[tuple[list[str], list[str]]] = []
    for number, prompt in enumerate(prompts):
        first = 2 * samples * number
        on = [speculative(prompt, first + sample).text for sample in range(samples)]
        off = [plain(prompt, first + samples + sample).text for sample in range(samples)]
        pairs.append((on, off))
        tell(
            f"prompt {number + 1}: {len(set(off))} different answers without speculation, {len(set(on))} with it"
        )
    shuffles = int(np.ceil(_SHUFFLES_PER_LEVEL * len(_TESTS) / level))
    p_values, detectable = {}, {}
    for name, cut in zip(_TESTS, (BEGINNING, None), strict=True):
        tables = [_table([one[:cut] for one in on], [one[:cut] for one in off]) for on, off in pairs]
        p_values[name] = permutation_p_value(tables, shuffles)
        degrees = sum(table.shape[1] - 1 for table in tables)
        enough = (
            samples * len(pairs) // 2
        )  # two samples tell as much as one of half the size beside a known law
        detectable[name] = (
            detectable_total_variation(enough, degrees, level / len(_TESTS)) if degrees else 2.0
        )
    return SampledLaw(len(pairs), samples, tokens, temperature, level, p_values, detectable)


def _table(on: Sequence[str], off: Sequence[str]) -> NDArray[np.int64]:
    """``[2, cells]`` how often each answer came with speculation and without."""
    with_it, without = Counter(on), Counter(off)
    cells = sorted(with_it.keys() | without.keys())
    return np.array([[with_it[one] for one in cells], [without[one] for one in cells]], dtype=np.int64)


def permutation_p_value(tables: Sequence[NDArray[np.int64]], shuffles: int, seed: int = 0) -> float:
    """Of two samples a table, whether all come from one law each: exact, whatever the law and however rare its cells.

    Were they, every way of sharing a table's answers out to the two samples would be as likely as any other; the
    p-value is the share of random ones whose statistic (that of chi-square, summed over tables) is as large.

    Args:
        tables: ``[2, cells]`` counts each.
        shuffles: Random ways that are tried; no p-value is below ``1 / (shuffles + 1)``.
        seed: Of them.
    """
    generator, found = np.random.default_rng(seed), np.zeros(shuffles)
    observed = 0.0
    for table in tables:
        both, size = table.sum(axis=0), int(table[0].sum())
        observed += float(_statistic(table[:1], both, size)[0])
        drawn = generator.multivariate_hypergeometric(both, size, size=shuffles, method="marginals")
        found += _statistic(drawn, both, size)
    as_large = int((found >= observed - 1e-9).sum())
    return (as_large + 1) / (shuffles + 1)


def _statistic(first: NDArray[np.int64], both: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """``[n]`` chi-square of the first sample's ``[n, cells]`` counts, but for a factor that all have in common."""
    expected = both * (size / both.sum())
    return np.asarray((((first - expected) ** 2) / expected).sum(axis=1), dtype=np.float64)
