"""Formats that deployments read: one file and one class each, found by the file's name."""
