"""Whether the Hugging Face hub can be asked: its own client retries for most of a minute, for every file."""

from __future__ import annotations

import os

from specexp.core.messages import first_line

PATIENCE_SECONDS = 5.0
"""For the hub's first answer, where ``HF_HUB_ETAG_TIMEOUT`` says nothing else."""


def is_cached(source: str) -> bool:
    """Whether the cache holds the configuration of a hub id's model."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(source, "config.json"), str)


def why_unreachable() -> str:
    """Why no model can be loaded from the hub now; empty where it answers, whatever it answers."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    timeout = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", PATIENCE_SECONDS))
    try:
        get_session().head(constants.ENDPOINT, timeout=timeout)
    except Exception as error:  # of the client's HTTP library, which one depends on its version
        return f"{constants.ENDPOINT} cannot be reached: {first_line(error)}"
    return ""
