"""Workers as actors of a Ray cluster, which outlive whoever started them and are started again where they die."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from typing_extensions import override

from specexp.cluster import process
from specexp.cluster.fleet import (
    MAX_RESTARTS,
    Fleet,
    Status,
    Work,
    environment_of_workers,
    last_line,
)
from specexp.config.errors import ConfigError
from specexp.core.messages import counted, first_line
from specexp.core.start import SIGNALS

NAMESPACE = "specexp"
PATIENCE = 3.0
"""Seconds in which an actor says how it is; one that does not is waiting for its place."""

_NOT_NICED = {"env_vars": {"RAY_worker_niceness": "0"}}
"""Ray niceness is 15 otherwise, which a worker's process inherits: it would measure in what others leave."""


class RayWorker:
    """An actor: a worker's process on some node, which ends with it.

    The environment comes as an argument, not by Ray's runtime environment, which Ray writes into its logs.

    Args:
        command: Program and arguments.
        folder: Where it runs.
        environment: Added to the node's.
        log: Where its output goes.
    """

    def __init__(self, command: Sequence[str], folder: str, environment: Mapping[str, str], log: str) -> None:
        with Path(log).open("ab") as file:
            self._process = process.start(command, folder, {**os.environ, **environment}, file)
        self._stopped = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        if self._process.wait() == -signal.SIGKILL and not self._stopped:
            os._exit(1)  # Ray starts the actor again, and with it the worker

    def state(self) -> tuple[str, int, int | None]:
        """Host, process and exit code."""
        return socket.gethostname(), self._process.pid, self._process.poll()

    def stop(self) -> None:
        """Ask the process to end, and end it where it does not."""
        self._stopped = True
        process.end(self._process)


class RayFleet(Fleet):
    """Workers on the Ray cluster at ``RAY_ADDRESS``, or at the one of this machine.

    Workers of the same names that run there already are taken over.

    Args:
        works: What each runs.
        gpus: Of each worker.
        cpus: Of each worker.
        folder: Where logs go.

    Raises:
        ConfigError: There is no cluster, or it never has room for all.
    """

    def __init__(self, works: Sequence[Work], gpus: int, cpus: int, folder: Path) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            _check_answers(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise ConfigError(
                f"command line: --on ray finds no Ray cluster at {where} ({first_line(error)}): start one with ray "
                "start --head, or set RAY_ADDRESS"
            ) from error
        for name in SIGNALS:  # Ray's own handlers end the process at once
            signal.signal(getattr(signal, name), signal.getsignal(getattr(signal, name)))
        self._logs = {work.name: folder / f"{work.name.replace(' ', '_')}.log" for work in works}
        self._ended: dict[str, Status] = {}
        try:
            _check_room(len(works), gpus, cpus)
            folder.mkdir(parents=True, exist_ok=True)
            environment = environment_of_workers()
            actor = ray.remote(RayWorker)
            self._actors: dict[str, Any] = {
                work.name: actor.options(
                    name=work.name,
                    lifetime="detached",
                    get_if_exists=True,
                    num_gpus=gpus,
                    num_cpus=cpus,
                    max_restarts=MAX_RESTARTS,
                    max_concurrency=2,
                    runtime_env=_NOT_NICED,
                ).remote(work.command, str(Path.cwd()), environment, str(self._logs[work.name].resolve()))
                for work in works
            }
        except BaseException:
            ray.shutdown()
            raise

    @override
    def statuses(self) -> list[Status]:
        asked = {
            name: actor.state.remote() for name, actor in self._actors.items() if name not in self._ended
        }
        ray.wait([*asked.values()], num_returns=len(asked), timeout=PATIENCE) if asked else None
        return [self._ended.get(name) or self._status(name, asked[name]) for name in self._actors]

    def _status(self, name: str, answer: Any) -> Status:
        try:
            host, number, code = ray.get(answer, timeout=0.01)
        except GetTimeoutError:
            return Status(name, "waiting")
        except RayActorError as error:
            if "RESTARTING" in str(error) or "unavailable" in str(error):
                return Status(name, "waiting")
            return self._end(
                Status(name, "failed", said=f"it died {MAX_RESTARTS + 1} times, or with its node")
            )
        where = f"{host}:{number}"
        if code is None or code == -signal.SIGKILL:
            return Status(name, "running", where)
        if code == 0:
            return self._end(Status(name, "ended", where))
        return self._end(Status(name, "failed", where, last_line(self._logs[name])))

    def _end(self, status: Status) -> Status:
        self._ended[status.name] = status
        ray.kill(self._actors[status.name])  # its place is free for others
        return status

    @override
    def stop(self) -> None:
        running = [actor for name, actor in self._actors.items() if name not in self._ended]
        ray.wait(
            [actor.stop.remote() for actor in running],
            num_returns=len(running),
            timeout=process.SECONDS + PATIENCE,
        ) if running else None
        for actor in running:
            ray.kill(actor)
        self.close()

    @override
    def close(self) -> None:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """See that somebody listens at an address: where nobody does, Ray ends the process that asks.

    Raises:
        OSError: Nobody does.
    """
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _check_room(workers: int, gpus: int, cpus: int) -> None:
    """Refuse workers that the cluster never has room for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, wanted in (("GPU", gpus), ("CPU", cpus)):
        has = [int(node.get(kind, 0)) for node in nodes]
        room = sum(count // wanted for count in has) if wanted else workers
        if room < workers:
            raise ConfigError(
                f"command line: --workers {workers} of {counted(wanted, kind)} each are more than the Ray cluster has: "
                f"{sum(has)} on {counted(len(nodes), 'node')}, room for {room}"
            )
