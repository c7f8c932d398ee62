"""W&B as an onlooker: what a study did, run by run; never a reason for a trial to fail."""

from specexp.tracking.mode import Mode, logged_in, resolve_mode
from specexp.tracking.names import nest_parameters, parameter_key
from specexp.tracking.tracked_run import TrackedRun
from specexp.tracking.tracker import Tracker

__all__ = ["Mode", "TrackedRun", "Tracker", "logged_in", "nest_parameters", "parameter_key", "resolve_mode"]
