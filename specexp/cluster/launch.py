"""Starts and ends workers on a Ray cluster, under SLURM or on this machine, and parses their options."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from argparse import ArgumentError, ArgumentParser
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, redirect_stderr
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias, TypeVar

from specexp.base import supervisor
from specexp.base.messages import counted, first_line, option_message, restated
from specexp.base.start import SIGNALS
from specexp.config.command import fail
from specexp.config.layers import COMMAND_LINE, ConfigError

CLUSTERS = {"ray": "ray", "slurm": "submitit", "local": None}
"""The package that each value of ``--on`` requires."""

USAGE = """--on ray|slurm|local [--workers N] [--gpus-per-worker G] starts identical workers on the Ray cluster at
RAY_ADDRESS, as a SLURM array, or as processes of this machine; --slurm-KEY VALUE sets a parameter of submitit. Ctrl-C
ends the workers."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options for workers: their cluster, number and resources."""

    on: str  # one of :data:`CLUSTERS`
    workers: int = 1
    gpus: int | None = None  # per worker; None: 1 if the experiment's device is a GPU, else 0
    slurm: dict[str, str | int] = field(default_factory=dict)  # parameters of submitit

    def gpus_on(self, device: str) -> int:
        """Return the number of GPUs for each worker of an experiment on this device."""
        return int(device.startswith("cuda")) if self.gpus is None else self.gpus


def take_options(arguments: Sequence[str]) -> tuple[ClusterOptions | None, list[str]]:
    """Split the worker options from the rest of a command line. Without ``--on``, the options are None.

    Raises ConfigError if a value is not allowed or a package is missing.
    """
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--on", choices=sorted(CLUSTERS))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--gpus-per-worker", type=int)
    for name in {one.partition("=")[0] for one in arguments if one.startswith("--slurm-")}:
        parser.add_argument(name)
    with restated(ArgumentError, lambda error: ConfigError(f"{COMMAND_LINE}: {option_message(str(error))}")):
        found, rest = parser.parse_known_args(list(arguments))
    given = {name: value for name, value in vars(found).items() if value is not None and name != "on"}
    slurm = {
        name: int(value) if value.isdigit() else value for name, value in given.items() if name.startswith("slurm_")
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
    if found.on == "local" and (gpus := found.gpus_per_worker):
        import torch

        own, workers = torch.cuda.device_count(), found.workers or 1
        if gpus * workers > own:
            raise ConfigError(
                f"{COMMAND_LINE}: --gpus-per-worker must be at most {own // workers}, because this machine has "
                f"{counted(own, 'GPU')} for {counted(workers, 'worker')}, got {gpus}"
            )
    if slurm and found.on != "slurm":
        raise ConfigError(f"{COMMAND_LINE}: --slurm-... needs --on slurm, got --on {found.on}")
    package = CLUSTERS[found.on]
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f'{COMMAND_LINE}: --on {found.on} needs {package}, which is not installed: pip install -e ".[cluster]"'
        )
    return ClusterOptions(found.on, found.workers or 1, found.gpus_per_worker, slurm), rest


GRACE = 20.0
"""Seconds between SIGTERM and SIGKILL when a worker is ended."""
POLL = 0.5
"""Seconds between checks of the workers."""
RETRIES = 3
"""Maximum number of restarts per worker: on Ray if its node is lost, under SLURM if its time is up."""
KILL_WAIT = 60.0
"""Seconds that a job waits after SIGTERM for SLURM to kill it. SLURM's default for KillWait is 30."""
MINUTES = 24 * 60
"""Time limit of a SLURM job, in minutes, unless ``--slurm-time`` is given."""
PASSED_ON = ("PG", "HF_", "WANDB_", "SPECEXP_", "OMP_", "MKL_", "TOKENIZERS_", "PYTHON", "TORCH", "NCCL_")
"""Prefixes of the environment variables that workers on Ray inherit. ``PG`` covers PGPASSWORD, a database password."""

