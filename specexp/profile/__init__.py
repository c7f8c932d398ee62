"""Measuring a device: the passes of both models, what steps cost beside them, and a profile fitted to both."""
