"""The line that a command prints last can be typed: it is typed here, or read as its program reads it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.commands import main_of
from sweep.test_deployed import DEAR, FREE, study
from sweep.test_sweep import target, write  # noqa: F401

from specexp.artifacts.validation import validated
from specexp.commands.init import main as init
from specexp.commands.run import main as run
from specexp.config import load_config
from specexp.config.artifacts import load_artifact, save_artifact
from specexp.deploy.export.command import main as export
from specexp.deploy.export.export_format import all_formats
from specexp.engines.settings import LlamaCppSettings, Settings, SglangSettings, TrtllmSettings, VllmSettings
from specexp.fit.command import main as fit
from specexp.profile.command import main as profile
from specexp.replay.record.command import main as record
from specexp.sweep.command import main as sweep
from specexp.verify.command import main as verify

Write = Callable[..., str]
LeadsTo = Callable[[str], str]
Capture = pytest.CaptureFixture[str]
TREE = {"tree.json": [[0], [1], [0, 0]], "parts.json": {"drafter": {"class_path": "TokenRecycling"}}}
LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 3}}
SHORT = {"max_tokens": 4, "prefixes": [8], "repeats": 2, "prompts": 1, "max_new_tokens": 8}
PROOF = ["--verify.toy_tokens", "900", "--verify.samples", "20", "--verify.first_tokens", "2"]
PROOF += ["--verify.total_variation", "0.5", "--data.max_prompts", "1", "--verify.workers", "1"]
"""What makes a proof short."""
DRY = ("run", "sweep", "verify", "profile", "record", "fit", "why", "what_if")
"""Commands that are typed with ``--dry-run``: everything but decoding is done."""


def next_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The line after ``Next:`` of what was printed since the last look."""
    shown = capsys.readouterr()
    (found,) = (
        line.removeprefix("Next: ")
        for line in (shown.out + shown.err).splitlines()
        if line.startswith("Next: ")
    )
    return found


def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Type a line as a shell would take it; every command of it must succeed.

    Returns:
        The commands, e.g. ``["verify"]``.
    """
    ran = []
    for step in line.split(" && "):
        words = shlex.split(step, comments=True)
        if words[0] == "cd":
            monkeypatch.chdir(words[1])
            continue
        python, m, module, *arguments = words
        assert (python, m) == ("python", "-m")
        command = module.removeprefix("specexp.")
        ran.append(command)
        if command in DRY and "--dry-run" not in arguments:
            arguments.append("--dry-run")
        if command == "doctor":  # it measures passes for seconds
            monkeypatch.setattr("specexp.commands.doctor.checks", list)
        if command == "serve":  # everything up to the first request
            monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
            arguments[arguments.index("--port") + 1] = "0"
        assert main_of(module)(arguments) == 0, line
    return ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    return tmp_path


@pytest.fixture
def leads_to(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Type the line that was printed last, which must be of this command; the line."""

    def type_next(command: str) -> str:
        line = next_line(capsys)
        assert typed(line, monkeypatch) == [command]
        capsys.readouterr()
        return line

    return type_next


