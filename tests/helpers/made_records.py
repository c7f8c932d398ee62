"""Records and outcomes made by hand, so that every statistic can be computed by hand."""

from typing import Any

import numpy as np
import torch

from specexp.bench.record import PromptRecord
from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree, TreeShape
from specexp.report.publish import Report
from specexp.verifiers import Greedy

PHASES = ("draft", "build", "target", "verify", "commit", "update")


def record(arm: str, prompt: int, decode_seconds: float = 1.0, **given: Any) -> PromptRecord:
    """Return the record of a prompt with, by default, four tokens in ``decode_seconds``."""
    tokens = given.pop("token_ids", (5, 6, 7, 8))
    values: dict[str, Any] = {
        "token_ids": tokens,
        "turn_tokens": (len(tokens),),
        "finish_reasons": ("length",),
        "steps": len(tokens),
        "bonus_tokens": len(tokens),
        "decode_seconds": decode_seconds,
        "decode_tokens": len(tokens),
        "dtype": "bfloat16",
        "device": "cpu",
        "verifier": "Greedy",
        **given,
    }
    return PromptRecord(arm, f"p{prompt}", "a" if prompt % 2 == 0 else "b", **values)


def outcome_of(parents, accepted, *, bonus=True, tokens=None, q=None, p=None, draws=None, values=None) -> Outcome:
    """Return a step over a tree with these parents, -1 first.

    Args:
        bonus: whether the output continued after the last accepted node.
        tokens: token of every row; the rows' numbers if None.
        q: draft probability of every row.
        p: ``[n + 1, V]`` the target's probabilities after every row; even over 8 tokens if None.
    """
    rows = len(parents)
    tree = TokenTree(
        TreeShape(parents, [-1, *range(rows - 1)]),
        np.arange(rows) if tokens is None else np.array(tokens),
        None if q is None else np.log(np.array(q, dtype=np.float32)),
        draws=draws,
        values=None if values is None else np.array(values),
    )
    logits = torch.zeros(rows, 8) if p is None else torch.tensor(np.log(np.maximum(p, 1e-9)))
    new = (*(int(tree.tokens[row]) for row in accepted), *((7,) if bonus else ()))
    return Outcome(Context([1, *new]), tree, logits, tuple(accepted), new)


def strategy(verifier, max_nodes=8) -> Parts:
    """Return the parts of an arm that drafts."""
    from specexp.builders import Chain
    from specexp.controllers import Fixed
    from specexp.testing.fakes import FakeDrafter

    return Parts(FakeDrafter(lambda tokens: [0]), Chain(max_nodes), verifier, Fixed())


def report_of(analysis, *outcomes, parts=None, records=()) -> Report:
    """Return an analysis' report on a run of one arm ``a`` with these steps; greedy if ``parts`` is None."""
    analysis.begin({"a": strategy(Greedy()) if parts is None else parts})
    for outcome in outcomes:
        analysis.observe("a", outcome)
    return analysis.report(records)
