"""Export formats. Every format class in this package's modules is found by its ``name``."""
