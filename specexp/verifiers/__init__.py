"""Verifiers decide which drafted nodes are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in

if TYPE_CHECKING:
    from specexp.verifiers.block_verification import BlockVerification as BlockVerification
    from specexp.verifiers.greedy import Greedy as Greedy
    from specexp.verifiers.keyed_sampling import KeyedSampling as KeyedSampling
    from specexp.verifiers.rejection_sampling import (
        RejectionSampling as RejectionSampling,
        SampleMatch as SampleMatch,
    )
    from specexp.verifiers.traversal_verification import TraversalVerification as TraversalVerification

__getattr__ = classes_in(__name__)
