"""Every tree that a draft may draw with its probability, and a step's exact output over all of them."""

import sys
from functools import cache
from itertools import permutations, product

import numpy as np
import pytest

from helpers.branching import logits_of, mixed, outcomes
from specexp.core.tree import NodeKind, TokenTree, TreeShape


class Draft:
    """Trees of one step with their probabilities; ``q`` maps a path to ``[V]`` probabilities, exact in float32."""

    def __init__(self, q):
        self.q = q

    def level(self, drawn, kind, count):
        """Every order of ``count`` draws below one node, with its probability."""
        q = self.q(drawn)
        tokens = range(len(q))
        if kind is NodeKind.DRAWN_WITH_REPLACEMENT:
            orders = product(tokens, repeat=count)
            return [(order, np.prod([q[token] for token in order])) for order in orders]
        orders = []
        for order in permutations(tokens, count):
            probability, left = 1.0, 1.0
            for token in order:
                probability *= q[token] / left if left > 0 else 0.0
                left -= q[token]
            orders.append((order, probability))
        return orders

    def trees(self, kind, widths, path=()):
        """Every tree of these widths as nested ``{token: below}`` with the draws' order, and its probability."""
        if not widths:
            yield ((), {}), 1.0
            return
        for order, probability in self.level(path, kind, widths[0]):
            if probability == 0:
                continue
            below = [list(self.trees(kind, widths[1:], (*path, token))) for token in dict.fromkeys(order)]
            for chosen in product(*below):
                tree = {token: part for token, (part, _) in zip(dict.fromkeys(order), chosen, strict=True)}
                yield (order, tree), probability * np.prod([share for _, share in chosen])

    def token_tree(self, nested, kind, grafts=None):
        """The tree of :meth:`trees` as the verifier gets it, with point masses ``grafts[path]`` behind the draws."""
        tokens, parents, kinds, q, draws = [0], [-1], [kind], {}, {}

        def add(part, row, path):
            order, below = part
            rows = {}
            for token in dict.fromkeys(order):
                rows[token] = len(tokens)
                tokens.append(token)
                parents.append(row)
                kinds.append(kind)
            if order:
                q[row] = np.array(self.q(path), dtype=np.float32)
                draws[row] = tuple(rows[token] for token in order)
            for token in (grafts or {}).get(path, ()):
                if token not in rows:
                    tokens.append(token)
                    parents.append(row)
                    kinds.append(NodeKind.POINT_MASS)
            for token, inner in below.items():
                add(inner, rows[token], (*path, token))

        add(nested, 0, ())
        shape = TreeShape(parents, [-1] + [0] * (len(tokens) - 1))
        repeated = draws if kind is NodeKind.DRAWN_WITH_REPLACEMENT else None
        return TokenTree(shape, np.array(tokens), None, np.array(kinds, dtype=np.int8), q or None, repeated)


def paths_of(tree):
    return [tuple(tree.tokens[list(tree.shape.path(row))].tolist()) for row in range(tree.tokens.size)]


def step(verifier, tree, target):
    """Outputs of a step with this tree."""
    logits = np.stack([logits_of(target(path)) for path in paths_of(tree)])
    return outcomes(verifier, tree, logits, sys.modules[type(verifier).__module__])


def output_of(verifier, draft, kind, widths, target, grafts=None):
    """Outputs of a step over everything the draft may draw."""
    weighted = []
    for nested, probability in draft.trees(kind, widths):
        weighted.append((probability, step(verifier, draft.token_tree(nested, kind, grafts), target)))
    assert sum(weight for weight, _ in weighted) == pytest.approx(1, abs=1e-12)
    return mixed(weighted)


def mean_length(found):
    """Mean number of tokens of a step's outputs."""
    return sum(probability * len(output) for output, probability in found.items())


def share(*parts):
    return tuple(part / sum(parts) for part in parts)


def seeded(seed, parts, vocabulary=3):
    """A distribution after every path; in ``parts``-ths, so that a power of two is exact in float32."""

    @cache
    def distribution(path):
        generator = np.random.default_rng([seed, *path])
        return tuple((generator.multinomial(parts, share(*generator.random(vocabulary))) / parts).tolist())

    return distribution


TARGETS = {
    "different": lambda path: share(7, 2, 1) if len(path) % 2 == 0 else share(1, 1, 3),
    "impossible tokens": lambda path: share(0, 2, 1) if not path else share(0, 0, 1),
    "uniform": lambda path: share(1, 1, 1),
}
DRAFTS = {
    "some": lambda path: (0.25, 0.5, 0.25) if len(path) % 2 == 0 else (0.5, 0.125, 0.375),
    "certain and wrong": lambda path: (1.0, 0.0, 0.0),
    "two of three": lambda path: (0.5, 0.5, 0.0),
}


def random_shape(rows: int, generator: np.random.Generator) -> TreeShape:
    """Return a random tree of ``rows`` rows: each node's parent is any earlier row with equal probability."""
    parents = [-1, *generator.integers(0, np.arange(1, rows)).tolist()]
    children = [0] * rows
    ranks = [-1]
    for parent in parents[1:]:
        ranks.append(children[parent])
        children[parent] += 1
    return TreeShape(parents, ranks)
