"""``python -m specexp.verify``: tests losslessness, on toy targets with known probabilities and on real models."""
