"""Playing a recording with the parts that would have decoded it."""
