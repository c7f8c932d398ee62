"""``specexp.export`` to other engines: the settings of a chain, dropped parts, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import save_artifact
from specexp.deploy.export.command import export, main
from specexp.engines.settings import PROPOSER, engines_note, runs_in

LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 4, "min_ngram": 2}}
DRAFT = {"class_path": "DraftModel", "init_args": {"temperature": 0.6}}
ENGINES = ("vllm", "sglang", "trtllm", "llama-cpp", "openvino", "hf-generation-config")


@pytest.fixture
def tuned(tmp_path):
    """Saves an artifact of a drafter and a tree."""

    def save(drafter, **parts):
        payloads = {"tree.json": [[0], [1], [0, 0]], "parts.json": {"drafter": drafter, **parts}}
        return save_artifact(tmp_path / "tuned", "static-tree", payloads).folder

    return save


def measured(tmp_path, engine, **settings):
    content = {"engine": engine, "version": "1", "settings": settings}
    return save_artifact(tmp_path / "measured", "engine-settings", {"settings.json": content}).folder


def test_prompt_lookup_is_prompt_lookup_everywhere(tuned) -> None:
    folder = tuned(LOOKUP)
    made = {engine: export(folder, engine) for engine in ENGINES}
    contents = {engine: content for engine, (content, _) in made.items()}
    assert contents["vllm"] == {
        "method": "custom_class", "num_speculative_tokens": 2, "model": PROPOSER, "revision": str(folder),
    }  # fmt: skip
    assert contents["sglang"].startswith("--speculative-algorithm NGRAM --speculative-num-draft-tokens 3 ")
    assert yaml.safe_load(contents["trtllm"])["speculative_config"] == {
        "decoding_type": "NGram", "max_draft_len": 2, "max_matching_ngram_size": 4, "is_use_oldest": False,
    }  # fmt: skip
    assert "ngram-map-k\nspec-ngram-map-k-size-n = 4\nspec-ngram-map-k-size-m = 2\n" in contents["llama-cpp"]
    assert contents["openvino"] == {"num_assistant_tokens": 2, "max_ngram_size": 4}
    assert contents["hf-generation-config"] == {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 4}
    for engine, (_, dropped) in made.items():
        assert dropped.startswith(f"{engine}: kept the tree's best chain, of length 2; dropped 1 of 3 nodes"), dropped
    assert "n-grams of 2 to 3 tokens (llama.cpp looks up exactly 4 tokens)" in made["llama-cpp"][1]


@pytest.mark.parametrize(
    ("parts", "dropped"),
    [
        ({}, "dropped 1 of 3 nodes; vLLM's environment needs specexp"),
        ({"controller": {"class_path": "Heuristic"}}, "dropped 1 of 3 nodes; vLLM's"),
        ({"drafter": {"class_path": "TokenRecycling"}}, "nodes and the target's candidates (TokenRecycling learns the"),
        ({"controller": {"class_path": "QLearning", "init_args": {"reward": "useful"}}}, "the QLearning controller"),
    ],
)
def test_vllm_gets_the_artifact_if_its_parts_draft_from_tokens_alone(parts, dropped, tuned) -> None:
    both = {"class_path": "Union", "init_args": {"drafters": [LOOKUP, {"class_path": "SuffixAutomaton"}]}}
    folder = tuned(**{"drafter": both, **parts})
    content, said = export(folder, "vllm")
    assert content["model"] == PROPOSER
    assert Path(content["revision"]) == folder
    assert dropped in said
    with pytest.raises(ArtifactError, match="must be left out"):
        export(folder, "vllm", draft="small")


def test_vllm_gets_a_learned_matrix_with_its_chain(tmp_path) -> None:
    drafter = {"class_path": "TokenRecycling", "init_args": {"k": 2, "state": "carry"}}
    learned = {"matrix.safetensors": {"matrix": np.zeros((3, 2), np.int32)}}
    parts = {"parts.json": {"drafter": drafter, "builder": CHAIN}}
    saved = save_artifact(tmp_path / "matrix", "adjacency-matrix", {**learned, **parts})
    content, _ = export(saved.folder, "vllm")
    assert (content["model"], content["num_speculative_tokens"]) == (PROPOSER, 3)


def test_suffix_decoding_is_suffix_decoding_where_an_engine_has_it(tuned) -> None:
    cold = tuned({"class_path": "SuffixAutomaton", "init_args": {"min_run": 3}})
    suffix = {"decoding_type": "SA", "max_draft_len": 2, "enable_global_pool": False}
    assert yaml.safe_load(export(cold, "trtllm")[0]) == {"speculative_config": suffix}
    carried = tuned({"class_path": "SuffixAutomaton", "init_args": {"state": "carry", "reach": 1.5}})
    content, dropped = export(carried, "trtllm")
    assert yaml.safe_load(content)["speculative_config"]["enable_global_pool"] is True
    assert "reach=1.5 and texts of earlier requests" in dropped


def test_a_draft_model_is_named_where_the_engine_loads_it(tuned) -> None:
    folder = tuned(DRAFT, controller={"class_path": "ConfidenceThreshold", "init_args": {"threshold": 0.3}})
    names = {engine: "small.gguf" if engine == "llama-cpp" else "small" for engine in ENGINES[:4]}
    made = {engine: export(folder, engine, draft=name)[0] for engine, name in names.items()}
    assert made["vllm"] == {"method": "draft_model", "num_speculative_tokens": 2, "model": "small"}
    assert made["sglang"] == (
        "--speculative-algorithm STANDALONE --speculative-draft-model-path small --speculative-num-steps 2 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3\n"
    )
    assert yaml.safe_load(made["trtllm"])["speculative_config"]["speculative_model"] == "small"
    assert "spec-draft-model = small.gguf\nspec-draft-n-max = 2\nspec-draft-p-min = 0.0\n" in made["llama-cpp"]
    content, dropped = export(folder, "openvino")
    assert content == {"num_assistant_tokens": 2}  # a threshold of products is no threshold of single tokens
    assert "the ConfidenceThreshold controller" in dropped
    assert "the draft's temperature=0.6" in dropped


@pytest.mark.parametrize("engine", ENGINES)
def test_a_drafter_that_an_engine_does_not_have_is_refused(engine, tuned) -> None:
    drafters = ["Lookahead"]
    if engine != "vllm":  # which runs our own drafters
        drafters += ["TokenRecycling"] + ["SuffixAutomaton"] * (engine != "trtllm")
    for drafter in drafters:
        with pytest.raises(ArtifactError, match=f"{engine} does not support the {drafter} drafter"):
            export(tuned({"class_path": drafter}), engine)
    if engine == "vllm":
        return
    both = {"class_path": "Union", "init_args": {"drafters": [LOOKUP, {"class_path": "TokenRecycling"}]}}
    with pytest.raises(ArtifactError, match=f"{engine} does not support the Union drafter"):
        export(tuned(both), engine)


KEYED = {"class_path": "KeyedSampling", "init_args": {"temperature": 0.7, "top_p": 0.8}}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("verifier", "note"),
    [
        ({"class_path": "Greedy"}, "the study's verifier Greedy, so requests must set temperature 0"),
        (KEYED, "the study's verifier KeyedSampling, so requests must set temperature 0.7, top_p 0.8"),
    ],
)
def test_a_note_names_the_sampling_of_the_study_that_no_file_holds(verifier, note, engine, tuned) -> None:
    content, said = export(tuned(LOOKUP, verifier=verifier), engine)
    assert note in said
    assert "temperature" not in str(content)


def test_a_note_names_the_sampling_of_a_study_of_an_engine(tmp_path) -> None:
    content = {"engine": "vllm", "version": "1", "settings": {"method": "ngram", "num_speculative_tokens": 5}}
    provenance = {"config": {"verifier": {"class_path": "Greedy", "init_args": {}}}}
    made = save_artifact(tmp_path / "m", "engine-settings", {"settings.json": content}, provenance)
    assert export(made.folder, "vllm")[1].endswith("requests must set temperature 0")


def test_openvino_is_refused_for_sampling_with_a_draft_model(tuned) -> None:
    with pytest.raises(ArtifactError, match=r"does not sample with a draft model, .* KeyedSampling"):
        export(tuned(DRAFT, verifier=KEYED), "openvino")
    assert export(tuned(DRAFT, verifier={"class_path": "Greedy"}), "openvino")[0]


def test_hugging_face_reads_the_draft_length_in_the_drafts_folder(tuned) -> None:
    content, said = export(tuned(DRAFT), "hf-generation-config")
    assert content["num_assistant_tokens"] == 2
    assert "the file belongs in the draft's folder" in said
    assert "the draft's folder" not in export(tuned(LOOKUP), "hf-generation-config")[1]


@pytest.mark.parametrize(
    ("drafter", "options", "message"),
    [
        (DRAFT, ["--to", "vllm"], "give --draft, the model's name or path"),
        (LOOKUP, ["--to", "vllm", "--draft", "small"], "drafts without a draft model"),
        (LOOKUP, ["--to", "openvino", "--draft", "small"], "--draft is only for --to llama-cpp, "),
    ],
)
def test_a_wrong_option_is_one_sentence(drafter, options, message, tuned, capsys) -> None:
    assert main([str(tuned(drafter)), *options]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (err.count("\n"), out) == (1, "")


def test_a_study_of_an_engine_is_exported_to_that_engine_alone(tmp_path) -> None:
    lengths = {"num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 32, 0]]}
    given = {"method": "ngram", "num_speculative_tokens": 5, **lengths}
    folder = measured(tmp_path, "vllm", **given)
    assert export(folder, "vllm") == (given, "")
    with pytest.raises(ArtifactError, match="must be the engine of the study, 'vllm', got 'sglang'"):
        export(folder, "sglang")
    broken = measured(tmp_path, "openvino", num_assistant_tokens=0)
    with pytest.raises(ArtifactError, match="num_assistant_tokens must be >= 1, got 0"):
        export(broken, "openvino")
    dead = measured(tmp_path, "openvino", assistant_confidence_threshold=0.4)
    with pytest.raises(ArtifactError, match="assistant_confidence_threshold must be left out: with greedy"):
        export(dead, "openvino")


def test_a_server_is_exported_as_its_fastest_command(tmp_path) -> None:
    command = "serve {target} --port {port} --config '{{\"k\": {tokens}}}'"
    folder = measured(tmp_path, "endpoint", command=command, tokens=4, body={"speculative": True})
    content, dropped = export(folder, "endpoint")
    assert content == "serve '{target}' --port '{port}' --config '{\"k\": 4}'\n"
    assert dropped == "endpoint: dropped the fields that every request must have, {'speculative': True}"
    with pytest.raises(ArtifactError, match="a server that a command started, got those of the engine 'vllm'"):
        export(measured(tmp_path, "vllm", method="ngram", num_speculative_tokens=2), "endpoint")
    unfilled = measured(tmp_path, "endpoint", command="serve {port} {token}", tokens=4)
    with pytest.raises(ArtifactError, match=r"\{token\}, but there is no value for 'token'; did you mean 'tokens'"):
        export(unfilled, "endpoint")


@pytest.mark.slow
def test_openvino_reads_the_exported_file(tmp_path, tuned) -> None:
    genai = pytest.importorskip("openvino_genai", reason="pip install 'specexp[openvino]'")

    def loaded(artifact):
        file = tmp_path / "generation_config.json"
        file.write_text('{"eos_token_id": 2, "max_new_tokens": 8}')
        export(artifact, "openvino", file)
        config = genai.GenerationConfig(str(file))
        config.validate()
        return config

    config = loaded(tuned(DRAFT))
    assert (config.num_assistant_tokens, config.assistant_confidence_threshold) == (2, 0)
    assert config.eos_token_id == 2
    assert config.is_assisting_generation()
    config = loaded(tuned(LOOKUP))
    assert (config.num_assistant_tokens, config.max_ngram_size) == (2, 4)
    assert config.is_prompt_lookup()


CHAIN = {"class_path": "Chain", "init_args": {"length": 3}}
RECYCLED = {"drafter": {"class_path": "TokenRecycling"}, "builder": CHAIN}


def test_engines_run_chains_of_drafters_that_they_have() -> None:
    assert set(runs_in({"drafter": LOOKUP, "builder": CHAIN})) == set(ENGINES)
    assert runs_in({"drafter": {"class_path": "SuffixAutomaton"}, "builder": CHAIN}) == ["vllm", "trtllm"]
    assert runs_in(RECYCLED) == []
    tree = {"class_path": "StaticTree", "init_args": {"rank_paths": [[0], [1]]}}
    assert runs_in({"drafter": LOOKUP, "builder": tree}) == []
    for controller in ({"class_path": "ConfidenceThreshold"}, {"class_path": "Fixed", "init_args": {"max_depth": 2}}):
        assert runs_in({"drafter": DRAFT, "builder": CHAIN, "controller": controller}) == []
    unlimited = {"class_path": "Fixed", "init_args": {"max_depth": None, "max_nodes": None}}
    assert set(runs_in({"drafter": LOOKUP, "builder": CHAIN, "controller": unlimited})) == set(ENGINES)


def test_only_openvino_does_not_sample_with_a_draft_model() -> None:
    parts = {"drafter": DRAFT, "builder": CHAIN, "verifier": KEYED}
    assert set(ENGINES) - set(runs_in(parts)) == {"openvino"}
    assert "openvino" in runs_in({**parts, "verifier": {"class_path": "Greedy"}})


@pytest.mark.parametrize("engine", ENGINES)
def test_each_format_takes_what_runs_in_its_engine(engine, tmp_path) -> None:
    options = {"draft": "small.gguf"} if engine not in ("openvino", "hf-generation-config") else {}
    for drafter in (LOOKUP, DRAFT, {"class_path": "SuffixAutomaton"}):
        parts = {"drafter": drafter, "builder": CHAIN}
        if engine in runs_in(parts):
            saved = save_artifact(tmp_path / drafter["class_path"], "composition", {"parts.json": parts})
            made = export(saved.folder, engine, **(options if drafter is DRAFT else {}))
            assert made[0]


def test_the_rows_that_run_in_no_engine_are_named_last() -> None:
    rows = {"a": RECYCLED, "b": {"drafter": {"class_path": "SuffixAutomaton"}, "builder": CHAIN}}
    assert engines_note(rows) == "runs in: b in vllm, trtllm; the others in specexp only"
    assert engines_note({"a": RECYCLED}) == "runs in: all rows in specexp only"


@pytest.fixture
def study(tmp_path):
    """A study's folder with confirmed settings."""

    def save(*settings):
        rows = [{"label": label, "parts": parts, "sentence": f"{label}: 1.5x"} for label, parts in settings]
        (tmp_path / "confirmed.json").write_text(json.dumps(rows))
        return tmp_path

    return save


