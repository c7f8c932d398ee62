"""Whole studies by two workers, ten times with each fault at a random moment of their life, from the first import to
the export: no finished trial is lost or measured twice, and one worker confirms and exports.
"""

import random
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import optuna
import pytest
from helpers.postgres import Postgres, Proxy
from helpers.shared_study import finished
from helpers.waiting import wait_for
from helpers.whole_study import WholeStudy

from specexp.sweep.workers import CONFIRMATIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = range(10)
FULL = "cannot be written (No space left on device)"
UNREACHABLE = "and the database cannot be used: "
"""Printed by a command that starts while the database is away."""

LEFT = (
    "Another worker confirms the best trials.",
    "The best trials were confirmed by ",
    "has ended, so nothing was measured.",
)


@pytest.fixture
def study(tmp_path, model_folder, url):
    return WholeStudy(tmp_path, model_folder, url)


@dataclass
class Scene:
    """A study in which a fault happens; its first worker reaches the database by a proxy."""

    study: WholeStudy
    server: Postgres
    proxy: Proxy
    workers: list[subprocess.Popen[str]]
    moments: random.Random
    disk: Path


def kill(scene):
    scene.workers[0].kill()


def restart(scene):
    scene.server.stop(scene.moments.choice(("immediate", "fast")))
    time.sleep(scene.moments.uniform(0, 3))
    scene.server.start()


def cut(scene):
    scene.proxy.cut()
    time.sleep(scene.moments.uniform(0, 4))
    scene.proxy.mend()


def fill(scene):
    filler = scene.disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    scene.workers[0].wait()
    filler.unlink(missing_ok=True)


def begin(study, folders, through):
    return [
        study.type("--output", folders[0], url=through.before(study.url)),
        study.type("--output", folders[1]),
    ]


@pytest.fixture(scope="module")
def life(tmp_path_factory, model_folder, server):
    """Seconds of two workers without a fault."""
    study = WholeStudy(tmp_path_factory.mktemp("life"), model_folder, server.database("life"))
    begun = time.monotonic()
    printed = [one.communicate()[0] for one in begin(study, ("one", "other"), Proxy(server.port))]
    seconds = time.monotonic() - begun
    study.check(printed)
    return seconds


@pytest.fixture
def disk(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield small
    subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("strike", [kill, restart, cut, fill])
def test_a_study_outlives_a_fault_at_any_moment(strike, round_, study, life, server, request):
    proxy, moments = Proxy(server.port), random.Random(round_)
    one = str(request.getfixturevalue("disk") / "one") if strike is fill else "one"
    folders = (one, "other" if strike is fill or round_ % 2 else "one")  # shared in every other round
    workers = begin(study, folders, proxy)
    scene = Scene(study, server, proxy, workers, moments, study.folder / "small")
    time.sleep(moments.uniform(0, life))
    before = finished(study.url, "sweep")
    strike(scene)
    printed = [worker.communicate()[0] for worker in workers]
    codes = [worker.returncode for worker in workers]
    assert codes[1] == 0 or (strike is restart and UNREACHABLE in printed[1]), printed[1]
    assert codes[0] in {kill: (0, -9), fill: (0, 1, 2)}.get(strike, (0, 2)), printed[0]
    if codes[0] > 0:
        assert (FULL if strike is fill else UNREACHABLE) in printed[0]
    if any(codes):
        again = study.type("--output", one)
        printed.append(again.communicate()[0])
        assert again.returncode == 0, printed[-1]
    study.check(printed, before, codes.count(-9))


@pytest.fixture(scope="module")
def searched(tmp_path_factory, model_folder, server):
    """Makes copies, in a folder and a new database, of a study that was searched and not confirmed."""
    first = WholeStudy(tmp_path_factory.mktemp("search"), model_folder, server.database("searched"))
    worker = first.type("--sweep.confirm", "null", "--sweep.export", "null", "--output", "search")
    printed = worker.communicate()[0]
    assert worker.returncode == 0, printed
    numbers = count()

    def copy(folder):
        shutil.copytree(first.folder / "search", folder / "search")
        # By the other strategy a sequence of the copy may fall back when the server stops at once, and repeat keys.
        made = f"copy_{next(numbers)} template searched strategy file_copy"
        return WholeStudy(folder, model_folder, server.database(made))

    return copy


def wait_for_confirmation(url):
    def claimed():
        try:
            claims = optuna.load_study(study_name=f"sweep{CONFIRMATIONS}", storage=url).get_trials()
        except KeyError:
            return False
        return any("worker" in claim.user_attrs for claim in claims)

    wait_for(claimed)


@pytest.fixture(scope="module")
def end(searched, tmp_path_factory):
    """Seconds from the claim to the end of a worker without a fault."""
    study = searched(tmp_path_factory.mktemp("end"))
    worker = study.type("--output", "one")
    wait_for_confirmation(study.url)
    begun = time.monotonic()
    printed = worker.communicate()[0]
    seconds = time.monotonic() - begun
    study.check([printed])
    return seconds


@pytest.mark.parametrize("round_", ROUNDS)
@pytest.mark.parametrize("strike", [None, kill, restart])
def test_of_two_confirmations_one_is_exported(strike, round_, searched, end, server, tmp_path):
    study, moments, proxy = searched(tmp_path), random.Random(round_), Proxy(server.port)
    folders = ("one", "other" if round_ % 2 else "one")
    workers = [study.type("--output", folders[0])]
    time.sleep(moments.uniform(0, 3))
    workers.append(study.type("--output", folders[1]))
    if strike is not None:
        wait_for_confirmation(study.url)
        time.sleep(moments.uniform(0, end))
        strike(Scene(study, server, proxy, workers, moments, tmp_path))
    printed = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] in ([0, 0], [-9, 0] if strike is kill else [0, 0]), printed
    if strike is kill:
        again = study.type("--output", folders[1])
        printed.append(again.communicate()[0])
        assert again.returncode == 0, printed[-1]
    if strike is None and folders[0] != folders[1]:
        assert sum(any(words in one for words in LEFT) for one in printed) == 1, printed
    study.check(printed, killed=strike is kill)
