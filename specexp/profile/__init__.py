"""Measures model passes and step overheads on a device, and fits a latency profile to them."""
