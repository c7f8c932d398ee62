"""``python -m specexp.verify ARTIFACT --for ENGINE``: an engine with an artifact's settings against itself without."""

import json

import pytest
from helpers.fake_vllm import fake_vllm

from specexp.commands.engine_artifact import engine_experiment
from specexp.commands.verify import main
from specexp.config import load_config
from specexp.config.artifacts import save_artifact
from specexp.engines.engine import NOT_INSTALLED

LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 4, "min_ngram": 2}}
NGRAMS = {"method": "ngram", "num_speculative_tokens": 3}
SPACE = {"builder.init_args.length": {"type": "int", "low": 1, "high": 4}}
SWEEP = {"space": SPACE, "confirm": {"data": {"max_prompts": 2}}}
SHORT = ["--engine.init_args.max_model_len", "128"]  # the model's context is short


@pytest.fixture
def study(experiment):
    """The recorded configuration of a study with two prompts for its confirmation."""
    questions = load_config(experiment()).get("data.prompts")
    return lambda **sections: load_config(
        experiment(sweep=SWEEP, data={"prompts": questions, "max_prompts": 3}, **sections)
    ).to_dict()


@pytest.fixture
def tree(tmp_path, study):
    """The artifact of a study of trees."""
    payloads = {"tree.json": [[0], [1], [0, 0]], "parts.json": {"drafter": LOOKUP}}
    return str(save_artifact(tmp_path / "tuned", "static-tree", payloads, {"config": study()}).folder)


@pytest.fixture
def chain(tmp_path, study):
    """Write the artifact of a study of chains with a drafter."""

    def write(drafter):
        payloads = {"tree.json": [[0], [0, 0]], "parts.json": {"drafter": drafter}}
        return str(save_artifact(tmp_path / "chain", "static-tree", payloads, {"config": study()}).folder)

    return write


@pytest.fixture
def measured(tmp_path, study):
    """The artifact of a study of vLLM, with its interpreter."""
    program, words = fake_vllm(tmp_path)
    engine = {"class_path": "VLLM", "init_args": {"python": str(program), "max_model_len": 96, "eager": True}}
    parts = {"drafter": None, "builder": None, "verifier": {"class_path": "Greedy"}}
    config = {**study(), **parts, "engine": engine}
    content = {"engine": "vllm", "version": "1", "settings": NGRAMS}
    folder = save_artifact(tmp_path / "m", "engine-settings", {"settings.json": content}, {"config": config}).folder
    return str(folder), words, str(program)


def test_a_tree_is_verified_in_an_engine_that_is_started_twice(tree, tmp_path, capsys) -> None:
    program, words = fake_vllm(tmp_path)
    assert main([tree, "--for", "vllm", "--engine.init_args.python", str(program), *SHORT]) == 0
    out = capsys.readouterr().out
    assert "VLLM 0.32.0 starts with speculation and without it; both answer 2 prompts, with at most 10 tokens." in out
    assert "2 equal, 0 near tie, 0 wrong, 0 cannot tell\nspeed over plain decoding: " in out
    assert f"Next: python -m specexp.export {tree} --to vllm" in out
    drafting, plain = words.read_text().splitlines()
    assert "specexp.deploy.vllm.Proposer" in drafting
    assert "--speculative-config" not in plain
    assert "--enforce-eager" in plain, "as in the shipped search space"
    assert "Speculation on against off" in (tmp_path / "tuned" / "verify" / "v1" / "engine.md").read_text()


def test_the_prompts_are_those_of_the_confirmation_or_a_file(tree, tmp_path, capsys) -> None:
    def prompts(code, *more):
        assert main([tree, "--for", "vllm", *python, *more]) == code
        return capsys.readouterr().out

    program, _ = fake_vllm(tmp_path, "--wrong 3")
    python = ["--engine.init_args.python", str(program), *SHORT]
    found = prompts(3)  # the fake server decodes with another model
    assert "## cannot tell: 'ab3 ab3'" in found
    assert "## cannot tell: 'ab4 ab4'" in found
    assert "ab2" not in found
    assert "Next:" not in found
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"question": f"ba{n}"}) + "\n" for n in range(9)))
    found = prompts(1, "--prompts", str(tmp_path / "mine.jsonl"), "--max-prompts", "1", "--max-tokens", "5")
    assert "## wrong: 'ba0'" in found
    assert ": 1 prompt, 5 tokens" in found


def test_settings_of_a_study_of_the_engine_run_as_they_were_measured(measured, tmp_path, capsys) -> None:
    folder, words, program = measured
    assert main([folder, "--for", "vllm", "--engine.init_args.python", program]) == 0
    assert "2 equal" in capsys.readouterr().out
    assert "--max-model-len 96 " in words.read_text()
    assert json.dumps(NGRAMS) in words.read_text()


def test_an_artifact_chooses_no_program_but_the_answer_names_it(measured, monkeypatch, capsys) -> None:
    folder, _, program = measured
    monkeypatch.setattr("specexp.engines.vllm._version", lambda python: NOT_INSTALLED)
    assert main([folder, "--for", "vllm"]) == 2
    sentence = f"Its study was measured with another program: repeat with --engine.init_args.python {program}\n"
    assert capsys.readouterr().err.endswith(sentence)


