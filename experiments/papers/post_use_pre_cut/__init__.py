"""Post-use & Pre-cut: phrases used again, and drafts ended before they stop paying."""