class TestSweep:
    @pytest.fixture(autouse=True)
    def _no_plots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("specexp.sweep.pictures.save_plots", lambda *study: [])

    @pytest.mark.parametrize(("latency", "kind"), [(DEAR, "plain-decoding"), (FREE, "static-tree")])
    def test_whatever_wins_its_tree_can_be_proved_and_the_winner_served(
        self,
        here: Path,
        target: Path,  # noqa: F811
        capsys: Capture,
        monkeypatch: pytest.MonkeyPatch,
        latency: dict[str, Any],
        kind: str,
    ) -> None:
        from specexp.sweep import conclusion

        pages = []
        publish = conclusion.publish
        monkeypatch.setattr(
            conclusion,
            "publish",
            lambda report, *rest, **more: pages.append(report) or publish(report, *rest, **more),
        )
        content = study(target, latency)
        named = content["pair"].pop("target")  # what was typed belongs into what is to be typed
        assert sweep([write(content), "--pair.target", named, "--n-trials", "1"]) == 0
        assert load_artifact("artifacts/small/best").kind == kind
        line = next_line(capsys)
        assert "--artifact artifacts/small/best-tree" in line
        assert typed(line, monkeypatch) == ["verify"]
        (steps,) = (report.next_steps for report in pages)
        assert steps["prove that its output is unchanged"] == line
        assert typed(steps["serve it"], monkeypatch) == ["serve"]
        exec(f"import specexp; {steps['use it in Python']}", {})
        with pytest.raises(SystemExit, match="0"):
            typed(steps["carry it to another engine"], monkeypatch)

    def test_nothing_to_prove_is_printed_where_nothing_was_exported(
        self,
        here: Path,
        target: Path,  # noqa: F811
        capsys: Capture,
    ) -> None:
        content = study(target, FREE)
        content["sweep"]["export"]["kind"] = "q-table"
        assert sweep([write(content)]) == 0
        assert "Next:" not in capsys.readouterr().out


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of one's own with a drafter, where packages are installed."""
    site = folder / "site"
    site.mkdir()
    (site / "foreign_parts.py").write_text(
        "from specexp.drafters import TokenRecycling\nclass Foreign(TokenRecycling):\n    pass\n"
    )
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr("specexp.artifacts.trust.site_folders", lambda: [site])
    monkeypatch.delitem(sys.modules, "foreign_parts", raising=False)


class TestVerify:
    @pytest.mark.parametrize(
        ("found", "sections", "code", "command", "holds"),
        [
            (True, {}, 0, "serve", " --draft "),
            (False, {}, 0, "run", "--verifier Greedy"),
            (False, {"drafter": {"class_path": "verify.test_verify.Failing"}}, 1, "doctor", ""),
        ],
        ids=["an artifact is served", "a file is run", "a mistake is reported"],
    )
    def test_what_follows_a_proof(
        self,
        experiment: Write,
        leads_to: LeadsTo,
        found: bool,
        sections: dict[str, Any],
        code: int,
        command: str,
        holds: str,
    ) -> None:
        folder = save_artifact("found", "static-tree", TREE).folder
        artifact = [f"--artifact={folder}"] if found else []
        assert verify([experiment(**sections), *artifact, "--verifier", "Greedy", *PROOF]) == code
        assert holds in leads_to(command)

    def test_a_drafter_of_ones_own_is_proved_and_served_by_trusting_its_package(
        self,
        here: Path,
        experiment: Write,
        capsys: Capture,
        monkeypatch: pytest.MonkeyPatch,
        leads_to: LeadsTo,
    ) -> None:
        installed(here, monkeypatch)
        parts = {**TREE["parts.json"], "drafter": {"class_path": "foreign_parts.Foreign"}}
        folder = save_with(parts)
        asked = [experiment(verifier="Greedy"), "--artifact", folder]
        assert verify([*asked, "--dry-run"]) == 2
        assert "or --trust foreign_parts" in capsys.readouterr().err
        assert verify([*asked, *PROOF, "--trust", "foreign_parts"]) == 0
        assert "--trust foreign_parts" in leads_to("serve")
        assert run([*asked, "--trust", "[foreign_parts]", "--dry-run"]) == 0

    def test_a_sweep_over_a_drafter_of_ones_own_names_its_package(self, experiment: Write) -> None:
        from specexp.config.next_step import artifact_again, trust_options

        space = {
            "drafter": {
                "type": "categorical",
                "choices": [{"name": "a", "class_path": "verify.test_verify.Failing"}],
            }
        }
        path = experiment(sweep={"space": space, "n_trials": 1, "confirm": None})
        assert trust_options(load_config(path)) == ["--trust", "verify"]
        assert artifact_again(load_config(path), "a/best") == {"artifact": "a/best", "trust": "verify"}
        assert trust_options(load_config(experiment())) == []

    def test_an_artifact_of_another_model_is_refused_with_the_sentence_of_the_server(
        self,
        here: Path,
        experiment: Write,
        target: Path,  # noqa: F811
        capsys: Capture,
    ) -> None:
        import specexp
        from specexp.artifacts import fingerprint
        from specexp.deploy.server.command import main as serve

        pair = specexp.load_pair(str(target), target_dtype="float32")
        print_of = fingerprint(pair.target, pair.tokenizer)
        folder = save_artifact("found", "static-tree", TREE, fingerprint=print_of).folder
        model = load_config(experiment()).get("pair.target")
        assert serve([str(folder), "--target", model, "--port", "0"]) == 2
        said = capsys.readouterr().err
        assert "the artifact belongs to another model" in said
        for dry in ([], ["--dry-run"]):
            assert verify([experiment(verifier="Greedy"), "--artifact", str(folder), *dry]) == 2
            assert capsys.readouterr().err == said


