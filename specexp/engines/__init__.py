"""Engines, i.e. other projects' programs, which are measured, tuned and compared with our own loop."""
