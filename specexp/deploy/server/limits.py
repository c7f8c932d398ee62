"""What a server allows: bounds that hold before anything is read or made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a request.

    Attributes:
        body_bytes: of a body.
        prompt_tokens: of a prompt; None leaves the model's context.
        outputs: of a request, its prompts times ``n``.
        seconds: until a request must be complete; its own deadline may be earlier.
    """

    body_bytes: int = 1_000_000
    prompt_tokens: int | None = None
    outputs: int = 16
    seconds: float = 600.0
