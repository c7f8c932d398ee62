"""Verifiers: what of a draft is accepted."""

from specexp.core.verifier import DeterministicVerifier, Verdict, Verifier
from specexp.verifiers.greedy import Greedy
from specexp.verifiers.keyed_sampling import KeyedSampling
from specexp.verifiers.rejection_sampling import RejectionSampling
from specexp.verifiers.sample_match import SampleMatch
from specexp.verifiers.typical_acceptance import TypicalAcceptance

__all__ = [
    "DeterministicVerifier",
    "Greedy",
    "KeyedSampling",
    "RejectionSampling",
    "SampleMatch",
    "TypicalAcceptance",
    "Verdict",
    "Verifier",
]
