"""``specexp.init`` writes a folder with an experiment for a user's own model and prompts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from specexp.commands.init import main
from specexp.config import load_config
from specexp.config.load import with_recognized_fields

ROOT = Path(__file__).parents[3]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_experiment_has_the_space_of_fastest_for_the_users_model_and_prompts(here):
    (here / "mine.jsonl").write_text("".join(json.dumps({"question": f"why {n}?"}) + "\n" for n in range(50)))
    models = ["--target", "owner/target", "--draft", "owner/draft", "--device", "cuda"]
    arguments = ["study", *models, "--temperature", "0.7"]
    assert main([*arguments, "--prompts", "mine.jsonl"]) == 0
    os.chdir("study")
    config, shown = with_recognized_fields(load_config("experiment.yaml"))
    assert shown == [f"{here / 'mine.jsonl'}: prompts are read from 'question'."]
    shared = yaml.safe_load((ROOT / "sweeps" / "methods.yaml").read_text())["sweep"]
    heads = {"builder.init_args.budget"}  # only the embedded target has heads
    assert list(config.get("sweep.space")) == [key for key in shared["space"] if key not in heads]
    methods = [one["name"] for one in config.get("sweep.space.method.choices")]
    every = [one["name"] for one in shared["space"]["method"]["choices"]]
    assert methods == [name for name in every if name not in ("Medusa", "EAGLE")]
    found = [config.get(f"pair.{key}") for key in ("target", "draft", "device")]
    assert found == ["owner/target", "owner/draft", "cuda"]
    assert config.get("verifier.init_args.temperature") == 0.7
    assert config.get("data.max_prompts") == 16
    assert config.get("sweep.confirm.data.max_prompts") == 24
    assert config.get("sweep.export.to") == "artifacts/study"
    # Hugging Face's loop may take longer than all candidates together
    assert config.get("baselines") == ["plain"]


def test_the_field_of_the_prompts_can_be_named(here, capsys):
    (here / "tickets.csv").write_text("id,ticket\n" + "".join(f"{n},please help with {n}\n" for n in range(9)))
    assert main(["study", "--prompts", "tickets.csv"]) == 2
    assert "set, for example, --field ticket" in capsys.readouterr().err
    assert main(["study", "--prompts", "tickets.csv", "--field", "ticket"]) == 0
    assert load_config(here / "study" / "experiment.yaml").get("data.field") == "ticket"


def test_a_hub_model_that_this_machine_cannot_reach_is_only_warned_of(here, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["study", "--target", "no-such/model"]) == 0
    assert "warning: --target: target 'no-such/model' is neither a local folder" in capsys.readouterr().err


def test_a_device_that_this_machine_lacks_is_only_warned_of(here, capsys):
    assert main(["study", "--target", "owner/target", "--device", "cuda:77"]) == 0
    assert "warning: --device: device 'cuda:77' cannot be used here" in capsys.readouterr().err


def test_prompts_are_checked_before_models(here, capsys):
    assert main(["study", "--target", "./nowhere", "--prompts", "nope.csv"]) == 2
    assert "--prompts: nope.csv: no such file" in capsys.readouterr().err


def test_without_prompts_there_are_examples(here):
    assert main(["study"]) == 0
    lines = (here / "study" / "prompts.jsonl").read_text().splitlines()
    assert len(lines) == 50
    assert all(json.loads(line)["prompt"] for line in lines)
    assert "python -m specexp.sweep experiment.yaml" in (here / "study" / "README.md").read_text()


def test_few_prompts_are_halved_between_search_and_confirmation(here):
    (here / "few.txt").write_text("\n".join(f"prompt {n}" for n in range(9)))
    assert main(["study", "--prompts", "few.txt"]) == 0
    config = load_config(here / "study" / "experiment.yaml")
    assert config.get("data.max_prompts") + config.get("sweep.confirm.data.max_prompts") == 9


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["taken"], "FOLDER must be new or an empty folder, got taken"),
        (["study", "--target", "no/such/folder"], "--target: target 'no/such/folder' does not exist"),
        (["study", "--draft", "empty"], "--draft: draft 'empty' is a folder without config.json"),
        (["study", "--target", "stdlib", "--draft", "empty"], "--draft: draft 'empty' is a folder without config.json"),
        (["study", "--prompts", "none.jsonl"], "--prompts: "),
        (["study", "--prompts", "two.txt"], "--prompts: two.txt must have at least 6 prompts"),
        (["/proc/study"], "FOLDER: /proc/study cannot be written"),
        (["x: y"], "FOLDER must be a plain folder name such as tree_shape, got 'x: y'"),
        (["study", "--device", "tpu"], "--device must be a torch device such as cpu or cuda:1, got 'tpu'"),
        (["study", "--temperature", "-1"], "--temperature must be from 0 (greedy) to 10, got -1.0"),
        (
            ["study", "--for", "vllm", "--temperature", "1"],
            "--temperature must be 0 with --for vllm, since its answers",
        ),
        (["study", "--for", "llama-cpp"], "--target must be a GGUF file with --for llama-cpp, got 'stdlib'"),
        (
            ["study", "--for", "llama-cpp", "--target", "smollm2", "--draft", "smollm2"],
            "--draft must be a GGUF file with --for llama-cpp, got 'smollm2'",
        ),
    ],
)
def test_a_mistake_is_answered_in_one_sentence_and_leaves_nothing(here, capsys, arguments, shown):
    (here / "taken").mkdir()
    (here / "taken" / "file").touch()
    (here / "empty").mkdir()
    (here / "two.txt").write_text("one\ntwo\n")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert shown in error
    assert error.count("\n") == 1
    assert not (here / "study").exists()


def test_an_embedded_draft_is_found_by_its_name_and_must_have_the_targets_vocabulary(here, capsys):
    assert main(["pair", "--target", "stdlib", "--draft", "stdlib-small"]) == 0
    assert main(["study", "--target", "smollm2", "--draft", "stdlib-small"]) == 2
    assert "error: --draft: " in capsys.readouterr().err
    assert not (here / "study").exists()


def test_the_next_line_and_the_commands_of_the_readme_are_quoted_for_a_shell(here, capsys):
    assert main(["a b/ü x"]) == 0
    assert capsys.readouterr().out.endswith("Next: cd 'a b/ü x' && python -m specexp.sweep experiment.yaml --dry-run\n")
    readme = (here / "a b" / "ü x" / "README.md").read_text()
    assert "\ncd 'a b/ü x'\n" in readme
    assert "--artifact 'artifacts/ü x'/best-tree" in readme


def test_a_model_folder_is_found_from_the_new_folder(here, model_folder):
    (here / "my-model").symlink_to(model_folder)
    assert main(["study", "--target", "my-model"]) == 0
    target = yaml.safe_load((here / "study" / "experiment.yaml").read_text())["pair"]["target"]
    assert Path(target).samefile(model_folder)


def test_five_lines_say_what_was_decided(here, capsys, model_folder):
    settings = Path(model_folder) / "config.json"
    (here / "my.jsonl").write_text("".join(json.dumps({"prompt": f"why {n}?"}) + "\n" for n in range(9)))
    assert main(["study", "--target", str(model_folder), "--prompts", "my.jsonl"]) == 0
    out = capsys.readouterr().out
    dtype = json.loads(settings.read_text()).get("dtype")
    for line in (
        f"dtype: {dtype} (as in the target's config.json; --dtype changes it)",
        "chat template: none, so prompts are continued as text",
        "prompts: 4 for the search and 5 others for the confirmation, of 9",
        "time: about 10 minutes (sweep.minutes), 128 new tokens a prompt",
        "methods: 7 of 18; left out for want of a draft model or heads: Medusa, EAGLE, draft chain,",
    ):
        assert f"\n{line}" in out, line
    config = load_config(here / "study" / "experiment.yaml")
    assert "DraftModel" not in str(config.get("sweep"))
    assert config.get("pair.target_dtype") == dtype
    assert not (here / "study" / "schema.json").exists()


def test_template_arguments_and_unusable_rows_reach_the_experiment(here, capsys):
    (here / "my.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in ["", *"abcdefg"]))
    given = ["study", "--target", "owner/name", "--prompts", "my.jsonl"]
    assert main(given) == 2
    assert capsys.readouterr().err.endswith("or leave such rows out with --unusable skip\n")
    assert main([*given, "--unusable", "skip", "--template-arguments", "{enable_thinking: false}"]) == 0
    config = load_config(here / "study" / "experiment.yaml")
    assert config.get("data.chat_template_kwargs") == {"enable_thinking": False}
    assert config.get("data.unusable") == "skip"


@pytest.mark.parametrize(
    ("engine", "models", "kept", "settings"),
    [
        ("vllm", ["owner/target"], ["n-grams", "suffixes"], 4),
        ("vllm", ["owner/target", "--draft", "owner/draft"], ["n-grams", "suffixes", "draft model"], 4),
        ("vllm", ["smollm2"], ["n-grams", "suffixes", "our drafter"], 4),
        ("llama-cpp", ["smollm2.gguf"], ["n-grams", "n-grams in a map"], 4),
        ("openvino", ["owner/target"], ["lookup"], 2),
        ("openvino", ["stdlib"], ["lookup", "draft model"], 2),
    ],
)
def test_for_an_engine_the_study_searches_the_settings_that_the_models_allow(
    here, capsys, engine, models, kept, settings
):
    assert main(["study", "--for", engine, "--target", *models]) == 0
    assert f"\nsettings: {len(kept)} of " in capsys.readouterr().out
    config = load_config(here / "study" / "experiment.yaml")
    choices = config.get("sweep.space.engine.choices")
    assert [one["name"] for one in choices] == kept
    assert {one["class_path"] for one in choices} == {config.get("engine.class_path")}
    assert len(config.get("sweep.space")) == 1 + settings
    assert config.get("sweep.export.kind") == "engine-settings"
    if "--draft" in models:
        assert choices[-1]["init_args"]["settings"]["model"] == "owner/draft"
    assert f"python -m specexp.export artifacts/study/best --to {engine}" in (here / "study" / "README.md").read_text()


def test_vllms_interpreter_is_found_from_the_new_folder(here, capsys):
    assert main(["without", "--for", "vllm", "--target", "owner/target"]) == 0
    assert "python: not found: set engine.init_args.python" in capsys.readouterr().out
    (here / ".vllm" / "bin").mkdir(parents=True)
    (here / ".vllm" / "bin" / "python").touch()
    assert main(["with", "--for", "vllm", "--target", "owner/target"]) == 0
    config = load_config(here / "with" / "experiment.yaml")
    python = str(here / ".vllm" / "bin" / "python")
    assert config.get("engine.init_args.python") == python
    assert f"--for vllm --engine.init_args.python {python}  #" in (here / "with" / "README.md").read_text()


def test_for_an_engine_that_specexp_does_not_start_the_methods_are_those_that_it_has(here, capsys):
    assert main(["study", "--for", "sglang"]) == 0
    assert "; left out since sglang has none of them: " in capsys.readouterr().out
    assert "ParametricTree" not in (here / "study" / "methods.yaml").read_text()


@pytest.mark.parametrize(("target", "most"), [("stdlib", 3), ("stdlib-small", 1)])
def test_early_exits_are_searched_up_to_one_layer_less_than_the_target_has(here, target, most):
    assert main(["study", "--target", target]) == 0
    space = yaml.safe_load(Path("study/methods.yaml").read_text())["sweep"]["space"]
    assert space["drafter.init_args.layers"]["high"] == most
