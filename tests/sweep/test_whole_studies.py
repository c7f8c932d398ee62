"""Whole studies by workers of a cluster on a real PostgreSQL: one of them confirms and exports, and none tells the
password.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.clusters import ray_cluster, slurm_cluster
from helpers.postgres import PASSWORD
from helpers.whole_study import WholeStudy, files_with_the_password

from specexp.cluster.launch import CLUSTERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("on", ["local", "ray", "slurm"])
def test_two_workers_search_and_one_of_them_confirms_and_exports(
    on: str, url: str, tmp_path: Path, model_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip(CLUSTERS[on] or "specexp")
    started = {"local": nullcontext, "ray": lambda: ray_cluster(2), "slurm": lambda: slurm_cluster(own)}
    own = tmp_path_factory.mktemp("cluster")
    study = WholeStudy(tmp_path, model_folder, url)
    with started[on]() as cluster:
        leading = study.type("--on", on, "--workers", "2")
        said = leading.communicate()[0]
        assert leading.returncode == 0, said
        logs = [
            *(files_with_the_password(Path(cluster.head_node.get_session_dir_path())) if on == "ray" else []),
            *(path for path in own.glob("*.log") if PASSWORD.encode() in path.read_bytes()),
        ]
    study.check([said])
    assert logs == []
