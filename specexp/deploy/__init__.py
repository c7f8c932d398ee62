"""Deployment: the server, Hugging Face's generate, and exports to other engines."""