def save_with(parts: dict[str, Any]) -> str:
    """An artifact of these parts; its writer has imported them, as a study has."""
    import foreign_parts  # noqa: F401

    return str(save_artifact("own", "static-tree", {**TREE, "parts.json": parts}).folder)


def test_of_a_run_it_is_the_proof_of_what_was_run(experiment: Write, leads_to: LeadsTo) -> None:
    folder = save_artifact("found", "static-tree", TREE).folder
    greedy = ["--verifier", "Greedy", "--baselines", "[engine]"]
    assert run([experiment(), *greedy, "--artifact", str(folder), "--data.max_prompts", "1"]) == 0
    assert f"--artifact {folder}" in leads_to("verify")


def test_a_recording_is_profiled_and_then_replayed(experiment: Write, leads_to: LeadsTo) -> None:
    sections = {"profile": {**SHORT, "to": "costs"}, "record": {"to": "answers", "live_sample": 0}}
    path = experiment(**sections, verifier="Greedy", baselines=["engine"])
    few = [path, "--data.max_prompts", "2"]
    assert profile([path]) == 0
    leads_to("run")  # in the seconds of this device, with the models
    assert record(few) == 0
    leads_to("profile")
    assert profile(few) == 0
    assert "--backend replay --recording answers" in leads_to("run")
    assert record([*few, "--latency.artifact", "costs/best"]) == 0
    leads_to("run")


def test_a_controller_that_was_fitted_is_run(experiment: Write, leads_to: LeadsTo) -> None:
    path = experiment(
        controller={"class_path": "QLearning", "init_args": {"warm_up": 2, "draft_cost": 0.1}},
        drafter="DraftModel",
        verifier="Greedy",
        trainer={"logger": False, "enable_progress_bar": False},
        fit={"export": {"to": "exported"}},
    )
    assert fit([path, "--data.max_prompts", "1"]) == 0
    leads_to("run")


def test_a_new_folder_is_tried_by_a_dry_run(leads_to: LeadsTo) -> None:
    assert init(["a b/ü x"]) == 0
    leads_to("sweep")


