"""Optuna studies that search over compositions: space, storage, trials, confirmation of the best, and export.

Importing this package does not import Optuna or torch, so ``--dry-run`` and error messages take only about a second.
"""
