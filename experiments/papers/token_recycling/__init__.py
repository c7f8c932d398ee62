"""Token Recycling (Luo et al. 2024): memory of a matrix of the latest candidates."""
