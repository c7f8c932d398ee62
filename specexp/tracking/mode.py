"""The mode of W&B runs: sent over the network, written to a folder, or disabled."""

from __future__ import annotations

import logging
import netrc
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Mode = Literal["online", "offline", "disabled"]

MODES: tuple[Mode, ...] = ("online", "offline", "disabled")

log = logging.getLogger(__name__)


def logged_in() -> bool:
    """Return whether a W&B account is configured, by environment variables or the netrc file of ``wandb login``."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).netloc
    named = os.environ.get("NETRC")
    for file in [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError):
            if host in netrc.netrc(str(file)).hosts:
                return True
    return False


def wanted_mode(mode: str | None = None) -> Mode:
    """Return the mode as :func:`resolve_mode` does, but keep ``online`` even without an account."""
    wanted = mode or os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
    wanted = {"dryrun": "offline", "run": "online"}.get(wanted, wanted)  # W&B's own older spellings
    if wanted in MODES:
        return wanted
    where = "" if mode else "WANDB_MODE: "
    raise ValueError(f"{where}W&B mode must be one of {', '.join(MODES)}, or null, got {wanted!r}")


def resolve_mode(mode: str | None = None) -> Mode:
    """Choose the mode of a command's runs: ``mode``, else ``WANDB_MODE``, else online with an account, else offline.

    Without an account, ``online`` becomes ``offline``, so that W&B never prompts for one. Raises ValueError if the mode
    is unknown.
    """
    wanted = wanted_mode(mode)
    if wanted == "online" and not logged_in():
        log.warning(
            "W&B mode is online, but no account is logged in (`wandb login`): runs are written offline"
        )
        return "offline"
    return wanted
