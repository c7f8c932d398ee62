"""Controllers decide how much to draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.base.checked import classes_in

if TYPE_CHECKING:
    from specexp.controllers.bandit import Bandit as Bandit, RuleBandit as RuleBandit
    from specexp.controllers.confidence_threshold import (
        AdaptiveConfidence as AdaptiveConfidence,
        ConfidenceThreshold as ConfidenceThreshold,
    )
    from specexp.controllers.fixed import Fixed as Fixed, Heuristic as Heuristic
    from specexp.controllers.node_budget import DraftLengths as DraftLengths, NodeBudget as NodeBudget
    from specexp.controllers.q_learning import QLearning as QLearning
    from specexp.controllers.spec_dec_plus_plus import SpecDecPlusPlus as SpecDecPlusPlus
    from specexp.controllers.threshold_tracker import ThresholdTracker as ThresholdTracker

__getattr__ = classes_in(__name__)
