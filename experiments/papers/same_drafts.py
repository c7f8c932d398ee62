"""Tokens per step of three verifiers on the same drafts (Sun et al. 2025; Weng et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, report_of, table_of
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import mean_interval
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.report.publish import Report
from specexp.verifiers import BlockVerification, RejectionSampling, TraversalVerification

VERIFIERS = (RejectionSampling, BlockVerification, TraversalVerification)
Tokens = dict[int | str, list[list[int]]]
"""Tokens of each sequence and step by verifier, added up over the repetitions."""


class SameDrafts(DraftingAnalysis[Tokens]):
    """Verifies every drawn tree of every arm again, by three verifiers with the arm's temperature, top-k and top-p.

    Outputs of separate arms differ, and so do their drafts. Here only the verifier differs, so small gains show. Of a
    tree, block verification tries the first child of each node, so it is listed for chains only.

    Args:
        repetitions: Verdicts of each verifier on each tree, with random numbers of their own.
    """

    name: ClassVar[str] = "same_drafts"
    needs_models: ClassVar[bool] = True

    def __init__(self, repetitions: Annotated[int, Field(ge=1)] = 8) -> None:
        super().__init__()
        self.repetitions = repetitions

    @override
    def new_state(self, parts: object) -> Tokens:
        return {}

    @override
    def watch(self, arm: str, state: Tokens, outcome: Outcome) -> None:
        tree, processors = outcome.tree, self.parts[arm].verifier.processors
        if tree.q is None or processors is None:
            return
        steps = state.setdefault(outcome.context.sequence, [])
        verifiers = [kind(processors.temperature, processors.top_k, processors.top_p) for kind in VERIFIERS]
        contexts = [
            Context([int(tree.tokens[0])], seed=number, sequence=f"{outcome.context.sequence}, step {len(steps)}")
            for number in range(self.repetitions)
        ]
        steps.append(
            [
                sum(1 + len(verifier.verify(context, tree, outcome.logits).accepted) for context in contexts)
                for verifier in verifiers
            ]
        )

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            "Tokens per step on the same drafts",
            "arm | verifier | steps | tokens/step:.3 | over rejection sampling:.3 | from:.3 | to:.3",
            "The ratio is the geometric mean over prompts, with its 95 % interval.",
        )
        for arm, state in self.states.items():
            builder = self.parts[arm].builder
            is_chain = builder is not None and builder.max_leaves == 1
            by_prompt = [np.sum(steps, axis=0) for steps in state.values()]
            steps = sum(map(len, state.values()))
            for place, kind in enumerate(VERIFIERS if by_prompt else ()):
                if kind is BlockVerification and not is_chain:
                    continue
                ratios = np.log([tokens[place] / tokens[0] for tokens in by_prompt])
                mean = float(sum(tokens[place] for tokens in by_prompt)) / (steps * self.repetitions)
                low, high = map(exp, mean_interval(ratios))
                table.rows.append([arm, kind.__name__, steps, mean, exp(float(ratios.mean())), low, high])
        if not table.rows:
            table.rows.append(["no arm draws its drafts", *[None] * 6])
        return report_of(self, table)
