"""Presentation of results: tables, sentences, pictures, progress, the report page, files, and W&B."""
