"""``specexp.export`` to other engines: what a chain becomes, what is dropped, what is refused."""

import pytest
import yaml
from helpers.fake_turns import recorded_turn, save_recording

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import save_artifact
from specexp.deploy.export.command import export, main
from specexp.replay.play.ranks import MISSED

LOOKUP = {"class_path": "PromptLookup", "init_args": {"max_ngram": 4, "min_ngram": 2}}
DRAFT = {"class_path": "DraftModel", "init_args": {"temperature": 0.6}}
ENGINES = ("vllm", "sglang", "trtllm", "llama-cpp", "openvino")


@pytest.fixture
def tuned(tmp_path):
    """Saves an artifact of a drafter and a tree."""

    def save(drafter, paths=((0,), (1,), (0, 0)), controller=None):
        parts = {"drafter": drafter, **({"controller": controller} if controller else {})}
        payloads = {"tree.json": [list(path) for path in paths], "parts.json": parts}
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
        "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 4,
    }  # fmt: skip
    assert contents["sglang"].startswith("--speculative-algorithm NGRAM --speculative-num-draft-tokens 3 ")
    assert yaml.safe_load(contents["trtllm"]) == {
        "speculative_config": {
            "decoding_type": "NGram", "max_draft_len": 2, "max_matching_ngram_size": 4, "is_use_oldest": False,
        }
    }  # fmt: skip
    assert "spec-ngram-simple-size-n = 4\nspec-ngram-simple-size-m = 2\n" in contents["llama-cpp"]
    assert contents["openvino"] == {"num_assistant_tokens": 2, "max_ngram_size": 4}
    for engine, (_, dropped) in made.items():
        assert dropped.startswith(f"{engine}: kept the tree's best chain of 2; dropped 1 of 3 nodes"), dropped
    assert "n-grams of 2 to 3, for llama.cpp looks up exactly 4 tokens" in made["llama-cpp"][1]
    assert "the order of matches" in made["vllm"][1]


def test_suffix_decoding_is_suffix_decoding_where_an_engine_has_it(tuned) -> None:
    cold = tuned({"class_path": "SuffixAutomaton", "init_args": {"min_run": 3}})
    content, dropped = export(cold, "vllm")
    assert content == {
        "method": "suffix", "num_speculative_tokens": 2, "suffix_decoding_max_cached_requests": 0,
        "suffix_decoding_max_spec_factor": 2.0, "suffix_decoding_min_token_prob": 0.0,
    }  # fmt: skip
    assert "min_run=3 and how followers are weighed" in dropped
    assert yaml.safe_load(export(cold, "trtllm")[0]) == {
        "speculative_config": {"decoding_type": "SA", "max_draft_len": 2, "enable_global_pool": False}
    }
    with pytest.raises(ArtifactError, match="leave it out"):
        export(cold, "vllm", draft="small")
    for engine in ("sglang", "llama-cpp", "openvino"):
        with pytest.raises(ArtifactError, match=f"{engine} has nothing like the SuffixAutomaton drafter"):
            export(cold, engine)


def test_texts_that_a_suffix_drafter_carries_are_the_engines_cache(tuned) -> None:
    carried = tuned({"class_path": "SuffixAutomaton", "init_args": {"state": "carry", "reach": 1.5}})
    content, _ = export(carried, "vllm")
    assert content["suffix_decoding_max_spec_factor"] == 1.5
    assert "suffix_decoding_max_cached_requests" not in content
    content, dropped = export(carried, "trtllm")
    assert yaml.safe_load(content)["speculative_config"]["enable_global_pool"] is True
    assert "reach=1.5 and texts of requests that have ended" in dropped


def test_a_draft_model_is_named_where_the_engine_loads_it(tuned) -> None:
    folder = tuned(DRAFT)
    made = {engine: export(folder, engine, draft="small")[0] for engine in ENGINES[:-1]}
    assert made["vllm"] == {"method": "draft_model", "num_speculative_tokens": 2, "model": "small"}
    assert made["sglang"] == (
        "--speculative-algorithm STANDALONE --speculative-draft-model-path small --speculative-num-steps 2 "
        "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3\n"
    )
    assert yaml.safe_load(made["trtllm"])["speculative_config"]["speculative_model"] == "small"
    assert "spec-draft-model = small\nspec-draft-n-max = 2\nspec-draft-p-min = 0.0\n" in made["llama-cpp"]
    content, dropped = export(folder, "openvino")
    assert content == {"num_assistant_tokens": 2}
    assert "the draft's temperature=0.6" in dropped


def test_a_product_threshold_is_dropped_and_never_copied(tuned) -> None:
    threshold = {"class_path": "ConfidenceThreshold", "init_args": {"threshold": 0.3}}
    content, dropped = export(tuned(DRAFT, controller=threshold), "openvino")
    assert "assistant_confidence_threshold" not in content
    assert "the ConfidenceThreshold controller" in dropped


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_cannot_draft_with_is_refused(engine, tuned) -> None:
    with pytest.raises(ArtifactError, match=f"{engine} has nothing like the TokenRecycling drafter"):
        export(tuned({"class_path": "TokenRecycling"}), engine)


