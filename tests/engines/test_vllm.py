"""vLLM's real server and our drafter inside it. The variable SPECEXP_VLLM_PYTHON names the interpreter.

Its environment needs vLLM and, by ``pip install --no-deps``, specexp.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml

from specexp.commands.run import main
from specexp.commands.verify import main as verify
from specexp.config import load_config, missing_engine
from specexp.config.artifacts import save_artifact
from specexp.engines.engine import EngineError
from specexp.engines.settings import PROPOSER, VllmSettings
from specexp.engines.vllm import VLLM
from specexp.models.pair import load_pair
from specexp.sweep.command import main as sweep

PYTHON = os.environ.get("SPECEXP_VLLM_PYTHON", "")
real = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SPECEXP_VLLM_PYTHON must name the interpreter of vLLM's environment"),
]
LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 3, "min_ngram": 2}}


@pytest.fixture(scope="module")
def pair():
    return load_pair("smollm2")


def answers(engine, pair, prompts):
    running = engine.start(pair)
    try:
        return [running.answer(engine, prompt, 16, frozenset()) for prompt in prompts]
    finally:
        running.close()


def is_worker(process):
    try:
        return (process / "comm").read_text().startswith("VLLM::Worker")
    except OSError:  # it has just ended
        return False


def test_an_interpreter_that_is_missing_is_named() -> None:
    with pytest.raises(EngineError, match=r"must be the interpreter of an environment with vLLM, got 'no/python'"):
        VLLM(python="no/python").words(8000, None)
    assert VLLM(python="no/python").version == "not installed"


@pytest.fixture
def vllm_here(monkeypatch):
    """This machine seems to have vLLM."""
    monkeypatch.setattr("specexp.engines.vllm._version", lambda python: "1")


def test_a_drafter_of_ours_needs_its_artifact(vllm_here) -> None:
    ours = {"method": "custom_class", "num_speculative_tokens": 4, "model": "specexp.deploy.vllm.Proposer"}
    assert VLLM(VllmSettings(**ours, revision="smollm2:tree")).lacks() == ""
    for revision, why in (("no/artifact", "no/artifact"), ("smollm2:three", "did you mean 'smollm2:tree'")):
        lacks = VLLM(VllmSettings(**ours, revision=revision)).lacks()
        assert lacks.startswith("cannot load its drafter, since settings.revision: ")
        assert why in lacks


def test_a_drafter_that_needs_a_model_cannot_draft_inside_vllm(vllm_here, tmp_path) -> None:
    parts = {"drafter": {"class_path": "DraftModel"}, "builder": {"class_path": "Chain", "init_args": {"length": 2}}}
    folder = save_artifact(tmp_path / "own", "composition", {"parts.json": parts}).folder
    lacks = VLLM(VllmSettings("custom_class", 4, PROPOSER, str(folder))).lacks()
    assert lacks.endswith(f"its drafter must draft from tokens alone, which that of {folder} does not")


def test_prompts_and_drafters_that_do_not_fit_the_models_are_refused_before_the_start(vllm_here) -> None:
    pair = load_pair("stdlib", weights=False)
    VLLM(max_model_len=64).check(pair, 64)
    with pytest.raises(EngineError, match=r"max_model_len must be at most \d+, the model's context, got 9999999"):
        VLLM(max_model_len=9999999).check(pair, 64)
    with pytest.raises(EngineError, match=r"target must be pair.target's model, stdlib, got another: 'smollm2'"):
        VLLM(target="smollm2").check(pair, 64)
    with pytest.raises(EngineError, match=r"max_model_len must be at least 65, the tokens of the longest .* got 64"):
        VLLM(max_model_len=64).check(pair, 65)
    for gib in (1e-6, 99999):
        with pytest.raises(EngineError, match=rf"kv_cache_gib must be from \S+ \(keys .* memory\), got {gib:g}"):
            VLLM(kv_cache_gib=gib).check(pair, 64)
    ours = VLLM(VllmSettings("custom_class", 4, PROPOSER, "smollm2:tree"))
    with pytest.raises(EngineError, match=r"settings.revision: .*tokenizer"):
        ours.check(pair, 64)
    ours.check(load_pair("smollm2", weights=False), 64)


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        (
            {"class_path": "VLLM", "init_args": {"python": "no/python"}},
            "VLLM is not installed here: engine.init_args.python must be the interpreter of an environment with vLLM, "
            "got 'no/python'",
        ),
        (
            {"class_path": "LlamaCppServer", "init_args": {"program": "no/llama-server"}},
            "LlamaCppServer is not installed here: engine.init_args.program must be the name or path of llama-server, "
            "got 'no/llama-server'",
        ),
    ],
)
def test_an_engine_that_is_not_installed_is_named_before_the_run(tmp_path, engine, named) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"question": "Which?", "verifier": "Greedy", "engine": engine}))
    assert missing_engine(load_config(file, [])) == (f"{file}: engine: {named}, so it cannot start.")
    assert missing_engine(load_config(file, ["--engine", "null"])) == ""


@pytest.mark.parametrize(
    "given", [{"target": "no.gguf"}, {"settings": {"spec_type": "draft-simple", "spec_draft_model": "no.gguf"}}]
)
def test_a_file_that_an_engine_lacks_is_named_and_refused_before_the_run(tmp_path, given, capsys) -> None:
    program = Path(sys.executable)
    (tmp_path / "here.gguf").touch()
    init = {"program": str(program), "target": str(tmp_path / "here.gguf"), **given}
    engine = {"class_path": "LlamaCppServer", "init_args": init}
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump({"question": "Which?", "verifier": "Greedy", "arms": {"theirs": {"engine": engine}}})
    )
    sentence = "mine.yaml: arms.theirs: engine: LlamaCppServer needs no.gguf, which does not exist, so it cannot start."
    for rehearsed in (["--dry-run"], []):
        assert main([str(file), *rehearsed, "--output", str(tmp_path / "runs")]) == 2
        assert sentence in capsys.readouterr().err


def test_an_engine_that_cannot_decode_the_prompts_is_refused_before_anything_is_decoded(
    tmp_path, capsys, monkeypatch, vllm_here
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = {"class_path": "VLLM", "init_args": {"max_model_len": 16}}
    plan = {"question": "Which?", "verifier": "Greedy", "arms": {"theirs": {"engine": engine}}}
    Path("mine.yaml").write_text(yaml.safe_dump({**plan, "data": {"max_prompts": 1}}))
    for rehearsed in (["--dry-run"], []):
        assert main(["mine.yaml", *rehearsed]) == 2
        assert "mine.yaml: arms.theirs: engine: VLLM: max_model_len must be at least " in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_value_of_the_user_is_printed_as_it_is(capsys, tmp_path, vllm_here) -> None:
    file = tmp_path / "mine.yaml"
    ours = {"method": "custom_class", "num_speculative_tokens": 4, "model": PROPOSER, "revision": "smollm2:three"}
    named = {"name": "misspelt", "engine": {"class_path": "VLLM", "init_args": {"settings": ours}}}
    plan = {"compose": [str(Path("experiments/engines/vllm.yaml").resolve())], "name": "mine"}
    file.write_text(yaml.safe_dump({**plan, "sweep": {"enqueue": [named]}}))
    assert sweep([str(file), "--dry-run"]) == 0
    assert "smollm2:three" in capsys.readouterr().out, "not an emoji"


def test_a_draft_model_that_is_nowhere_is_named(tmp_path, vllm_here) -> None:
    (tmp_path / "config.json").touch()
    missing, damaged = (VLLM(VllmSettings("draft_model", 2, model=name)) for name in ("models/none", str(tmp_path)))
    assert missing.lacks() == (
        "cannot load its draft 'models/none', which is not a folder, and the hub cannot be reached"
    )
    assert damaged.lacks() == (
        f"cannot load its draft model, since draft {str(tmp_path)!r} has no weights: copy its .safetensors files into "
        "the folder"
    )
    assert VLLM(VllmSettings("custom_class", 2, model="a.module.Proposer")).lacks() == ""


def test_a_study_leaves_out_what_its_engine_lacks(capsys, tmp_path, monkeypatch, vllm_here) -> None:
    file = Path("experiments/engines/vllm.yaml").resolve()
    monkeypatch.chdir(tmp_path)
    assert sweep([str(file), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith("without --dry-run, which leaves out 4 settings (Not measured)")
    left_out = [line for line in lines if line.startswith("Not measured: ")]
    assert ["draft model" in left_out[0], "EAGLE-3 head" in left_out[1], len(left_out)] == [True, True, 2]
    assert left_out[1].endswith("'models/smollm2-eagle3', which is not a folder, and the hub cannot be reached.")


def test_a_study_of_numbers_alone_is_refused_if_its_engine_cannot_decode(capsys, tmp_path, vllm_here) -> None:
    file = tmp_path / "mine.yaml"
    settings = {"method": "ngram", "num_speculative_tokens": 2}
    engine = {"class_path": "VLLM", "init_args": {"kv_cache_gib": 1e-6, "settings": settings}}
    space = {"engine.init_args.settings.num_speculative_tokens": {"type": "int", "low": 1, "high": 4}}
    study = {"verifier": "Greedy", "data": {"max_prompts": 2}, "engine": engine, "sweep": {"space": space}}
    file.write_text(yaml.safe_dump(study))
    assert sweep([str(file), "--dry-run"]) == 2
    assert "sweep.space: no settings of it can be built: VLLM: kv_cache_gib must be from" in capsys.readouterr().err


def test_plain_decoding_is_the_same_engine_without_speculation() -> None:
    engine = VLLM(VllmSettings("ngram", 4), eager=True)
    assert engine.plain().deployed_settings() == {}
    assert engine.plain().eager
    assert engine.plain().restart_key != engine.restart_key


class TestReal:
    pytestmark = real

    def test_our_drafter_drafts_in_vllm_as_vllms_n_grams_do(self, pair, tmp_path) -> None:
        parts = {"drafter": LOOKUP, "builder": {"class_path": "Chain"}}
        folder = save_artifact(tmp_path / "lookup", "composition", {"parts.json": parts}).folder
        prompts = [pair.tokenizer("one two three four five, " * 6).input_ids]
        ours = VLLM(VllmSettings("custom_class", 4, PROPOSER, str(folder)), PYTHON, eager=True)
        own = VLLM(VllmSettings("ngram", 4, prompt_lookup_min=2, prompt_lookup_max=3), PYTHON, eager=True)
        (first,), (second,) = answers(ours, pair, prompts), answers(own, pair, prompts)
        assert first.token_ids == second.token_ids
        assert first.accepted_drafts == second.accepted_drafts > 0
        assert first.memory_bytes > 2**28
        assert first.start_seconds > 1

    def test_an_artifact_is_verified_by_one_command(self, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        few = ["--max-prompts", "2", "--max-tokens", "16", "--pair.target_dtype", "float32"]
        assert verify(["smollm2:tree", "--for", "vllm", "--engine.init_args.python", PYTHON, *few]) == 0
        out = capsys.readouterr().out
        assert "2 equal, 0 near tie, 0 wrong, 0 cannot tell\nspeed over plain decoding: " in out
        assert "Next: python -m specexp.export smollm2:tree --to vllm" in out

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            (VllmSettings("custom_class", 4, PROPOSER, "no/artifact"), "no/artifact"),
            (VllmSettings("mtp", 2), "mtp"),
        ],
    )
    def test_the_error_of_a_server_that_cannot_start_is_its_own(self, settings, why, pair) -> None:
        with pytest.raises(EngineError, match=f"(?i)it exited with status 1 .*{why}"):
            VLLM(settings, PYTHON, eager=True).start(pair)

    def test_the_error_of_a_server_names_the_process_that_died(self, pair) -> None:
        engine = VLLM(None, PYTHON, eager=True)
        running = engine.start(pair)
        try:
            workers = [one for one in Path("/proc").glob("[0-9]*") if is_worker(one)]
            os.kill(int(workers[-1].name), signal.SIGKILL)
            with pytest.raises(EngineError, match=r"Worker proc .* died unexpectedly"):
                running.answer(engine, [1, 2, 3], 64, frozenset())
        finally:
            running.close()
