"""Command-line options of workers: ``--on``, ``--workers``, ``--gpus-per-worker`` and ``--slurm-KEY``."""

from __future__ import annotations

from argparse import ArgumentError, ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from specexp.config.layers import COMMAND_LINE, ConfigError

CLUSTERS = {"ray": "ray", "slurm": "submitit", "local": None}
"""The package that each needs."""

USAGE = """--on ray|slurm|local [--workers N] [--gpus-per-worker G] starts identical workers on the Ray cluster at
RAY_ADDRESS, as a SLURM array, or as processes of this machine; --slurm-KEY VALUE is a parameter of submitit's. Ctrl-C
ends them."""


@dataclass(frozen=True)
class ClusterOptions:
    """Where workers are started.

    Attributes:
        on: One of :data:`CLUSTERS`.
        workers: Number of workers.
        gpus: GPUs of each worker. If None, it is one if the experiment's device is a GPU.
        slurm: Parameters of submitit, such as ``slurm_partition``.
    """

    on: str
    workers: int = 1
    gpus: int | None = None
    slurm: dict[str, str | int] = field(default_factory=dict)

    def gpus_on(self, device: str) -> int:
        """GPUs of each worker of an experiment on this device."""
        return int(device.startswith("cuda")) if self.gpus is None else self.gpus


def take_options(arguments: Sequence[str]) -> tuple[ClusterOptions | None, list[str]]:
    """Split the options of workers off a command line; the cluster is None without ``--on``.

    Raises:
        ConfigError: A value is not allowed, or a package is missing.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--on", choices=sorted(CLUSTERS))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--gpus-per-worker", type=int)
    for name in {one.partition("=")[0] for one in arguments if one.startswith("--slurm-")}:
        parser.add_argument(name)
    try:
        found, rest = parser.parse_known_args(list(arguments))
    except ArgumentError as error:
        raise ConfigError(f"{COMMAND_LINE}: {error.argument_name}: {error.message}") from error
    given = {name: value for name, value in vars(found).items() if value is not None and name != "on"}
    slurm = {
        name: int(value) if value.isdigit() else value
        for name, value in given.items()
        if name.startswith("slurm_")
    }
    if found.on is None:
        for name in given:
            raise ConfigError(f"{COMMAND_LINE}: --{name.replace('_', '-')} needs --on {', '.join(CLUSTERS)}")
        return None, rest
    for name, least in (("workers", 1), ("gpus_per_worker", 0)):
        if given.get(name, least) < least:
            raise ConfigError(
                f"{COMMAND_LINE}: --{name.replace('_', '-')} must be an integer >= {least}, got {given[name]}"
            )
    if slurm and found.on != "slurm":
        raise ConfigError(f"{COMMAND_LINE}: --slurm-... needs --on slurm, got --on {found.on}")
    package = CLUSTERS[found.on]
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f'{COMMAND_LINE}: --on {found.on} needs {package}, which is not installed: pip install -e ".[cluster]"'
        )
    return ClusterOptions(found.on, found.workers or 1, found.gpus_per_worker, slurm), rest
