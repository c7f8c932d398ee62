"""Comparison of decoding methods: arms, records, metrics and paired statistics."""
