"""The wheel builds from what the container files copy, pins hold, and the package shows its commands and names."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

import specexp
from specexp.__main__ import main
from specexp.commands.demo import main as demo

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERS = [DOCS / "Containerfile", DOCS / "cluster" / "Containerfile"]
"""The second is built from the image of the first, in the same folder."""
PACKAGED = ["sweeps/methods.yaml", "experiments/demo.yaml", "sweeps/tree_shape.yaml"]
PACKAGED += ["configs/data/stdlib.yaml", "configs/pair/stdlib.yaml"]
PACKAGED += ["experiments/tree_shape.yaml", "configs/pair/smollm2.yaml"]


def instructions(file: Path) -> list[list[str]]:
    text = file.read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def copy(words: list[str], folder: Path) -> None:
    """Copy as COPY does, but without weights, which take long and change nothing."""
    *sources, target = words
    for source in sources:
        if (ROOT / source).is_dir():
            without = shutil.ignore_patterns("__pycache__", "*.safetensors")
            shutil.copytree(ROOT / source, folder / target, ignore=without, dirs_exist_ok=True)
        else:
            (folder / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / target)


def test_a_wheel_builds_wherever_a_container_installs_the_package(tmp_path, monkeypatch):
    build = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    folder, wheels = tmp_path / "image", []
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, *words in (line for file in CONTAINERS for line in instructions(file)):
        if name == "COPY":
            copy(words, folder)
        if name == "RUN" and words[:2] == ["pip", "install"]:
            wheels.append(tmp_path / build.build_wheel(str(tmp_path)))
            with ZipFile(wheels[-1]) as wheel:
                assert {f"specexp/commands/{name}" for name in PACKAGED} <= set(wheel.namelist())
                assert "specexp/py.typed" in wheel.namelist(), "types are read by mypy"
    assert len(wheels) == len(CONTAINERS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_alone_answers_the_main_question_in_an_empty_folder(tmp_path, monkeypatch):
    build = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    monkeypatch.chdir(ROOT)
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    with ZipFile(tmp_path / build.build_wheel(str(tmp_path))) as wheel:
        wheel.extractall(installed)
    empty.mkdir()
    # one thread, since tests share the cores
    command = [sys.executable, "-m", "specexp", "demo", "--generation.threads", "1"]
    settings = {**os.environ, "PYTHONPATH": str(installed)}
    ran = subprocess.run(command, cwd=empty, env=settings, capture_output=True, text=True, check=True)
    answer = ["Which static tree is fastest", "equal outputs", "Safe: ", "The tree of ", "Next: "]
    assert [*map(ran.stdout.index, answer)] == sorted(map(ran.stdout.index, answer))
    assert str(ROOT) not in ran.stdout
    assert {path.name for path in empty.iterdir()} == {"runs", "artifacts"}


def test_the_demo_of_smollm2_is_the_main_job(monkeypatch):
    monkeypatch.setattr("specexp.sweep.command.main", lambda words: words)
    file, *options = demo(["smollm2", "--minutes", "2"])
    assert Path(file) == ROOT / "experiments" / "tree_shape.yaml"
    assert options == ["--minutes", "2"]


def test_every_core_dependency_is_pinned_within_its_bounds():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    for dependency in PROJECT["dependencies"]:
        name, least = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<\d+)?", dependency).groups()
        assert numbers(pins[name]) >= numbers(least), name


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition(".post")[0])]


def test_images_are_of_a_tried_python_and_of_no_floating_tag():
    tried = {line.rpartition(" :: ")[2] for line in PROJECT["classifiers"]}
    services = yaml.safe_load((DOCS / "cluster" / "compose.yaml").read_text())["services"].values()
    (base,) = [words[1] for words in instructions(CONTAINERS[0]) if words[0] == "FROM"]
    assert base.removeprefix("python:").removesuffix("-slim") in tried
    assert all(re.search(r":v?\d", service["image"]) for service in services)


def test_the_compose_file_publishes_on_this_machine_alone_and_shows_no_password():
    services = yaml.safe_load((DOCS / "cluster" / "compose.yaml").read_text())["services"].values()
    assert services
    assert all(port.startswith("127.0.0.1:") for service in services for port in service["ports"])
    assert not any("PASSWORD" in word for service in services for word in service["command"])


@pytest.mark.parametrize("name", ["study", "record"])
def test_jobs_of_a_cluster_run_as_the_images_own_user(name):
    pod = yaml.safe_load((DOCS / "cluster" / f"{name}.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]


def test_the_package_lists_its_commands(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["specexp"])
    assert main() == 0
    shown = capsys.readouterr().out
    for command in ("demo", "run", "sweep", "verify", "serve", "export", "why", "init", "doctor"):
        assert f"\n  {command} " in shown
    assert all(len(line.split()) > 3 for line in shown.splitlines() if line.startswith("  "))


def test_completion_finds_the_public_names():
    assert {"load_pair", "load_artifact", "Decoder", "GenerationResult", "__version__"} == set(dir(specexp))
    assert specexp.__version__ == PROJECT["version"]
    assert all(getattr(specexp, name) for name in dir(specexp))
