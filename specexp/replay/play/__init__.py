"""Replaying a recording with drafters, builders and controllers."""