def test_a_study_exports_its_fastest_setting_that_the_engine_runs(study) -> None:
    slower = {"drafter": LOOKUP, "builder": {"class_path": "Chain", "init_args": {"length": 5}}}
    looks_up = {"drafter": LOOKUP, "builder": CHAIN}
    folder = study(("recycles", RECYCLED), ("looks up 3", looks_up), ("looks up 5", slower))
    content, dropped = export(folder, "vllm")
    assert content["num_speculative_tokens"] == 3
    assert dropped.startswith("looks up 3: 1.5x, as measured in specexp's own loop, and not known in vllm; ")


def test_a_study_without_such_a_setting_names_the_way_to_one(study) -> None:
    folder = study(("recycles", RECYCLED))
    with pytest.raises(ArtifactError, match=r"no confirmed setting runs in sglang: .*init FOLDER --for sglang"):
        export(folder, "sglang")


def test_a_study_of_an_engine_exports_its_artifact_from_any_folder(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/mine", "elsewhere"):
        Path(folder).mkdir(parents=True)
    found = {"engine": "vllm", "version": "1", "settings": {"method": "ngram", "num_speculative_tokens": 5}}
    engine = {"class_path": "VLLM", "init_args": {"python": "there/python", "eager": True, "settings": {}}}
    config = {"engine": engine, "pair": {"target": "my/model", "target_dtype": "float32"}}
    save_artifact("made", "engine-settings", {"settings.json": found}, {"config": config}, aliases=["best-tree"])
    exported = "sweep: {export: {kind: engine-settings, to: made}}"
    Path("runs/mine/config.yaml").write_text(f"output: runs\nname: mine\n{exported}\n")
    Path("runs/mine/confirmed.json").write_text("[]")
    monkeypatch.chdir("elsewhere")
    assert main(["../runs/mine", "--to", "vllm", "--output", "vllm.json"]) == 0
    assert json.loads(Path("vllm.json").read_text()) == found["settings"]
    assert (
        "Next: there/python -m vllm.entrypoints.openai.api_server --model my/model --dtype float32 "
        "--max-model-len 2048 --kv-cache-memory-bytes 1073741824 --enforce-eager --speculative-config "
    ) in capsys.readouterr().err


def test_a_study_of_an_engine_without_an_artifact_is_one_sentence(study) -> None:
    (study() / "config.yaml").write_text("sweep: {export: null}")
    with pytest.raises(ArtifactError, match=r"config.yaml: sweep.export must be set, .* got null"):
        export(study(), "vllm")


def test_a_missing_draft_model_is_an_error_of_the_study(study) -> None:
    folder = study(("drafts 3", {"drafter": DRAFT, "builder": CHAIN}))
    with pytest.raises(ArtifactError, match=r"confirmed.json: drafts 3: vllm needs a draft model: give --draft"):
        export(folder, "vllm")


def test_a_damaged_list_of_settings_is_one_sentence(tmp_path) -> None:
    (tmp_path / "confirmed.json").write_text('[{"label": "a"}]')
    with pytest.raises(ArtifactError, match=r"confirmed\.json"):
        export(tmp_path, "vllm")
