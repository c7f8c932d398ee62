"""``python -m specexp.export``: write an artifact in another project's format."""