Worker = TypeVar("Worker")
Jobs: TypeAlias = Mapping[str, tuple[Sequence[str], str, str]]
"""The command, working directory and log of each worker, keyed by name."""
Outcomes: TypeAlias = Generator[tuple[str, int | Exception], None, None]
"""Yields each ended worker's name and its exit code, or an exception if it was lost. Closing it ends the others."""


def run_workers(
    options: ClusterOptions, commands: Mapping[str, Sequence[str]], folder: Path, gpus: int, threads: int
) -> int:
    """Run workers until they end or are interrupted. Return 0, or 1 with a reason printed to stderr if any failed.

    ``commands`` holds the program and arguments of each worker by name, without passwords. All machines must share
    ``folder``, which gets the logs. ``gpus`` and ``threads`` (CPU cores) are those of each worker. Raises ConfigError
    if the cluster does not exist or refuses the workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {}
    for name, command in commands.items():
        log = (folder / f"{name.replace(' ', '_')}.log").resolve()
        log.write_bytes(b"")  # so that an old error line does not explain a new failure
        jobs[name] = (list(command), str(Path.cwd()), str(log))
    print(f"{counted(len(jobs), 'worker')} on {options.on}; logs are in {folder}", flush=True)
    outcomes = {
        "local": lambda: _local(jobs, gpus),
        "slurm": lambda: _slurm(jobs, gpus, threads, folder, options.slurm),
        "ray": lambda: _ray(jobs, gpus, threads),
    }[options.on]()
    status = 0
    with closing(outcomes):
        for name, outcome in outcomes:
            if outcome == 0:
                print(f"{name} ended", flush=True)
            else:
                why = _reason(Path(jobs[name][2]), outcome)
                status = fail(f"{name} failed: {why}; the same command continues", 1)
    return status


def run_worker(command: Sequence[str], folder: str, log: str, environment: Mapping[str, str]) -> int:
    """Run one worker on its machine and return its exit code."""
    with _started(command, folder, log, environment) as worker:
        try:
            return worker.wait()
        except BaseException:  # the task is cancelled, or its SLURM job requeued
            supervisor.end(worker)
            raise


def _started(command: Sequence[str], folder: str, log: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker that ends when this process ends, for whatever reason."""
    env = {**os.environ, **environment}
    with Path(log).open("ab") as file:
        return supervisor.start(command, GRACE, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT)


