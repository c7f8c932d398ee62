"""Passwords in URLs: seen by whoever opens the URL, and never printed, logged or recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
"""Stands where a password was."""

_IN_FRONT_OF_HOST = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
_IN_QUERY = re.compile(r"([?&]\w*(?:password|passwd|pwd|secret|token)=)[^\s&'\"]+", re.IGNORECASE)


def masked(text: str) -> str:
    """A text whose URLs show no password.

    Example:
        >>> masked("postgresql://me:pass@word@host/studies?sslpassword=x is asked")
        'postgresql://me:***@host/studies?sslpassword=*** is asked'
    """
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_FRONT_OF_HOST.sub(rf"\1:{HIDDEN}@", text))


def all_masked(value: Any) -> Any:
    """Values such as those of a configuration, every text in them masked; mappings and lists anew."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {name: all_masked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_masked(item) for item in value]
    return value
