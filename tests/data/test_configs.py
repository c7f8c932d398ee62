"""Every shipped building block is read against the real signatures; importing the package stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

from specexp.data import PromptSet, Workload

CONFIGS = Path(__file__).parents[2] / "configs" / "data"


def parser() -> ArgumentParser:
    made = ArgumentParser(exit_on_error=False)
    made.add_argument("--config", action="config")
    made.add_class_arguments(Workload, "data")
    return made


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_building_block(path: Path):
    made = parser()
    workload = made.instantiate(made.parse_args(["--config", str(path)])).data
    assert isinstance(workload, Workload)
    # `open_web_text.yaml` holds an `OpenWebText`.
    assert type(workload.prompts).__name__.lower() in (path.stem.replace("_", ""), "stdlibfunctions")


def test_every_prompt_set_has_a_building_block():
    import specexp.data

    shipped = {
        name
        for name in specexp.data.__all__
        if isinstance(part := getattr(specexp.data, name), type) and issubclass(part, PromptSet)
    }
    named = {line.split(".")[-1] for path in CONFIGS.glob("*.yaml") for line in path.read_text().splitlines()
             if "class_path" in line}  # fmt: skip
    assert shipped - named == {
        "PromptSet",
        "RawText",
        "TaskItems",
    }  # the contract, the one that needs a file of the user's, and the one in configs/seed/items.yaml


def test_short_names_resolve():
    made = parser()
    config = made.parse_args(["--data.prompts=GSM8K", "--data.prompts.path=test.jsonl"])
    assert made.instantiate(config).data.prompts.path == "test.jsonl"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--data.max_prompts=0"],
        ["--data.offset=-1"],
        ["--data.shuffle_seed=-1"],
        ["--data.max_prompt_tokens=0"],
        ["--data.too_long=drop"],
        ["--data.prompts=C4", "--data.prompts.items=0"],
        ["--data.prompts=OpenWebText", "--data.prompts.prompt_tokens=0"],
        ["--data.prompts=CNNDailyMail", "--data.prompts.items=0"],
        ["--data.prompts=RawText", "--data.prompts.path=a.txt", "--data.prompts.items=0"],
        ["--data.prompts=StdlibFunctions", "--data.prompts.split=dev"],
    ],
    ids=lambda arguments: arguments[-1].removeprefix("--data."),
)
def test_bounds_are_those_of_the_signature(arguments: list[str]):
    with pytest.raises(Exception, match=arguments[-1].split("=")[0].split(".")[-1]):
        parser().parse_args(["--data.prompts=GSM8K", *arguments])


def test_importing_the_package_imports_nothing_heavy():
    heavy = {"lightning", "datasets", "torch", "transformers"}
    code = f"import sys, specexp.data; print({heavy} & set(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == "set()"
