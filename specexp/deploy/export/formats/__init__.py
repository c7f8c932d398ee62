"""Export formats. Every format class in the modules of this package is found by its ``name``."""
