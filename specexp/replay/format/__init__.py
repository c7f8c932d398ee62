"""The data that makes up a recording, and its files on disk."""
