"""Loads models (the embedded pair, or any two by hub id or folder) and runs them in any mode."""