@pytest.mark.parametrize(
    ("drafter", "options", "said"),
    [
        (DRAFT, ["--to", "vllm"], "give --draft, its name or path there"),
        (LOOKUP, ["--to", "vllm", "--draft", "small"], "looks up prompts: leave it out"),
        (LOOKUP, ["--to", "openvino", "--draft", "small"], "--draft is for --to llama-cpp, "),
        (LOOKUP, ["--to", "vllm", "--length", "4"], "--length is for --to acceptance-profile"),
    ],
)
def test_a_wrong_option_is_one_sentence(drafter, options, said, tuned, capsys) -> None:
    assert main([str(tuned(drafter)), *options]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1
    assert not told.out


def test_the_versions_that_fields_were_read_for_are_said(tuned, capsys) -> None:
    assert main([str(tuned(LOOKUP)), "--to", "vllm"]) == 0
    assert "; read for vLLM 0.32.0\n" in capsys.readouterr().err


def test_a_study_of_an_engine_is_exported_to_that_engine_alone(tmp_path) -> None:
    schedule = [[1, 4, 5], [5, 32, 0]]
    given = {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": schedule,
    }
    folder = measured(tmp_path, "vllm", **given)
    assert export(folder, "vllm") == (given, "")
    with pytest.raises(ArtifactError, match="the settings are vllm's, and --to is sglang"):
        export(folder, "sglang")
    broken = measured(tmp_path, "openvino", num_assistant_tokens=0)
    with pytest.raises(ArtifactError, match="num_assistant_tokens must be an integer >= 1, got 0"):
        export(broken, "openvino")


def test_a_server_is_exported_as_the_command_that_was_fastest(tmp_path) -> None:
    command = "serve {target} --port {port} --config '{{\"k\": {tokens}}}'"
    folder = measured(tmp_path, "endpoint", command=command, tokens=4, body={"speculative": True})
    content, dropped = export(folder, "endpoint")
    assert content == "serve '{target}' --port '{port}' --config '{\"k\": 4}'\n"
    assert dropped == "endpoint: dropped the fields of requests, {'speculative': True}"
    with pytest.raises(ArtifactError, match="no command started the engine 'vllm'"):
        export(measured(tmp_path, "vllm", method="ngram", num_speculative_tokens=2), "endpoint")
    unfilled = measured(tmp_path, "endpoint", command="serve {port} {token}", tokens=4)
    with pytest.raises(ArtifactError, match=r"\{token\}, which has no value; did you mean 'tokens'"):
        export(unfilled, "endpoint")


class TestOpenVino:
    """The exported file as OpenVINO GenAI itself reads it."""

    def loaded(self, folder, artifact):
        genai = pytest.importorskip("openvino_genai", reason="pip install 'specexp[openvino]'")
        file = folder / "generation_config.json"
        file.write_text('{"eos_token_id": 2, "max_new_tokens": 8}')
        export(artifact, "openvino", file)
        config = genai.GenerationConfig(str(file))
        config.validate()
        return config

    def test_a_draft_models_chain(self, tmp_path, tuned) -> None:
        config = self.loaded(tmp_path, tuned(DRAFT))
        assert config.num_assistant_tokens == 2
        assert config.assistant_confidence_threshold == 0
        assert config.is_assisting_generation()
        assert config.eos_token_id == 2

    def test_prompt_lookup(self, tmp_path, tuned) -> None:
        config = self.loaded(tmp_path, tuned(LOOKUP))
        assert (config.num_assistant_tokens, config.max_ngram_size) == (2, 4)
        assert config.is_prompt_lookup()

    def test_a_dynamic_length_that_a_study_found(self, tmp_path) -> None:
        config = self.loaded(tmp_path, measured(tmp_path, "openvino", assistant_confidence_threshold=0.4))
        assert config.assistant_confidence_threshold == pytest.approx(0.4)
        assert not config.num_assistant_tokens


class TestAcceptanceProfile:
    def test_of_a_recording(self, tmp_path) -> None:
        turn = recorded_turn(
            [0, 0, MISSED, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        )  # steps of 2: 2; 1 (rank 1 is no chain); 2; 2
        recording = save_recording([turn], tmp_path / "recording", 12)
        profile, dropped = export(recording.folder, "acceptance-profile", length="2")
        assert profile["acceptance_length_histogram"] == {"2": 1, "3": 3}
        assert profile["marginal_accept_rates"] == [1.0, 0.75]
        assert profile["conditional_accept_rates"] == [1.0, 0.75]
        assert profile["mean_accept_length"] == 2.75
        assert profile["validation"]["mean_consistency"]["passed"]
        synthetic = profile["synthetic_acceptance"]
        assert synthetic["vllm"]["synthetic_acceptance_rates"] == [1.0, 0.75]
        assert synthetic["llama-cpp"] == "--spec-synth-rates 1,0.75"
        assert synthetic["sglang"]["SGLANG_SIMULATE_ACC_LEN"] == 2.75
        assert synthetic["trtllm"]["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] == 2
        assert "dropped which prompts" in dropped

    @pytest.mark.parametrize(
        ("source", "options", "said"),
        [
            ("nowhere", {}, "holds no recording.json"),
            ("nowhere", {"length": "0"}, "--length must be an integer from 1 to 64, got '0'"),
        ],
    )
    def test_what_tells_no_acceptance_is_refused(self, source, options, said, tmp_path) -> None:
        with pytest.raises(ArtifactError, match=said):
            export(tmp_path / source, "acceptance-profile", **options)
