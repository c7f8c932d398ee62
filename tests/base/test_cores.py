"""The affinity of this process and the quota of its control group limit its cores, and the limit is named."""

import os

import pytest

from specexp.base.cores import usable_cores
from specexp.config import ConfigError
from specexp.config.command import check_threads

pytestmark = pytest.mark.unit
HERE = len(os.sched_getaffinity(0))


def machine(root, groups, files):
    """Return a root folder whose process is in these control groups, which have these files."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup/{}cpu.max"
V1 = "sys/fs/cgroup/cpu/{}cpu.cfs_{}_us"


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/\n", {V2.format(""): "100000 100000\n"}),
        ("0::/job/own\n", {V2.format("job/"): "100000 100000\n", V2.format("job/own/"): "max 100000\n"}),
        ("0::/not/seen/here\n", {V2.format(""): "150000 100000\n"}),  # a container without its own name space
        (
            "3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n",
            {V1.format("job/", "quota"): "50000\n", V1.format("job/", "period"): "100000\n"},
        ),
    ],
    ids=["v2", "v2 of a group around it", "v2 in a container", "v1"],
)
def test_a_quota_limits_the_cores_and_is_named(groups, files, tmp_path):
    found = usable_cores(machine(tmp_path, groups, files))
    assert found.number == 1
    if HERE > 1:
        assert "quota" in found.limit
        assert next(iter(files)).rpartition("/")[0] in found.limit


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/\n", {V2.format(""): "max 100000\n"}),
        ("0::/\n", {}),
        ("2:cpu:/\n", {V1.format("", "quota"): "-1\n", V1.format("", "period"): "100000\n"}),
        ("2:memory:/job\n", {"sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100\n"}),
    ],
    ids=["max", "no file", "v1 without a quota", "another controller"],
)
def test_without_a_quota_all_cores_of_the_affinity_count(groups, files, tmp_path):
    assert usable_cores(machine(tmp_path, groups, files)).number == HERE


@pytest.mark.skipif(HERE < 2, reason="one core is the affinity's and the machine's number")
def test_more_threads_than_the_affinity_allows_are_refused_with_the_affinity_named(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    check_threads(1, ConfigError("generation.threads"))
    with pytest.raises(ConfigError, match=r"^generation.threads must be at most 1, .*affinity \(taskset\).*, got 2$"):
        check_threads(2, ConfigError("generation.threads"))


@pytest.mark.skipif(HERE < 2, reason="one thread is allowed anyway")
def test_a_limit_of_openmp_counts(monkeypatch):
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    with pytest.raises(ConfigError, match="OMP_THREAD_LIMIT"):
        check_threads(2, ConfigError("generation.threads"))
