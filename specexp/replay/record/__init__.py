"""``python -m specexp.record``: what a target and its draft say, once and for all."""
