"""``python -m specexp.dashboard``: the W&B workspace that compares the runs of a study."""
