"""Code that makes this project's own evidence; the wheel does not contain it.

A YAML file names it by dotted path, so commands that use it run in the root of a checkout.
"""
