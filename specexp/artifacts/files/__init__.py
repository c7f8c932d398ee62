"""Files that an argument may name: one module a kind of file, found by its name, with a function ``read``."""
