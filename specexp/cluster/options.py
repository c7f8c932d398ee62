"""What a command line says of the cluster that a command runs on: ``--on``, ``--workers`` and what goes with them."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from specexp.config.errors import ConfigError
from specexp.config.files import COMMAND_LINE

CLUSTERS = {"ray": "ray", "slurm": "submitit", "local": "submitit"}
"""The package that starts workers there."""

USAGE = """--on ray|slurm|local [--workers N] [--gpus-per-worker G] [--detach] starts the same workers on the Ray
cluster at RAY_ADDRESS, as a SLURM array, or as processes of this machine; --slurm-KEY VALUE is a parameter of
submitit's. Ctrl-C ends them; with --detach it leaves those of Ray and SLURM running, and the same command finds them
again."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where workers are started.

    Attributes:
        on: One of :data:`CLUSTERS`.
        workers: How many.
        gpus: Of each worker; None where the experiment's device says it: one where that is a GPU.
        detach: Whether Ctrl-C leaves them running.
        slurm: Further parameters of submitit's, such as ``slurm_partition``.
    """

    on: str
    workers: int = 1
    gpus: int | None = None
    detach: bool = False
    slurm: dict[str, str | int] = field(default_factory=dict)

    def gpus_on(self, device: str) -> int:
        """GPUs of each worker of an experiment on this device."""
        if self.gpus is not None:
            return self.gpus
        return int(device.startswith("cuda"))


def take_options(arguments: Sequence[str]) -> tuple[ClusterOptions | None, list[str]]:
    """Split a command line.

    Args:
        arguments: What was typed after the command's name.

    Returns:
        The cluster, None where the command runs here; and everything else.

    Raises:
        ConfigError: A value is not allowed, or its package is missing.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--on", choices=sorted(CLUSTERS))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--gpus-per-worker", type=int)
    parser.add_argument("--detach", action="store_true")
    named = [one for one in arguments if one.startswith("--slurm-")]
    for name in {one.partition("=")[0] for one in named}:
        parser.add_argument(name)
    try:
        found, rest = parser.parse_known_args(list(arguments))
    except ArgumentError as error:
        raise ConfigError(f"{COMMAND_LINE}: {error.argument_name}: {error.message}") from error
    slurm = {
        name: int(value) if value.isdigit() else value
        for name, value in vars(found).items()
        if name.startswith("slurm_") and value is not None
    }
    given = {
        "--workers": found.workers,
        "--gpus-per-worker": found.gpus_per_worker,
        "--detach": found.detach or None,
        "--slurm-...": slurm or None,
    }
    if found.on is None:
        lone = next((name for name, value in given.items() if value is not None), None)
        if lone is not None:
            raise ConfigError(
                f"{COMMAND_LINE}: {lone} is for workers of a cluster: add --on {', '.join(CLUSTERS)}"
            )
        return None, rest
    for name, value, least in (
        ("--workers", found.workers, 1),
        ("--gpus-per-worker", found.gpus_per_worker, 0),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{COMMAND_LINE}: {name} is {value}; at least {least} is expected")
    if found.detach and found.on == "local":
        raise ConfigError(
            f"{COMMAND_LINE}: --detach is for workers that Ray or SLURM keeps; those of --on local end with the command"
        )
    if slurm and found.on != "slurm":
        raise ConfigError(f"{COMMAND_LINE}: --slurm-... goes with --on slurm, and --on {found.on} was given")
    package = CLUSTERS[found.on]
    if find_spec(package) is None:
        raise ConfigError(
            f'{COMMAND_LINE}: --on {found.on} needs {package}, which is not installed: pip install -e ".[cluster]"'
        )
    options = ClusterOptions(found.on, found.workers or 1, found.gpus_per_worker, found.detach, slurm)
    return options, rest
