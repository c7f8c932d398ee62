"""``python -m specexp.record``: records the answers of a target and its draft once."""
