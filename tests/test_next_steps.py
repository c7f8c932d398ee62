"""The line that a command prints last can be typed: it is typed here, or read as its program reads it."""

import json
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers.golden import command
from helpers.small_study import DEAR, FREE, study, write

from specexp.artifacts.validation import validated
from specexp.config import load_config
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.config.layers import parse_overrides
from specexp.config.next_step import Invocation, experiment_again, init_options, model_options, python_arguments
from specexp.config.schema import Pair
from specexp.deploy.export.export_format import all_formats
from specexp.engines.settings import LlamaCppSettings, SglangSettings, TrtllmSettings, VllmSettings

TREE = {"tree.json": [[0], [1], [0, 0]], "parts.json": {"drafter": {"class_path": "TokenRecycling"}}}
LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 3}}
SHORT = {"max_tokens": 4, "prefixes": [8], "repeats": 2, "prompts": 1, "max_new_tokens": 8}
# what makes a proof short
PROOF = ["--verify.toy_tokens", "900", "--verify.samples", "20", "--verify.first_tokens", "2"]
PROOF += ["--verify.total_variation", "0.5", "--data.max_prompts", "1", "--verify.workers", "1"]
# typed with ``--dry-run``: everything but decoding is done
DRY = ("run", "sweep", "verify", "profile", "record", "fit", "why", "what_if")


def done(name, *arguments, code=0):
    """Run a command; returns its ``Next:`` line, or None."""
    answer = command(name, *arguments)
    assert answer.code == code, answer
    found = [line for line in (answer.out + answer.err).splitlines() if line.startswith("Next: ")]
    assert len(found) <= 1
    return found[0].removeprefix("Next: ") if found else None


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return tmp_path


@pytest.fixture
def typed(here, monkeypatch):
    """Type a line as a shell would take it: every command of it must succeed; returns their names."""

    def type_line(line):
        names = []
        for step in line.split(" && "):
            words = shlex.split(step, comments=True)
            if words[0] == "cd":
                monkeypatch.chdir(words[1])
                continue
            python, m, module, *arguments = words
            assert (python, m) == ("python", "-m")
            names.append(name := module.removeprefix("specexp."))
            if name in DRY and "--dry-run" not in arguments:
                arguments.append("--dry-run")
            if name == "doctor":  # it measures passes for seconds
                monkeypatch.setattr("specexp.commands.doctor.CHECKS", ())
            if name == "serve":  # everything up to the first request
                monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
                arguments[arguments.index("--port") + 1] = "0"
            assert command(name, *arguments).code == 0, line
        return names

    return type_line


@pytest.mark.slow
def test_nothing_is_served_if_nothing_is_faster(here, study_model):
    assert done("sweep", write(study(study_model, DEAR))).startswith("python -m specexp.doctor")
    assert not Path("artifacts/small/best.json").exists()


@pytest.mark.slow
def test_a_faster_winner_can_be_proved_and_served(typed, monkeypatch, study_model):
    from specexp.sweep import conclusion

    pages, publish = [], conclusion.publish
    keep = lambda report, *rest, **more: pages.append(report) or publish(report, *rest, **more)  # noqa: E731
    monkeypatch.setattr(conclusion, "publish", keep)
    content = study(study_model, FREE)
    model = content["pair"].pop("target")  # an option of the command is an option of the next one
    line = done("sweep", write(content), "--pair.target", model, "--n-trials", "1")
    assert load_artifact("artifacts/small/best").kind == "static-tree"
    assert "--artifact artifacts/small/best" in line
    assert typed(line) == ["verify"]
    (steps,) = (report.next_steps for report in pages)
    assert steps["prove that its output is unchanged"] == line
    assert typed(steps["serve it"]) == ["serve"]
    exec(f"import specexp; {steps['use it in Python']}", {})
    assert steps["carry it to an engine"].startswith("python -m specexp.verify artifacts/small/best --for vllm")


@pytest.mark.slow
def test_no_proof_is_proposed_if_nothing_was_exported(here, study_model):
    content = study(study_model, FREE)
    content["sweep"]["export"]["kind"] = "q-table"
    assert done("sweep", write(content)) is None


