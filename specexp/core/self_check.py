"""Whether a runtime answers the rows of a tree as its model answers the same tokens fed alone."""

from __future__ import annotations

from math import inf

import numpy as np
import torch

from specexp.core.runtime import Runtime
from specexp.core.tree import TokenTree, TreeShape


def tolerance(dtype: torch.dtype) -> float:
    """The largest :func:`tree_error` of a model of this precision that does tree passes right."""
    return 0.01 if dtype in (torch.float32, torch.float64) else 0.15


@torch.inference_mode()
def tree_error(runtime: Runtime) -> float:
    """Difference of a row's logits from the model's own, without mask and cache, as a share of their spread; the median
    of three rows, since rounding may send a token of one of them to other experts.

    The tree is wide, so that a position taken from a row's place in the cache would be far off.

    Args:
        runtime: of a Hugging Face model; slot 0 holds the check's prefix afterwards.
    """
    siblings = 14
    shape = TreeShape([-1, *[0] * siblings, 1], [-1, *range(siblings), 0])
    prefix = [token % runtime.vocab_size for token in (5, 6, 7)]
    tree = TokenTree(shape, np.arange(1, siblings + 3, dtype=np.int64) % runtime.vocab_size)
    runtime.prefill(0, prefix)
    answers = runtime.tree_pass([0], [tree])[0].double()
    errors = []
    for row in (1, siblings, siblings + 1):
        branch = [int(tree.tokens[index]) for index in (0, *shape.path(row))]
        alone = runtime.model(
            input_ids=torch.tensor([prefix + branch], device=runtime.device), use_cache=False
        )
        expected = alone.logits[0, -1].double()
        possible = expected > torch.finfo(runtime.dtype).min / 2
        expected, answer = expected[possible], answers[row, possible]
        error, spread = (answer - expected).norm(), (expected - expected.mean()).norm()
        same = bool(error <= 1e-6 * (1 + expected.norm()))  # a model that always says the same has no spread
        errors.append(0.0 if same else float(error / spread) if error.isfinite() else inf)
    return sorted(errors)[1]
