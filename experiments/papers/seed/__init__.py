"""SEED: trees of thought whose drafting and verifying overlap."""
