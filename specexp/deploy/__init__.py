"""Deployment: the server, the integration with Hugging Face's ``generate``, and exports for engines."""
