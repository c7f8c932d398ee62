"""Results for readers: tables, sentences, pictures, progress, the report page, and files and W&B."""
