"""Tracking of studies and their runs in W&B; its failures never make a trial fail."""
