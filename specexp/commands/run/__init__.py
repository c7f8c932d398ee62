"""``python -m specexp.run``: arms beside plain decoding on the same prompts."""
