"""``python -m specexp.fit``: learns a controller, or trains a model."""
