"""Tuned compositions at work elsewhere: inside Hugging Face's ``generate``."""
