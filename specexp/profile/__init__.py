"""Measure model passes and step overheads on a device, and fit a latency profile to them."""
