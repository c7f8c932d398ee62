"""Results as a reader meets them: tables, sentences, pictures, progress, the report page, and files and W&B."""
