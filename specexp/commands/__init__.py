"""The commands ``run``, ``init``, ``doctor`` and ``dashboard``; larger ones have their own packages."""
