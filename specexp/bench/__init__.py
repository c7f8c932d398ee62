"""Honest comparison of decoding setups: arms, records, metrics, paired statistics, and how results are published."""
