"""Other ways to run a model behind :class:`~specexp.core.runtime.Runtime`; they import core alone."""
