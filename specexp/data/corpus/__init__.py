"""The text that the embedded pair learns from, and that its prompts are taken from."""
