"""The files that the page on many machines gives: they parse, and what they run is what the commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from specexp.__main__ import COMMANDS
from specexp.cluster.launch import take_options
from specexp.cluster.shard import Shard, take_shard

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "cluster"


def job(name: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """A Job's specification, its container and what that runs."""
    found = yaml.safe_load((FILES / f"{name}.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return found["spec"], container, [*container["command"], *container["args"]]


@pytest.mark.parametrize("name", ["study", "record"])
def test_an_indexed_job_runs_a_command_on_an_experiment_that_is_there(name: str) -> None:
    spec, container, typed = job(name)
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] == 8
    assert spec["backoffLimitPerIndex"] == 3
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # which a limit for each index needs
    assert typed[:2] == ["python", "-m"]
    assert typed[2].removeprefix("specexp.") in COMMANDS
    assert (ROOT / typed[3]).exists()
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["template"]["spec"]["volumes"]}


def test_the_study_job_keeps_its_password_in_a_secret() -> None:
    _, container, typed = job("study")
    url = make_url(typed[typed.index("--storage") + 1])
    assert (url.get_backend_name(), url.password) == ("postgresql", None)
    (variable,) = container["env"]
    assert variable == {
        "name": "PGPASSWORD",
        "valueFrom": {"secretKeyRef": {"name": "studies", "key": "password"}},
    }


def test_the_shards_of_the_recording_job_are_all_there_are() -> None:
    spec, _, typed = job("record")
    shards = [
        take_shard([one.replace("$(JOB_COMPLETION_INDEX)", str(index)) for one in typed[3:]])[0]
        for index in range(spec["completions"])
    ]
    assert shards == [Shard(index, spec["completions"]) for index in range(spec["completions"])]


def test_the_compose_file_starts_the_database_that_the_page_names() -> None:
    services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    server, dashboard = services["postgres"], services["dashboard"]
    named = make_url(job("study")[2][5])
    assert server["environment"]["POSTGRES_USER"] == named.username
    assert server["environment"]["POSTGRES_DB"] == named.database
    assert server["image"].startswith("postgres:")
    assert make_url(dashboard["command"][0].replace("${POSTGRES_PASSWORD}", "x")).database == named.database
    assert list(dashboard["depends_on"]) == ["postgres"]


def test_what_the_page_types_is_what_the_commands_take() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text().replace("\\\n", " ")
    typed = [
        line.split("#")[0].split() for line in page.splitlines() if line.startswith("python -m specexp.")
    ]
    assert len(typed) > 5
    for words in typed:
        options, rest = take_options(words[3:])
        assert (ROOT / rest[0]).exists(), rest[0]
        assert options is None or options.on in page
    script = (FILES / "study.sh").read_text()
    assert "#SBATCH --array=" in script
    assert "--storage postgresql://specexp@" in script
