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


OF_AN_AGENT = (
    "WANDB_RUN_ID",
    "WANDB_SWEEP_ID",
    "WANDB_SWEEP_PARAM_PATH",
    "WANDB_RESUME",
    "WANDB_RESUME_FROM",
)
"""Variables of ``wandb agent``, with which all runs of a process would have one id."""
UNUSED = ("WANDB_RUN_GROUP", "WANDB_NAME", "WANDB_DIR")
"""Variables for values that a command chooses itself."""


def project_of(named: str | None) -> str:
    """Return the project of the file, else ``WANDB_PROJECT``, else ``specexp``."""
    return named or os.environ.get("WANDB_PROJECT") or "specexp"


def take_over(project: str | None) -> None:
    """Hide the variables of W&B that do not fit the runs of a command, and log a note on each that is ignored."""
    for names, why in (
        (OF_AN_AGENT, "specexp gives each run an id of its own"),
        (UNUSED, "group, names and folder of runs follow from the command's options"),
    ):
        if found := [name for name in names if os.environ.pop(name, None)]:
            log.warning(f"W&B: {', '.join(found)} ignored, because {why}")
    wanted = os.environ.get("WANDB_PROJECT")
    if wanted and wanted != project_of(project):
        log.warning(f"W&B: WANDB_PROJECT={wanted} ignored, because tracking.project is {project!r}")


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
    if os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1", "yes"):
        return "disabled"
    wanted = mode or os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
    wanted = {"dryrun": "offline", "run": "online"}.get(wanted, wanted)  # W&B's own older spellings
    if wanted in MODES:
        return wanted
    where = "" if mode else "WANDB_MODE: "
    raise ValueError(f"{where}W&B mode must be one of {', '.join(MODES)}, or null, got {wanted!r}")


def resolve_mode(mode: str | None = None) -> Mode:
    """Choose the mode of a command's runs: ``mode``, else ``WANDB_MODE``, else online with an account, else offline.

    ``WANDB_DISABLED=true`` disables them in any case.

    Without an account, ``online`` becomes ``offline``, so that W&B never prompts for one. Raises ValueError if the mode
    is unknown.
    """
    wanted = wanted_mode(mode)
    if wanted == "online" and not logged_in():
        log.warning("W&B mode is online, but no account is logged in (`wandb login`): runs are written offline")
        return "offline"
    return wanted
