"""The files of docs/cluster: they parse, and run valid commands."""

from pathlib import Path

import pytest
import yaml
from sqlalchemy import make_url

from specexp.__main__ import COMMANDS
from specexp.cluster.launch import take_options
from specexp.cluster.shard import Shard, take_shard

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "cluster"


def job(name):
    """A Job's specification, its container and what that runs."""
    found = yaml.safe_load((FILES / f"{name}.yaml").read_text())
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return found["spec"], container, [*container["command"], *container["args"]]


@pytest.mark.parametrize("name", ["study", "record"])
def test_an_indexed_job_runs_a_command_on_an_existing_experiment(name):
    spec, container, typed = job(name)
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"] == 8
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # needed by a limit for each index
    assert typed[:2] == ["python", "-m"]
    assert typed[2].removeprefix("specexp.") in COMMANDS
    assert (ROOT / typed[3]).exists()
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["template"]["spec"]["volumes"]}


def test_the_study_job_keeps_its_password_in_a_secret():
    _, container, typed = job("study")
    url = make_url(typed[typed.index("--storage") + 1])
    assert (url.get_backend_name(), url.password) == ("postgresql", None)
    secret = {"secretKeyRef": {"name": "studies", "key": "password"}}
    assert container["env"] == [{"name": "PGPASSWORD", "valueFrom": secret}]


def test_the_recording_job_has_every_shard_once():
    spec, _, typed = job("record")
    indices = range(spec["completions"])
    words = [[one.replace("$(JOB_COMPLETION_INDEX)", str(index)) for one in typed[3:]] for index in indices]
    assert [take_shard(one)[0] for one in words] == [Shard(index, len(indices)) for index in indices]


def test_the_compose_file_starts_the_database_that_the_page_names():
    services = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
    server, dashboard = services["postgres"], services["dashboard"]
    named = make_url(job("study")[2][5])
    assert server["environment"]["POSTGRES_USER"] == named.username
    assert server["environment"]["POSTGRES_DB"] == named.database
    assert server["image"].startswith("postgres:")
    assert make_url(dashboard["command"][0].replace("${POSTGRES_PASSWORD}", "x")).database == named.database
    assert list(dashboard["depends_on"]) == ["postgres"]


def test_the_commands_of_the_page_are_valid():
    page = (ROOT / "docs" / "cluster.md").read_text().replace("\\\n", " ")
    typed = [line.split("#")[0].split() for line in page.splitlines() if line.startswith("python -m specexp.")]
    assert len(typed) > 5
    for words in typed:
        options, rest = take_options(words[3:])
        assert (ROOT / rest[0]).exists(), rest[0]
        assert options is None or options.on in page
    script = (FILES / "study.sh").read_text()
    assert "#SBATCH --array=" in script
    assert "--storage postgresql://specexp@" in script
