"""Optuna studies over compositions: space, storage, trials, confirmation of the best few, and export of the winner.

Importing this package imports neither Optuna nor torch, so that ``--dry-run`` and error messages take about a second.
"""
