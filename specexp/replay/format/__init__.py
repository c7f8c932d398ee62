"""The contents of a recording, and its files."""
