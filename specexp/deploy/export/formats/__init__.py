"""Export formats. Each format class in this package's modules is available under its ``name``."""
