"""Tracking of studies and their runs in W&B. If tracking fails, no trial fails."""
