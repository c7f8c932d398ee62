"""Comparison of decoding setups: arms, records, metrics, paired statistics."""
