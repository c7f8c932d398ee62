"""The commands ``run``, ``why``, ``init``, ``demo``, ``doctor`` and ``dashboard``. Others have their own packages."""
