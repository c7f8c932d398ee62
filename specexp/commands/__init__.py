"""The small commands, and the one entry of all: ``python -m specexp COMMAND``."""
