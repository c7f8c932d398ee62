"""Requests about one path of tokens, and sequences that a drafter has begun."""

import numpy as np

from specexp.core.context import Context
from specexp.core.dialogue import Request


def begun(drafter, tokens, **options):
    """Return a sequence that a drafter has begun without a prefill."""
    context = Context(list(tokens), **options)
    drafter.begin(context, None)
    return context


def chain_request(context, path=(), k=1, rows=None, **options):
    """Return a request about the end of a path below the root, or about these rows of it."""
    tokens = np.array([context.root, *path], dtype=np.int64)
    frontier = [tokens.size - 1] if rows is None else rows
    return Request(tokens, np.arange(tokens.size) - 1, np.zeros_like(tokens), np.array(frontier), k, **options)
