"""Decoding: the contracts of the four families, the tree, the target, and the loop."""
