"""Verifiers: what of a draft is accepted."""

from specexp.verifiers.greedy import Greedy
from specexp.verifiers.keyed_sampling import KeyedSampling
from specexp.verifiers.rejection_sampling import RejectionSampling
from specexp.verifiers.sample_match import SampleMatch
from specexp.verifiers.typical_acceptance import TypicalAcceptance

__all__ = [
    "Greedy",
    "KeyedSampling",
    "RejectionSampling",
    "SampleMatch",
    "TypicalAcceptance",
]