@pytest.mark.variants(1)
@pytest.mark.parametrize(
    ("artifact", "drafter", "code", "follows", "holds"),
    [
        (True, "TokenRecycling", 0, "serve", " --draft "),
        (False, "TokenRecycling", 0, "run", "--verifier Greedy"),
        (False, "verify.test_verify.Failing", 1, "doctor", ""),
    ],
    ids=["an artifact is served", "a file is run", "a mistake is reported"],
)
def test_what_follows_a_proof(experiment, typed, artifact, drafter, code, follows, holds):
    folder = save_artifact("found", "static-tree", TREE).folder
    options = [f"--artifact={folder}"] if artifact else []
    line = done("verify", experiment(drafter=drafter), *options, "--verifier", "Greedy", *PROOF, code=code)
    assert typed(line) == [follows]
    assert holds in line


@pytest.mark.slow
def test_an_artifact_of_a_study_is_run_under_another_name(here, experiment, typed):
    space = {"builder.init_args.length": {"type": "int", "low": 1, "high": 2}}
    file = experiment(builder={"class_path": "Chain"}, sweep={"space": space, "n_trials": 1, "confirm": None})
    config = load_config(file)
    results = Path(config.output, config.name)
    results.mkdir(parents=True)
    for name in ("journal.log", "report.html"):
        (results / name).touch()
    folder = save_artifact("found", "static-tree", TREE, aliases=["best-tree"]).folder
    line = done("verify", file, "--artifact", folder, "--verifier", "Greedy", *PROOF)
    assert typed(line) == ["run"]


@pytest.mark.slow
def test_a_drafter_of_another_package_is_proved_and_served_by_trusting_it(here, experiment, typed, monkeypatch):
    site = here / "site"
    site.mkdir()
    source = "from specexp.drafters import TokenRecycling\nclass Foreign(TokenRecycling):\n    pass\n"
    (site / "foreign_parts.py").write_text(source)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr("specexp.artifacts.trust.site_folders", lambda: [site])
    monkeypatch.delitem(sys.modules, "foreign_parts", raising=False)
    import foreign_parts  # noqa: F401  (the writer of an artifact has imported its parts, as a study has)

    payloads = {**TREE, "parts.json": {"drafter": {"class_path": "foreign_parts.Foreign"}}}
    arguments = [experiment(verifier="Greedy"), "--artifact", save_artifact("own", "static-tree", payloads).folder]
    refused = command("verify", *arguments, "--dry-run")
    assert refused.code == 2
    assert "or --trust foreign_parts" in refused.err
    line = done("verify", *arguments, *PROOF, "--trust", "foreign_parts")
    assert "--trust foreign_parts" in line
    assert typed(line) == ["serve"]
    done("run", *arguments, "--trust", "[foreign_parts]", "--dry-run")


def test_only_the_packages_of_the_winner_are_trusted():
    from specexp.config.next_step import artifact_again, trust_options
    from specexp.sweep.output import packages_of

    own = {"drafter": {"class_path": "left_out.Drafter"}, "verifier": {"class_path": "Greedy"}}
    resolved = {"drafter": {"class_path": "winning.Drafter"}, "execution": {"class_path": "Serial"}}
    assert packages_of(own, {"resolved": resolved}) == ["winning"]
    assert trust_options(["winning"]) == ["--trust", "winning"]
    assert artifact_again("a/best", ["winning"]) == {"artifact": "a/best", "trust": "winning"}
    assert artifact_again("a/best", []) == {"artifact": "a/best"}


def test_a_server_gets_the_mode_of_the_study_and_init_does_not():
    pair = Pair(target="m", device="cuda", mode="packed")
    assert model_options(pair) == ["--target", "m", "--device", "cuda", "--mode", "packed"]
    assert init_options(pair) == ["--target", "m", "--device", "cuda"]


