"""``python -m specexp.verify``: test losslessness, on toy targets with known probabilities and on real models."""
