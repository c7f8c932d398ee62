"""Tracks studies and their runs in W&B. A tracking failure never makes a trial fail."""