def test_verify_refuses_an_artifact_of_another_model_as_the_server_does(here, experiment, study_model):
    import specexp
    from specexp.artifacts import fingerprint

    pair = specexp.load_pair(str(study_model), target_dtype="float32")
    made_for = fingerprint(pair.target, pair.tokenizer)
    folder = save_artifact("found", "static-tree", TREE, fingerprint=made_for).folder
    model = load_config(experiment()).get("pair.target")
    refused = command("serve", folder, "--target", model, "--port", "0")
    why = f" must be the artifact's model, got {model!r}: {folder}: fingerprint.model."
    assert f"error: --target{why}" in refused.err
    file = experiment(verifier="Greedy")
    for dry in ([], ["--dry-run"]):
        answer = command("verify", file, "--artifact", folder, *dry)
        assert answer.code == refused.code
        assert answer.err.replace(f"{file}: pair.target", "--target") == refused.err


@pytest.mark.slow
def test_a_run_of_an_artifact_that_cannot_tell_is_followed_by_more_prompts(experiment, typed):
    folder = save_artifact("found", "static-tree", TREE).folder
    options = ["--verifier", "Greedy", "--baselines", "[plain]", "--data.max_prompts", "1"]
    line = done("run", experiment(), *options, "--artifact", folder)
    assert f"--artifact {folder}" in line
    assert typed(line) == ["run"]


def test_more_prompts_are_proposed_only_if_they_would_tell(experiment):
    from specexp.config.next_step import more_prompts

    more = partial(more_prompts, load_config(experiment()).invocation, "run", "data.max_prompts")
    assert more(None, exhausted=False) == {}
    assert more(20, exhausted=True) == {"measure more prompts": "add prompts to the set: all of it is used"}
    (line,) = more(20, exhausted=False).values()
    assert line.endswith("--data.max_prompts 20")


@pytest.mark.slow
def test_a_recording_is_profiled_and_then_replayed(experiment, typed):
    sections = {"profile": {**SHORT, "to": "costs"}, "record": {"to": "answers", "live_sample": 0}}
    path = experiment(**sections, verifier="Greedy", baselines=["plain"])
    few = [path, "--data.max_prompts", "2"]
    assert typed(done("profile", path)) == ["run"]  # with the seconds of this device and the models
    assert typed(done("record", *few)) == ["profile"]
    line = done("profile", *few)
    assert "--backend replay --recording answers" in line
    assert typed(line) == ["run"]
    assert typed(done("record", *few, "--latency.artifact", "costs/best")) == ["run"]


@pytest.mark.slow
def test_a_controller_that_was_fitted_is_run(experiment, typed):
    path = experiment(
        controller={"class_path": "QLearning", "init_args": {"warm_up": 2, "draft_cost": 0.1}},
        drafter="DraftModel",
        verifier="Greedy",
        trainer={"logger": False, "enable_progress_bar": False},
        fit={"export": {"to": "exported"}},
    )
    assert typed(done("fit", path, "--data.max_prompts", "1")) == ["run"]


@pytest.mark.slow
def test_a_new_folder_is_tried_by_a_dry_run(typed):
    assert typed(done("init", "a b/ü x")) == ["sweep"]


# --- Exports: programs that are not here are played by ones that print their arguments -------------------------------


@pytest.fixture
def shell(here):
    """Type a line in a shell; returns the arguments of its program."""
    programs = here / "programs"
    for module in ("sglang", "vllm/entrypoints/openai"):
        (programs / module).mkdir(parents=True)
    source = "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    modules = ("sglang/launch_server.py", "vllm/entrypoints/openai/api_server.py")
    for name in ("trtllm-serve", "llama-server", "transformers", "served", *modules):
        (programs / name).write_text(source)
        (programs / name).chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(programs)}

    def type_line(line):
        shown = subprocess.run(line, shell=True, check=True, capture_output=True, text=True, env=environment)
        return json.loads(shown.stdout)

    return type_line


def exported(to, drafter=LOOKUP, *options):
    """The line that deploys a tree in an engine's format."""
    payloads = {**TREE, "parts.json": {"drafter": drafter}}
    folder = save_artifact("tuned", "static-tree", payloads).folder
    return done("export", folder, "--to", to, "--output", "a file", *options)


