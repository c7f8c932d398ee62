"""Load models, either the embedded pair or any two by hub id or folder, and run them in each mode."""
