"""Replays a recording with drafters, builders and controllers."""
