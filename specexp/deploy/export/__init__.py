"""``python -m specexp.export``: an artifact in another project's format."""
