"""Deployment: the server, the integration into Hugging Face's ``generate``, and exports to other engines."""
