"""``python -m specexp.serve``: an OpenAI-compatible server whose requests are lanes of the one loop."""
