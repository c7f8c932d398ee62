"""``python -m specexp.record``: the answers of a target and its draft, recorded once."""
