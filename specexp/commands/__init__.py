"""The commands ``run``, ``init``, ``doctor`` and ``dashboard``. Larger commands have their own packages."""
