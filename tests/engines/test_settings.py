"""What other engines are told: every rule that their fields keep, and what their deployments load."""

import json

import pytest
import yaml

from specexp.artifacts.validation import ArtifactError, validated
from specexp.engines.settings.hugging_face import HuggingFaceSettings
from specexp.engines.settings.llama_cpp import LlamaCppSettings
from specexp.engines.settings.openvino import OpenVinoSettings
from specexp.engines.settings.sglang import SglangSettings
from specexp.engines.settings.trtllm import TrtllmSettings
from specexp.engines.settings.vllm import VllmSettings

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
EAGLE = {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
SYNTHETIC = {**NGRAM, "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"}
TREE = {"decoding_type": "Eagle3", "max_draft_len": 4, "use_dynamic_tree": True}

BROKEN = [
    (VllmSettings, {**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens must .* 0"),
    (VllmSettings, {**NGRAM, "method": "n-gram"}, "method must .* 'n-gram'"),
    (VllmSettings, {**NGRAM, "num_speculative_token": 4}, "did you mean 'num_speculative_tokens'"),
    (VllmSettings, {**NGRAM, "prompt_lookup_min": 5, "prompt_lookup_max": 2}, "prompt_lookup_min is 5, above"),
    (VllmSettings, {**NGRAM, "suffix_decoding_min_token_prob": 0.1}, "is for method suffix, and it is 'ngram'"),
    (VllmSettings, {"method": "suffix", "num_speculative_tokens": 4, "prompt_lookup_max": 2}, "is for method ngram"),
    (VllmSettings, {"method": "draft_model", "num_speculative_tokens": 4}, "needs model"),
    (VllmSettings, {"method": "custom_class", "num_speculative_tokens": 4, "model": "mine"}, "dotted path of a class"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 5]]}, r"has \[1, 4, 5\]; \[first, last"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, 4], [4, 8, 2]]}, r"has \[4, 8, 2\]"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[3, 1, 4]]}, r"has \[3, 1, 4\]"),
    (VllmSettings, {**SYNTHETIC}, "goes with exactly one of"),
    (VllmSettings, {**NGRAM, "synthetic_acceptance_length": 2.0}, "goes with exactly one of"),
    (VllmSettings, {**SYNTHETIC, "synthetic_acceptance_rates": [0.5, 0.7]}, "none above the one before"),
    (VllmSettings, {**SYNTHETIC, "synthetic_acceptance_rates": [0.5]}, "2 rates are allowed"),
    (VllmSettings, {**SYNTHETIC, "synthetic_acceptance_length": 3.5}, r"at most num_speculative_tokens \+ 1 = 3"),
    (SglangSettings, {"algorithm": "EAGLE3", "num_steps": 3}, "num_steps is given; .* are set all or not at all"),
    (SglangSettings, {**EAGLE, "num_draft_tokens": 3}, "a chain .* verifies 4"),
    (SglangSettings, {**EAGLE, "accept_threshold_acc": 0.9}, "below 1 the output is not the target's"),
    (SglangSettings, {**EAGLE, "ngram_capacity": 10}, "is for algorithm NGRAM"),
    (SglangSettings, {"algorithm": "NGRAM", "num_steps": 3}, "num_steps is for algorithm EAGLE"),
    (SglangSettings, {"algorithm": "NGRAM", "ngram_min_bfs_breadth": 3, "ngram_max_bfs_breadth": 1}, "is 3, above"),
    (SglangSettings, {"algorithm": "STANDALONE"}, "needs draft_model_path"),
    (SglangSettings, {"algorithm": "NGRAM", "adaptive": {"1": {"candidate_steps": [1]}}}, "is for EAGLE and EAGLE3"),
    (SglangSettings, {**EAGLE, "adaptive": {"1": {"candidate_steps": []}}}, r"adaptive.1 is"),
    (SglangSettings, {**EAGLE, "adaptive": {"one": {"candidate_steps": [1]}}}, r"adaptive.one is"),
    (TrtllmSettings, {"decoding_type": "Draft_Target", "max_draft_len": 4}, "needs speculative_model"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "is_keep_all": True}, "is for decoding_type NGram"),
    (TrtllmSettings, {"decoding_type": "NGram", "max_draft_len": 4, "use_dynamic_tree": True}, "decoding_type Eagle3"),
    (TrtllmSettings, {**TREE, "max_total_draft_tokens": 9, "dynamic_tree_max_topK": 2}, "max_total_draft_tokens is 9"),
    (TrtllmSettings, {**TREE, "max_total_draft_tokens": 3, "dynamic_tree_max_topK": 2}, "max_total_draft_tokens is 3"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"1": 3}}, "that of 1 being"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"1": 4, "8": 5}}, "none l"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "acceptance_rate_threshold": 1.5}, "got 1.5"),
    (LlamaCppSettings, {"spec_type": "draft-simple"}, "needs spec_draft_model"),
    (LlamaCppSettings, {"spec_type": "ngram-simple", "spec_draft_n_max": 4}, "is for spec_type draft-simple"),
    (LlamaCppSettings, {"spec_type": "none", "spec_ngram_simple_size_n": 4}, "is for spec_type ngram-simple"),
    (LlamaCppSettings, {"spec_type": "ngram-mod", "spec_ngram_map_k_size_n": 4}, "is for spec_type ngram-map-k"),
    (LlamaCppSettings, {"spec_type": "ngram-map-k", "spec_ngram_map_k_size_n": 2000}, "map_k_size_n must .* 2000"),
    (LlamaCppSettings, {"spec_type": "draft-simple", "spec_draft_model": "d", "spec_draft_n_maks": 4}, "did you mean"),
    (LlamaCppSettings, {"spec_type": "ngram-mod", "spec_ngram_mod_n_min": 9, "spec_ngram_mod_n_max": 4}, "is 9, above"),
    (
        LlamaCppSettings,
        {"spec_type": "draft-simple", "spec_draft_model": "d", "spec_draft_n_min": 5, "spec_draft_n_max": 4},
        "spec_draft_n_min is 5, above spec_draft_n_max 4",
    ),
    (OpenVinoSettings, {"num_assistant_tokens": 4, "assistant_confidence_threshold": 0.4}, "exclude each other"),
    (OpenVinoSettings, {"max_ngram_size": 3}, "needs num_assistant_tokens"),
    (OpenVinoSettings, {"num_assistant_tokens": 9, "tree_depth": 3, "branching_factor": 1}, "3 to 3 are allowed"),
    (OpenVinoSettings, {"num_assistant_tokens": 4, "branching_factor": 2}, "is for EAGLE3's tree_depth"),
    (HuggingFaceSettings, {"prompt_lookup_num_tokens": 4, "num_assistant_tokens": 4}, "exclude each other"),
    (HuggingFaceSettings, {"num_assistant_tokens": 4, "cache_implementation": "static"}, "static does not go with"),
    (HuggingFaceSettings, {"max_matching_ngram_size": 4}, "needs prompt_lookup_num_tokens"),
]  # fmt: skip

