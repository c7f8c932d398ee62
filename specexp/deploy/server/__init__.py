"""``python -m specexp.serve``: an OpenAI-compatible server; its requests are lanes of the one loop."""
