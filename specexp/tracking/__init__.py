"""Tracking of studies and their runs in W&B; its failures never make a trial fail."""

from specexp.tracking.mode import Mode, logged_in, resolve_mode
from specexp.tracking.names import nest_parameters, parameter_key
from specexp.tracking.tracker import TrackedRun, Tracker

__all__ = ["Mode", "TrackedRun", "Tracker", "logged_in", "nest_parameters", "parameter_key", "resolve_mode"]
