"""Whole studies by two workers, ten times with each fault at a random moment of their life, from the first import to
the export: no finished trial is lost or measured twice, and one worker confirms and exports.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.postgres import Postgres
from helpers.proxy import Proxy
from helpers.shared_study import finished
from helpers.whole_study import WholeStudy
from sqlalchemy import create_engine, text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = range(10)
FULL = "cannot be written (No space left on device)"
LEFT = ("Another worker confirms the best trials.", "The best trials were confirmed by ")


@pytest.fixture
def study(tmp_path: Path, model_folder: str, url: str) -> WholeStudy:
    return WholeStudy(tmp_path, model_folder, url)


@dataclass
class Scene:
    """What a fault strikes: a study whose first worker reaches the database by a proxy."""

    study: WholeStudy
    server: Postgres
    proxy: Proxy
    workers: list[subprocess.Popen[str]]
    moments: random.Random
    disk: Path


def kill(scene: Scene) -> None:
    scene.workers[0].kill()


def restart(scene: Scene) -> None:
    scene.server.stop(scene.moments.choice(("immediate", "fast")))
    time.sleep(scene.moments.uniform(0, 3))
    scene.server.start()


def cut(scene: Scene) -> None:
    scene.proxy.cut()
    time.sleep(scene.moments.uniform(0, 4))
    scene.proxy.mend()


def fill(scene: Scene) -> None:
    filler = scene.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    scene.workers[0].wait()
    filler.unlink(missing_ok=True)


def begin(study: WholeStudy, folders: tuple[str, str], through: Proxy) -> list[subprocess.Popen[str]]:
    """Two workers."""
    return [
        study.type("--output", folders[0], url=through.before(study.url)),
        study.type("--output", folders[1]),
    ]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory, model_folder: str, server: Postgres) -> float:
    """Seconds that two workers take to whom nothing happens."""
    study = WholeStudy(tmp_path_factory.mktemp("life"), model_folder, server.database("life"))
    begun = time.monotonic()
    said = [one.communicate()[0] for one in begin(study, ("one", "other"), Proxy(server.port))]
    seconds = time.monotonic() - begun
    study.check(said)
    return seconds


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False).returncode:
        pytest.skip("nobody but root can mount a small disk")
    yield small
    subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("strike", [kill, restart, cut, fill])
def test_a_study_outlives_a_fault_at_any_moment(
    strike: Callable[[Scene], None],
    round_: int,
    study: WholeStudy,
    life: float,
    server: Postgres,
    request: pytest.FixtureRequest,
) -> None:
    proxy, moments = Proxy(server.port), random.Random(round_)
    one = str(request.getfixturevalue("disk") / "one") if strike is fill else "one"
    folders = (one, "other" if strike is fill or round_ % 2 else "one")  # shared in every other round
    workers = begin(study, folders, proxy)
    scene = Scene(study, server, proxy, workers, moments, study.folder / "small")
    time.sleep(moments.uniform(0, life))
    before = finished(study.url, "sweep")
    strike(scene)
    said = [worker.communicate()[0] for worker in workers]
    codes = [worker.returncode for worker in workers]
    assert codes[1] == 0, said[1]
    assert codes[0] in {kill: (0, -9), fill: (0, 1, 2)}.get(strike, (0,)), said[0]
    assert codes[0] <= 0 or FULL in said[0]
    if codes[0]:
        again = study.type("--output", one)
        said.append(again.communicate()[0])
        assert again.returncode == 0, said[-1]
    study.check(said, before)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, model_folder: str, server: Postgres) -> str:
    """Name of a database whose study was searched and not confirmed."""
    study = WholeStudy(tmp_path_factory.mktemp("search"), model_folder, server.database("searched"))
    worker = study.type("--sweep.confirm", "null", "--sweep.export", "null", "--output", "search")
    said = worker.communicate()[0]
    assert worker.returncode == 0, said
    return str(study.folder)


@pytest.fixture
def found(searched: str, study: WholeStudy, server: Postgres) -> WholeStudy:
    """A copy of that study."""
    name = study.url.rpartition("/")[2]
    admin = create_engine(server.url()).connect().execution_options(isolation_level="AUTOCOMMIT")
    with admin:
        admin.execute(text(f"drop database {name}"))
        admin.execute(text(f"create database {name} template searched"))
    shutil.copytree(Path(searched) / "search", study.folder / "search")
    return study


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("strike", [None, kill, restart])
def test_of_two_confirmations_one_is_exported(
    strike: Callable[[Scene], None] | None, round_: int, found: WholeStudy, server: Postgres
) -> None:
    moments, proxy = random.Random(round_), Proxy(server.port)
    folders = ("one", "other" if round_ % 2 else "one")
    begun = time.monotonic()
    workers = [found.type("--output", folders[0])]
    time.sleep(moments.uniform(0, 3))
    workers.append(found.type("--output", folders[1]))
    if strike is not None:
        time.sleep(max(0.0, begun + moments.uniform(3, 12) - time.monotonic()))
        strike(Scene(found, server, proxy, workers, moments, found.folder))
    said = [worker.communicate()[0] for worker in workers]
    assert workers[1].returncode == 0, said[1]
    if workers[0].returncode:
        assert strike is kill, said[0]
        again = found.type("--output", folders[1])
        said.append(again.communicate()[0])
        assert again.returncode == 0, said[-1]
    elif strike is None and folders[0] != folders[1]:
        assert sum(any(words in one for words in LEFT) for one in said) == 1, said
    found.check(said)
