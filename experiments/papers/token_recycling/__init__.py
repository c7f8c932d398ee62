"""Token Recycling: what its text states beside its tables."""
