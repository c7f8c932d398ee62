"""Controllers: how much to draft."""

from specexp.controllers._base import Controller, DraftState, Plan
from specexp.controllers.fixed import Fixed
from specexp.controllers.threshold_tracker import ThresholdTracker

__all__ = ["Controller", "DraftState", "Fixed", "Plan", "ThresholdTracker"]
