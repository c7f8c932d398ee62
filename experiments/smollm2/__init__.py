"""The recipe of the drafts of SmolLM2."""
