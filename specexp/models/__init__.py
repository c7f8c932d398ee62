"""A target and its draft: the embedded pair, and any two models by hub id or folder."""
