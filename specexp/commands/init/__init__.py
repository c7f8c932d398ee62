"""A folder to start from: an experiment for a model and prompts of one's own."""
