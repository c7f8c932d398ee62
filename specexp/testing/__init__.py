"""Conformance tests, one class for each family of parts, that a part written elsewhere can inherit."""
