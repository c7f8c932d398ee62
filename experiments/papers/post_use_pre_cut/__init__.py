"""Post-use & Pre-cut: reuse of drafted phrases, and drafts that end while drafting still pays."""
