"""``python -m specexp.why``: where speculation loses time here, and which setting would change it."""