OUT_OF_BOUNDS = [
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, -1]]}, "batch_size.0.2 must .* -1"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[0, 4, 2]]}, r"has \[0, 4, 2\]"),
    (VllmSettings, {**NGRAM, "prompt_lookup_min": 0}, "prompt_lookup_min must .* 0"),
    (VllmSettings, {**NGRAM, "draft_tensor_parallel_size": 0}, "draft_tensor_parallel_size must .* 0"),
    (VllmSettings, {**NGRAM, "max_model_len": 0}, "max_model_len must .* 0"),
    (VllmSettings, {**NGRAM, "rejection_sample_method": "lenient"}, "rejection_sample_method must .* 'lenient'"),
    (VllmSettings, {**NGRAM, "draft_sample_method": "best"}, "draft_sample_method must .* 'best'"),
    (VllmSettings, {**SYNTHETIC, "synthetic_acceptance_rates": [1.5, 0.5]}, "got 1.5"),
    (VllmSettings, {**SYNTHETIC, "synthetic_acceptance_rates": [1.0, 0.5], "synthetic_acceptance_length": 2}, "one of"),
    (SglangSettings, {**EAGLE, "accept_threshold_single": 0.5}, "accept_threshold_single is 0.5, and below 1"),
    (SglangSettings, {**EAGLE, "eagle_topk": 2, "adaptive": {"1": {"candidate_steps": [1]}}}, "with eagle_topk 1"),
    (SglangSettings, {**EAGLE, "adaptive": {"1": {"candidate_steps": [-1]}}}, "adaptive.1 is"),
    (SglangSettings, {"algorithm": "NGRAM", "ngram_match_type": "DFS"}, "ngram_match_type must .* 'DFS'"),
    (SglangSettings, {"algorithm": "NGRAM", "ngram_external_sam_budget": 0}, "ngram_external_sam_budget must .* 0"),
    (TrtllmSettings, {"decoding_type": "Medusa", "max_draft_len": 4}, "decoding_type must .* 'Medusa'"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "max_concurrency": 0}, "max_concurrency must .* 0"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"1": 4, "8": -1}}, "got -1"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"4": 2}}, "that of 1 being"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "acceptance_rate_window_size": -1}, "got -1"),
    (LlamaCppSettings, {"spec_type": "draft-simple", "spec_draft_model": "d", "spec_draft_p_min": 1.5}, "got 1.5"),
    (LlamaCppSettings, {"spec_type": "ngram-simpel"}, "spec_type must .* 'ngram-simpel'"),
    (OpenVinoSettings, {"num_assistant_tokens": 0}, "num_assistant_tokens must .* 0"),
    (OpenVinoSettings, {"num_assistant_tokens": 2, "tree_depth": 3, "branching_factor": 2}, "3 to 10 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "given", "said"), [*BROKEN, *OUT_OF_BOUNDS])
def test_a_rule_that_is_broken_is_one_sentence(engine, given, said) -> None:
    with pytest.raises(ArtifactError, match=f"^here: .*{said}"):
        validated(engine, given, "here")


def test_bounds_hold_in_python_too() -> None:
    with pytest.raises(ValueError, match="num_speculative_tokens is 0; allowed is an integer of at least 1"):
        VllmSettings("ngram", 0)


def test_vllm_loads_an_object_with_a_length_by_batch_size() -> None:
    given = {
        **NGRAM,
        "prompt_lookup_max": 5,
        "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 16, 0]],
    }
    assert validated(VllmSettings, given, "here").deployed() == given


def test_sglang_loads_flags_and_an_adaptive_file() -> None:
    adaptive = {"1": {"candidate_steps": [1, 3]}, "8": {"candidate_steps": [0]}, "ema_alpha": 0.2}
    flags, file = SglangSettings(**EAGLE, adaptive=adaptive).deployed().splitlines()
    assert flags == (
        "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-adaptive --speculative-adaptive-config adaptive.json"
    )
    assert json.loads(file) == adaptive


def test_trtllm_loads_yaml_with_numbers_of_requests_as_keys() -> None:
    given = {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"1": 4, "8": 0}}
    made = validated(TrtllmSettings, given, "here").deployed()
    assert yaml.safe_load(made)["speculative_config"]["draft_len_schedule"] == {1: 4, 8: 0}


def test_llama_cpp_loads_a_preset() -> None:
    from configparser import ConfigParser

    preset = ConfigParser()
    preset.read_string("[top]\n" + LlamaCppSettings("ngram-simple", spec_ngram_simple_size_n=3).deployed())
    assert preset["top"]["version"] == "1"
    assert dict(preset["*"]) == {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": "3"}
