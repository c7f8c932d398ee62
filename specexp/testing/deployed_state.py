"""What an artifact keeps of a part's learned state."""

import json
from typing import Any, Literal

from specexp.artifacts.learned_state import STATE, state_in, state_payloads


def deployed(family: Literal["drafter", "controller"], state: dict[str, Any]) -> dict[str, Any]:
    """A state as a deployment reads it, having been written into an artifact."""
    payloads = state_payloads({family: state})
    if STATE in payloads:
        payloads[STATE] = json.loads(json.dumps(payloads[STATE], allow_nan=False))
    return state_in(payloads, STATE).get(family, {})
