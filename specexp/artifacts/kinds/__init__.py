"""Kinds of artifacts: classes with a ``kind``, found by importing every file here, as export formats are."""
