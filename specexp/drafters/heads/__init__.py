"""Small networks that draft from a target's hidden states, and are trained for it alone."""