def _reason(log: Path, outcome: int | Exception) -> str:
    """Return why a worker failed: its last ``error:`` line, else how it was lost or killed, else its last line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1]
    if isinstance(outcome, Exception):
        return first_line(outcome)
    if outcome < 0:
        return f"it was killed by {signal.Signals(-outcome).name}"
    return (lines or [f"its exit code is {outcome}"])[-1]


def _as_they_end(running: dict[str, Worker], outcome: Callable[[Worker], int | Exception | None]) -> Outcomes:
    """Poll the workers and yield the outcome of each one that has ended."""
    while running:
        for name, worker in list(running.items()):
            if (found := outcome(worker)) is not None:
                del running[name]
                yield name, found
        time.sleep(POLL)


def _local(jobs: Jobs, gpus: int) -> Outcomes:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for number, (name, job) in enumerate(jobs.items()):
            own = ",".join(str(gpu) for gpu in range(number * gpus, (number + 1) * gpus))
            running[name] = _started(*job, {"CUDA_VISIBLE_DEVICES": own})
        yield from _as_they_end(running, subprocess.Popen.poll)
    finally:
        supervisor.end(*running.values())


def _slurm(jobs: Jobs, gpus: int, threads: int, folder: Path, given: Mapping[str, str | int]) -> Outcomes:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError
    from submitit.helpers import Checkpointable

    class Requeued(Checkpointable):  # type: ignore[misc]
        """A worker that continues in the same job if it is preempted or its time is up."""

        def __call__(self, command: Sequence[str], folder: str, log: str) -> int:
            code = run_worker(command, folder, log, {})
            if code in (-signal.SIGTERM, 128 + signal.SIGTERM):
                time.sleep(KILL_WAIT)  # a job that returns is over and cannot be requeued
            return code

    if shutil.which("sbatch") is None:
        raise ConfigError(
            f"{COMMAND_LINE}: --on slurm needs sbatch, which is not on this machine: type the command on a login "
            "node of the cluster, or use --on local"
        )
    if not isinstance(given.get("slurm_time", 0), int):
        raise ConfigError(f"{COMMAND_LINE}: --slurm-time must be whole minutes, got {given['slurm_time']!r}")
    # From SLURM 22.05 on, srun binds a worker to one core unless this variable repeats the request to sbatch.
    setup = ["export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}", str(given.get("slurm_setup", ""))]
    srun = shlex.split(str(given.get("slurm_srun_args", "")))
    executor = submitit.AutoExecutor(folder / "jobs" / "%j", cluster="slurm", slurm_max_num_timeout=RETRIES)
    try:
        executor.update_parameters(
            name="specexp",
            timeout_min=MINUTES,
            gpus_per_node=gpus,
            cpus_per_task=threads,
            **{"slurm_array_parallelism": len(jobs), **given, "slurm_setup": setup, "slurm_srun_args": srun},
        )
        with redirect_stderr(io.StringIO()):  # submitit prints its errors too
            submitted = executor.map_array(Requeued(), *zip(*jobs.values(), strict=True))
    except (NameError, ValueError, TypeError, FailedJobError, FailedSubmissionError) as error:
        raise ConfigError(
            f"{COMMAND_LINE}: SLURM refuses the workers ({first_line(error).removeprefix('sbatch: error: ')}): see "
            "--slurm-..., --workers and --gpus-per-worker"
        ) from error
    running = dict(zip(jobs, submitted, strict=True))
    try:
        yield from _as_they_end(running, lambda job: job.exception() or job.result() if job.done() else None)
    finally:
        for job in running.values():
            job.cancel(check=False)


def _ray(jobs: Jobs, gpus: int, threads: int) -> Outcomes:
    import ray
    from ray.exceptions import RayError

    handlers = {number: signal.getsignal(number) for number in (getattr(signal, name) for name in SIGNALS)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        host, colon, port = address.rpartition("//")[2].rpartition(":")
        if colon:  # Ray ends this process if no one listens there
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address="auto", log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{COMMAND_LINE}: --on ray finds no Ray cluster at {address or 'this machine'} ({first_line(error)}): "
            "start one with ray start --head, or set RAY_ADDRESS"
        ) from error
    for number, handler in handlers.items():  # Ray's own handlers end the process at once
        signal.signal(number, handler)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("GPU", 0) >= gpus and node.get("CPU", 0) >= threads for node in nodes):
            raise ConfigError(  # otherwise Ray would silently wait for such a node
                f"{COMMAND_LINE}: no node of the Ray cluster has {counted(gpus, 'GPU')} and "
                f"{counted(threads, 'CPU')} for a worker: see --gpus-per-worker and --generation.threads"
            )
        task = ray.remote(run_worker).options(
            num_gpus=gpus,
            num_cpus=threads,
            max_retries=RETRIES,
            # Ray's processes have niceness 15 by default, which would slow down a worker's measurements.
            runtime_env={"env_vars": {"RAY_worker_niceness": "0"}},
        )
        # Passed as an argument, because Ray logs runtime environments, and this one can contain PGPASSWORD.
        environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        running = {name: task.remote(*job, environment) for name, job in jobs.items()}

        def outcome(worker: ray.ObjectRef) -> int | Exception | None:
            # With a timeout above 0, ray.wait would hide the signal that interrupts it.
            if not ray.wait([worker], timeout=0)[0]:
                return None
            try:
                found: int | Exception = ray.get(worker)
            except RayError as error:
                found = error
            return found

        yield from _as_they_end(running, outcome)
    finally:
        ray.shutdown()  # this kills the tasks, each of which ends its worker