@pytest.mark.parametrize(
    ("engine", "drafter", "expected"),
    [
        ("llama-cpp", LOOKUP, {"spec_type": "ngram-map-k", "spec_ngram_map_k_size_m": 2}),
        ("openvino", LOOKUP, {"num_assistant_tokens": 2, "max_ngram_size": 4}),
        ("openvino", {"class_path": "DraftModel"}, {"num_assistant_tokens": 2}),
        ("vllm", {"class_path": "DraftModel"}, {"method": "draft_model", "num_speculative_tokens": 2}),
    ],
)
def test_a_chain_runs_in_every_engine_that_a_study_starts(engine, drafter, expected, chain) -> None:
    config = engine_experiment(engine, chain(drafter))
    assert expected.items() <= config.get("engine.init_args.settings").items()
    if engine == "openvino":
        way = "model" if drafter["class_path"] == "DraftModel" else "prompt-lookup"
        assert config.get("engine.init_args.drafts") == way


def test_the_next_step_names_the_draft_model(chain, study, tmp_path, capsys) -> None:
    program, _ = fake_vllm(tmp_path)
    folder = chain({"class_path": "DraftModel"})
    assert main([folder, "--for", "vllm", "--engine.init_args.python", str(program), *SHORT]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if one.startswith("Next: "))
    assert line == f"Next: python -m specexp.export {folder} --to vllm --draft {study()['pair']['draft']}"


def test_a_drafter_that_an_engine_lacks_is_verified_otherwise(chain, capsys) -> None:
    folder = chain({"class_path": "Union", "init_args": {"drafters": [LOOKUP, {"class_path": "TokenRecycling"}]}})
    assert main([folder, "--for", "llama-cpp", "--dry-run"]) == 2
    advice = "name an artifact that drafts with DraftModel or PromptLookup, or verify this one in our loop"
    assert f"llama-cpp does not support the Union drafter: {advice}" in capsys.readouterr().err


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([*SHORT, "--max-tokens", "100"], "engine: VLLM: max_model_len must be at least "),
        (["--engine.init_args.max_model_len", "9999"], "engine: VLLM: max_model_len must be at most 192, the model"),
        ([*SHORT, "--engine.init_args.kv_cache_gib", "1e6"], "engine: VLLM: kv_cache_gib must be from"),
    ],
)
def test_a_limit_of_the_engine_is_found_before_it_starts(dry, more, sentence, tree, tmp_path, capsys) -> None:
    program, words = fake_vllm(tmp_path)
    assert main([tree, "--for", "vllm", "--engine.init_args.python", str(program), *more, *dry]) == 2
    assert sentence in capsys.readouterr().err
    assert not words.exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ["--engine.init_args.python", "no-python"],
            "VLLM is not installed here: engine.init_args.python must be the interpreter of an environment with vLLM",
        ),
        (["--prompts", "no.jsonl"], "command line: --prompts: no.jsonl: no such file"),
        (["--pair.target", "no/such"], "pair.target: target 'no/such' is neither a local folder nor"),
        (["--max-tokens", "0"], "command line: --max-tokens must be >= 1, got 0"),
        (["--max-prompts", "0", "--max-prompts=1"], "command line: --max-prompts must be given once, got 0 and 1"),
        (["--generation.max_new_tokens", "0"], "command line: generation.max_new_tokens must be >= 1, got 0"),
        (["--prompt", "no.jsonl"], "--prompt is unknown; did you mean '--prompts'?"),
    ],
)
def test_what_is_missing_is_a_sentence_before_anything_starts(more, sentence, tree, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([tree, "--for", "vllm", *more]) == 2
    assert sentence in capsys.readouterr().err


def test_an_artifact_does_not_choose_the_program_that_is_started(measured, monkeypatch, tmp_path) -> None:
    folder, words, program = measured
    monkeypatch.chdir(tmp_path)
    assert engine_experiment("vllm", folder).get("engine.init_args").get("python") != program
    assert not words.exists()


def test_settings_of_another_engine_are_refused(measured, capsys) -> None:
    folder, *_ = measured
    assert main([folder, "--for", "llama-cpp"]) == 2
    assert "--for must be the engine of the study, 'vllm', got 'llama-cpp'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("--fault no-start", "unknown flag --speculate"), ("--fault crash --after 1", "crashed on purpose")],
)
def test_a_server_that_dies_is_a_sentence(fault, sentence, tree, tmp_path, capsys) -> None:
    program, _ = fake_vllm(tmp_path, fault)
    assert main([tree, "--for", "vllm", "--engine.init_args.python", str(program), *SHORT]) == 2
    assert sentence in capsys.readouterr().err


def test_an_artifact_without_a_study_or_with_foreign_prompts_is_refused(tmp_path, study, capsys) -> None:
    def refused(config):
        payloads = {"tree.json": [[0]], "parts.json": {"drafter": LOOKUP}}
        folder = save_artifact(tmp_path / "tuned", "static-tree", payloads, {"config": config}).folder
        assert main([str(folder), "--for", "vllm"]) == 2
        return capsys.readouterr().err

    assert "provenance.config must be a study's configuration" in refused(None)
    foreign = {**study(), "sweep": None}
    foreign["data"] = {**foreign["data"], "prompts": {"class_path": "helpers.fifty_prompts.FiftyPrompts"}}
    assert "data.prompts must be a class of specexp, got 'helpers.fifty_prompts.FiftyPrompts'" in refused(foreign)


def test_the_option_needs_an_artifact_and_an_engine_that_specexp_starts(capsys) -> None:
    assert main(["--for", "vllm"]) == 2
    assert "--for vllm needs an artifact: python -m specexp.verify ARTIFACT --for vllm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["smollm2:tree", "--for", "sglang"])
    assert "--for must be one of 'vllm', 'llama-cpp', 'openvino', got 'sglang'" in capsys.readouterr().err
