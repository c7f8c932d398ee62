"""Blocksworld as a domain: its actions simulated, and the PDDL that its problems are written in."""
