"""``python -m specexp.verify``: tests of outputs' law where every probability is known, and on real models."""
