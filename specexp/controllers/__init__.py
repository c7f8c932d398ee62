"""Controllers: how much to draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.core.lazy import classes_in

if TYPE_CHECKING:
    from specexp.controllers.adaptive_confidence import AdaptiveConfidence
    from specexp.controllers.bandit import Bandit
    from specexp.controllers.confidence_threshold import ConfidenceThreshold
    from specexp.controllers.fixed import Fixed
    from specexp.controllers.heuristic import Heuristic
    from specexp.controllers.oracle import Oracle
    from specexp.controllers.q_learning import QLearning
    from specexp.controllers.switch_off import SwitchOff
    from specexp.controllers.threshold_tracker import ThresholdTracker

__getattr__ = classes_in(__name__, __path__[0])

__all__ = [
    "AdaptiveConfidence",
    "Bandit",
    "ConfidenceThreshold",
    "Fixed",
    "Heuristic",
    "Oracle",
    "QLearning",
    "SwitchOff",
    "ThresholdTracker",
]
