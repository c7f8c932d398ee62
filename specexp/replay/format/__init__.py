"""The content of a recording, and its files."""
