"""Advice from a recording: the best tree for each device, and settings that would save time."""