def speculation(to, words):
    """The speculation settings in the last words of a command, as the engine reads them."""
    if to == "vllm":
        return json.loads(words[0])
    if to == "sglang":
        names = [flag.removeprefix("--speculative-").replace("-", "_") for flag in words[::2]]
        return dict(zip(names, map(yaml.safe_load, words[1::2]), strict=True))
    text = Path(words[0]).read_text()
    if to == "trtllm":
        return yaml.safe_load(text)["speculative_config"]
    lines = [line.partition(" = ") for line in text.splitlines() if "spec-" in line]
    return {name.replace("-", "_"): yaml.safe_load(value) for name, _, value in lines}


@pytest.mark.parametrize(
    ("to", "words", "settings", "field", "value"),
    [
        ("vllm", "--model MODEL --speculative-config", VllmSettings, "method", "custom_class"),
        ("sglang", "--model-path MODEL", SglangSettings, "algorithm", "NGRAM"),
        ("trtllm", "MODEL --config", TrtllmSettings, "decoding_type", "NGram"),
        ("llama-cpp", "--models-dir FOLDER --models-preset", LlamaCppSettings, "spec_type", "ngram-map-k"),
    ],
)
def test_an_engine_reads_its_settings(shell, to, words, settings, field, value):
    words, given = words.split(), shell(exported(to))
    assert given[: len(words)] == words
    assert getattr(validated(settings, speculation(to, given[len(words) :]), "typed"), field) == value


def python_of(line):
    assert line.startswith("python -c '")
    assert line.endswith("'")
    return line.removeprefix("python -c '").removesuffix("'")


def test_hugging_face_decodes_with_the_config(here, model_folder):
    exec(python_of(exported("hf-generation-config").replace("32", "3").replace("MODEL", model_folder)), {})
    assert 'assistant_model="DRAFT"' in exported("hf-generation-config", {"class_path": "DraftModel"})


@pytest.mark.parametrize(
    ("drafter", "argument"),
    [
        (LOOKUP, "prompt_lookup=True"),
        ({"class_path": "DraftModel"}, 'draft_model=genai.draft_model("DRAFT", "CPU")'),
    ],
)
def test_openvino_gets_the_drafter_as_the_pipeline_is_made(here, drafter, argument):
    code = python_of(exported("openvino", drafter))
    compile(code, "typed", "exec")
    assert argument in code


def test_a_measured_command_is_typed_with_its_port_and_model(shell):
    template = "served {target} --port {port} --speculative-config '{{\"a\": {tokens}}}'"
    settings = {"engine": "endpoint", "version": "1", "settings": {"command": template, "tokens": 4}}
    folder = save_artifact("measured", "engine-settings", {"settings.json": settings}).folder
    line = done("export", folder, "--to", "endpoint", "--output", "start.sh")
    assert shell(line) == ["MODEL", "--port", "8000", "--speculative-config", '{"a": 4}']


@pytest.mark.parametrize("to", ["vllm", "sglang", "trtllm", "llama-cpp"])
def test_the_page_has_the_same_lines(to):
    line = all_formats()[to].deployment.format(file="FILE")
    page = Path(__file__).parents[1] / "docs" / "deploy.md"
    assert f"| `{to}` | `{line}` |" in page.read_text()


@pytest.mark.parametrize(
    "text", ["[draft] which tree?", "@home", "%x", "1e-3", "a: b", "null", "", "x # y", "two words"]
)
def test_a_typed_text_is_read_back_unchanged(text):
    given = Invocation("mine.yaml", [("question", text)], "", Pair(), [], "run")
    file, *words = experiment_again(given)
    assert parse_overrides(words) == [("question", text)]
    assert file == "mine.yaml"


def test_python_loads_the_models_as_measured():
    pair = Pair(target="org/model", target_dtype="float32", device="cuda:1")
    assert python_arguments(pair) == "'org/model', target_dtype='float32', device='cuda:1'"
    assert python_arguments(Pair(target="smollm2")) == "'smollm2'"
