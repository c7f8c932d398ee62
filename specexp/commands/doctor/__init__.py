"""What this machine can do for specexp, and what would be slow on it."""
