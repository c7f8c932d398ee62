"""``python -m specexp.serve``: an OpenAI-compatible server that decodes concurrent requests in one loop."""
