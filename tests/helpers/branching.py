"""All outcomes of a step with their exact probabilities: uniform numbers that take both sides of each comparison."""

import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice, repeat
from unittest.mock import patch

import numpy as np
import torch
from scipy import stats

from specexp.core.context import Context


@dataclass
class Script:
    """Sides to take at the first comparisons; after them the likely side, and the sides left to try."""

    sides: list[bool]
    probability: float = 1.0
    taken: list[bool] = field(default_factory=list)
    others: list[list[bool]] = field(default_factory=list)

    def below(self, bound):
        """Return whether the uniform number falls below ``bound``."""
        chance = min(max(float(bound), 0.0), 1.0)
        if len(self.taken) < len(self.sides):
            side = self.sides[len(self.taken)]
        else:
            side = chance > 0
            if 0 < chance < 1:
                self.others.append([*self.taken, False])
        self.taken.append(side)
        self.probability *= chance if side else 1 - chance
        return side


@dataclass
class Uniform:
    """A uniform number that is only compared: ``u * scale < bound``."""

    script: Script
    scale: float = 1.0

    def __mul__(self, factor):
        return Uniform(self.script, self.scale * float(factor))

    def __lt__(self, bound):
        return self.script.below(float(bound) / self.scale if self.scale > 0 else math.inf if bound > 0 else 0.0)


def outcomes(verifier, tree, logits, module):
    """Return the probability of every output of one step: ``{accepted tokens and bonus: probability}``.

    The verifier takes its numbers from ``uniforms`` and its bonus from the module's ``sample``. Logits: ``[n + 1, V]``.
    """
    context = Context([int(tree.tokens[0])])
    found, waiting = {}, [[]]
    while waiting:
        script = Script(waiting.pop())
        bonus = []

        def keep(distribution, uniform, bonus=bonus):
            bonus.append(distribution)
            return 0

        numbers = list(islice(repeat(Uniform(script)), 100))
        with (
            patch.object(type(verifier), "uniforms", lambda *_, numbers=numbers: numbers),
            patch.object(module, "sample", keep),
        ):
            verdict = verifier.verify(context, tree, torch.as_tensor(logits))
        waiting += script.others
        accepted = tuple(tree.tokens[list(verdict.accepted)].tolist())
        for token, probability in enumerate(bonus[0]):
            output = (*accepted, token)
            found[output] = found.get(output, 0.0) + script.probability * float(probability)
    return {output: probability for output, probability in found.items() if probability > 0}


def sampled_outcomes(verifier, tree, logits, module):
    """Return :func:`outcomes` of a verifier that draws a token after every visited row by the module's ``sample``."""
    context = Context([int(tree.tokens[0])])
    found, waiting = {}, [()]
    while waiting:
        chosen = waiting.pop()
        drawn, probability = [], [1.0]

        def choose(distribution, uniform, chosen=chosen, drawn=drawn, probability=probability):
            possible = np.flatnonzero(distribution).tolist()
            place = len(drawn)
            if place >= len(chosen):
                waiting.extend([(*drawn, token) for token in possible[1:]])
            token = chosen[place] if place < len(chosen) else possible[0]
            drawn.append(token)
            probability[0] *= float(distribution[token])
            return token

        with patch.object(module, "sample", choose):
            verdict = verifier.verify(context, tree, torch.as_tensor(logits))
        output = (*tree.tokens[list(verdict.accepted)].tolist(), verdict.bonus)
        found[output] = found.get(output, 0.0) + probability[0]
    return found


def continued(found, length, target):
    """Return the joint distribution of the first ``length`` tokens: the target continues shorter outputs.

    ``target`` returns the next token's ``[V]`` probabilities after the tokens so far.
    """
    joint = {}
    waiting = list(found.items())
    while waiting:
        output, probability = waiting.pop()
        if len(output) >= length:
            joint[output[:length]] = joint.get(output[:length], 0.0) + probability
        else:
            waiting += [
                ((*output, token), probability * share) for token, share in enumerate(target(output)) if share > 0
            ]
    return joint


def joint_of(target, length):
    """Return the target's own joint distribution, the expected result of :func:`continued`."""
    return continued({(): 1.0}, length, target)


def mixed(weighted):
    """Return the mixture of several drafts' outputs, each with its weight."""
    total = {}
    for weight, found in weighted:
        for output, probability in found.items():
            total[output] = total.get(output, 0.0) + weight * probability
    return total


def same(left, right, tolerance=1e-12):
    """Return whether two distributions agree everywhere."""
    return all(abs(left.get(key, 0.0) - right.get(key, 0.0)) <= tolerance for key in left.keys() | right.keys())


def logits_of(probabilities):
    """Return logits with this softmax, ``-inf`` for impossible tokens."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probabilities, dtype=np.float64))


def joint_p_value(decoder, law, draws=900):
    """Return the p-value of the first three tokens after token 1 in many outputs, by ``law[a, b]``."""
    joint = dict(np.ndenumerate(np.einsum("a,ab,bc->abc", law[1], law, law)))
    outputs = (decoder.generate([1], max_new_tokens=3, sequence=one, seed=0).token_ids for one in range(draws))
    return p_value(Counter(map(tuple, outputs)), joint)


def p_value(counts, law):
    """Return the chi-square p-value of counted outputs by the probability of each possible one."""
    possible = sorted((output for output, share in law.items() if share > 0), key=law.get)
    assert counts.keys() <= set(possible)
    expected = np.array([law[output] for output in possible]) * counts.total()
    # the test needs about five expected counts a cell: the rarest are pooled
    _, pools = np.unique(expected.cumsum() // 8, return_inverse=True)
    found = [counts[output] for output in possible]
    return stats.chisquare(*(np.bincount(pools, cells) for cells in (found, expected))).pvalue
