"""Settings of other engines: the bounds of their fields, and the files that their deployments load."""

import json

import pytest
import yaml

from specexp.artifacts.validation import ArtifactError, validated
from specexp.engines.settings import LlamaCppSettings, SglangSettings, TrtllmSettings, VllmSettings

pytestmark = pytest.mark.unit

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
EAGLE = {"algorithm": "EAGLE3", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}

BROKEN = [
    (VllmSettings, {**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens must be .*, got 0"),
    (VllmSettings, {**NGRAM, "method": "n-gram"}, "method must be .*, got 'n-gram'"),
    (VllmSettings, {**NGRAM, "num_speculative_token": 4}, "did you mean 'num_speculative_tokens'"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, -1]]}, "batch_size.0.2 must be"),
    (SglangSettings, {**EAGLE, "accept_threshold_acc": 0.9}, "accept_threshold_acc must be .*, got 0.9"),
    (SglangSettings, {"algorithm": "NGRAM", "ngram_match_type": "DFS"}, "ngram_match_type must be .*, got 'DFS'"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "acceptance_rate_threshold": 1.5}, "got 1.5"),
    (TrtllmSettings, {"decoding_type": "SA", "max_draft_len": 4, "draft_len_schedule": {"1": 4, "8": -1}}, "got -1"),
    (LlamaCppSettings, {"spec_type": "draft-simple"}, "spec_draft_model must be set"),
    (LlamaCppSettings, {"spec_type": "draft-simple", "spec_draft_model": "org/name"}, "GGUF file, got 'org/name'"),
    (LlamaCppSettings, {"spec_type": "ngram-simple", "spec_draft_n_max": 4}, "spec_draft_n_max must be left out"),
    (LlamaCppSettings, {"spec_type": "ngram-simple", "spec_ngram_simple_size_n": 60}, "got 48; ngram-map-k drafts"),
    (LlamaCppSettings, {"spec_type": "ngram-map-k", "spec_ngram_map_k_size_n": 2000}, "map_k_size_n must be"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "given", "message"), BROKEN)
def test_a_value_out_of_bounds_is_one_sentence(engine, given, message) -> None:
    with pytest.raises(ArtifactError, match=f"^here: .*{message}"):
        validated(engine, given, "here")


def test_vllm_loads_an_object_with_a_length_by_batch_size() -> None:
    lengths = {"num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 16, 0]]}
    given = {**NGRAM, "prompt_lookup_max": 5, **lengths}
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