class TestExport:
    """Programs that are not here are played by ones that say what they were given."""

    @pytest.fixture
    def shell(self, here: Path) -> Callable[[str], list[list[str]]]:
        programs = here / "programs"
        (programs / "sglang").mkdir(parents=True)
        says = "#!/usr/bin/env python3\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
        for name in ("vllm", "trtllm-serve", "llama-server", "transformers", "sglang/launch_server.py"):
            (programs / name).write_text(says)
            (programs / name).chmod(0o755)
        (programs / "python").symlink_to(sys.executable)

        def type_(line: str) -> list[str]:
            path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(programs)}
            shown = subprocess.run(
                line, shell=True, check=True, capture_output=True, text=True, env={**os.environ, **path}
            )
            found: list[str] = json.loads(shown.stdout)
            return found

        return type_

    def written(self, capsys: Capture, to: str, drafter: dict[str, Any] = LOOKUP, *options: str) -> str:
        payloads = {**TREE, "parts.json": {"drafter": drafter}}
        folder = save_artifact("tuned", "static-tree", payloads).folder
        assert export([str(folder), "--to", to, "--output", "a file", *options]) == 0
        return next_line(capsys)

    @pytest.mark.parametrize(
        ("to", "words", "settings", "field", "value"),
        [
            ("vllm", ["serve", "MODEL", "--speculative-config"], VllmSettings, "method", "ngram"),
            ("sglang", ["--model-path", "MODEL"], SglangSettings, "algorithm", "NGRAM"),
            ("trtllm", ["MODEL", "--config"], TrtllmSettings, "decoding_type", "NGram"),
            (
                "llama-cpp",
                ["--models-dir", "FOLDER", "--models-preset"],
                LlamaCppSettings,
                "spec_type",
                "ngram-simple",
            ),
        ],
    )
    def test_an_engine_reads_its_settings(
        self,
        shell: Any,
        capsys: Capture,
        to: str,
        words: list[str],
        settings: type[Settings],
        field: str,
        value: str,
    ) -> None:
        given = shell(self.written(capsys, to))
        assert given[: len(words)] == words
        read = validated(settings, speculation(to, given[len(words) :]), "typed")
        assert getattr(read, field) == value

    def test_hugging_face_decodes_with_the_config(
        self, here: Path, shell: Any, capsys: Capture, model_folder: str
    ) -> None:
        line = self.written(capsys, "hf-generation-config")
        exec(python_of(line.replace("MODEL", model_folder).replace("32", "3")), {})
        drafted = self.written(capsys, "hf-generation-config", {"class_path": "DraftModel"})
        assert 'assistant_model="DRAFT"' in drafted

    def test_openvino_takes_the_drafter_where_the_pipeline_is_made(self, here: Path, capsys: Capture) -> None:
        code = python_of(self.written(capsys, "openvino"))
        compile(code, "typed", "exec")
        assert 'LLMPipeline("MODEL", "CPU", prompt_lookup=True)' in code
        code = python_of(self.written(capsys, "openvino", {"class_path": "DraftModel"}))
        compile(code, "typed", "exec")
        assert 'draft_model=genai.draft_model("DRAFT", "CPU")' in code

    def test_a_command_that_was_measured_is_typed_with_its_port_and_model(
        self, here: Path, shell: Any, capsys: Capture
    ) -> None:
        command = "vllm serve {target} --port {port} --speculative-config '{{\"a\": {tokens}}}'"
        settings = {"engine": "endpoint", "version": "1", "settings": {"command": command, "tokens": 4}}
        folder = save_artifact("measured", "engine-settings", {"settings.json": settings}).folder
        assert export([str(folder), "--to", "endpoint", "--output", "start.sh"]) == 0
        typed_ = next_line(capsys)
        assert shell(typed_) == ["serve", "MODEL", "--port", "8000", "--speculative-config", '{"a": 4}']

    def test_models_for_llama_cpp_and_bundles_name_their_files(
        self, here: Path, shell: Any, capsys: Capture, model_folder: str
    ) -> None:
        folder = save_artifact("tuned", "static-tree", TREE).folder
        assert export([str(folder), "--to", "serve-bundle", "--target", model_folder, "--output", "b u"]) == 0
        assert shell(next_line(capsys)) == ["serve", "--trust-remote-code", "b u"]

    @pytest.mark.parametrize("to", ["vllm", "sglang", "trtllm", "llama-cpp", "serve-bundle"])
    def test_the_page_has_the_same_lines(self, to: str) -> None:
        line = all_formats()[to].deployment.format(file="FILE")
        page = Path(__file__).parents[1] / "docs" / "deploy.md"
        assert f"| `{to}` | `{line}` |" in page.read_text()


def speculation(to: str, words: list[str]) -> Any:
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


def python_of(line: str) -> str:
    assert line.startswith("python -c '")
    assert line.endswith("'")
    return line.removeprefix("python -c '").removesuffix("'")
