"""``python -m specexp.what_if``: one recording, many devices."""
