"""``python -m specexp.fit``: trains a model, or lets a controller learn."""
