"""Training of heads that draft from a target's hidden states."""
