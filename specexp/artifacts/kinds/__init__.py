"""Kinds of artifacts: one file and one class each, found by the file's name."""
