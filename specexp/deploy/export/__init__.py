"""``python -m specexp.export``: writes an artifact in another project's format."""
