"""Constraints on outputs, by grammars that a library reads."""
