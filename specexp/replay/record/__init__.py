"""``python -m specexp.record``: records a target's answers, and the predictions of target and draft, for replay."""
