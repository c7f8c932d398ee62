"""Controllers: how much to draft."""

from specexp.controllers.adaptive_confidence import AdaptiveConfidence
from specexp.controllers.bandit import Bandit
from specexp.controllers.confidence_threshold import ConfidenceThreshold
from specexp.controllers.fixed import Fixed
from specexp.controllers.heuristic import Heuristic
from specexp.controllers.oracle import Oracle
from specexp.controllers.q_learning import QLearning
from specexp.controllers.switch_off import SwitchOff
from specexp.controllers.threshold_tracker import ThresholdTracker

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
