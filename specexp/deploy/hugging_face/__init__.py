"""Decodes with a tuned artifact inside Hugging Face's ``generate``."""
