"""Advice from a recording: the best tree for each device, and the settings that would save time."""
