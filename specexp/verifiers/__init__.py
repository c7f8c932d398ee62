"""Verifiers: what of a draft is accepted."""

from specexp.verifiers._base import DeterministicVerifier, Verdict, Verifier
from specexp.verifiers.greedy import Greedy
from specexp.verifiers.keyed_sampling import KeyedSampling

__all__ = ["DeterministicVerifier", "Greedy", "KeyedSampling", "Verdict", "Verifier"]
