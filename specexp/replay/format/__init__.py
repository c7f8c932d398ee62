"""What a recording holds, and how it lies on disk."""
