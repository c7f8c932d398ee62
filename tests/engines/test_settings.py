"""Settings of other engines: the bounds of their fields, and the files that their deployments load."""

import pytest

from specexp.artifacts.validation import ArtifactError, validated
from specexp.engines.settings import LlamaCppSettings, SettingsError, SglangSettings, TrtllmSettings, VllmSettings

pytestmark = pytest.mark.unit

NGRAM = {"method": "ngram", "num_speculative_tokens": 4}

BROKEN = [
    (VllmSettings, {**NGRAM, "num_speculative_tokens": 0}, "num_speculative_tokens must be .*, got 0"),
    (VllmSettings, {**NGRAM, "method": "n-gram"}, "method must be .*, got 'n-gram'"),
    (VllmSettings, {**NGRAM, "num_speculative_token": 4}, "did you mean 'num_speculative_tokens'"),
    (VllmSettings, {**NGRAM, "num_speculative_tokens_per_batch_size": [[1, 4, -1]]}, "batch_size.0.2 must be"),
    (SglangSettings, {"algorithm": "NGRAM", "num_draft_tokens": 0}, "num_draft_tokens must be .*, got 0"),
    (TrtllmSettings, {"decoding_type": "Medusa", "max_draft_len": 4}, "decoding_type must be .*, got 'Medusa'"),
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


def test_llama_cpp_loads_a_preset() -> None:
    from configparser import ConfigParser

    preset = ConfigParser()
    preset.read_string("[top]\n" + LlamaCppSettings("ngram-simple", spec_ngram_simple_size_n=3).deployed())
    assert preset["top"]["version"] == "1"
    assert dict(preset["*"]) == {"spec-type": "ngram-simple", "spec-ngram-simple-size-n": "3"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_max must be at least"),
        ({"method": "suffix", "prompt_lookup_max": 4}, "prompt_lookup_max must be left out if method is 'suffix'"),
        ({"method": "ngram", "suffix_decoding_max_spec_factor": 1.0}, "suffix_decoding_max_spec_factor must be left"),
        ({"method": "draft_model"}, "model must be set if method is 'draft_model'"),
        ({"method": "ngram", "draft_tensor_parallel_size": 4}, "draft_tensor_parallel_size must be left out if method"),
        (
            {"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 3], [2, 8, 1]]},
            r"must have rows \[first, last, length\] in ascending order, got \[2, 8, 1\]",
        ),
        ({"method": "custom_class", "model": "specexp.deploy.vllm.Propser"}, "got 'specexp.deploy.vllm.Propser'"),
    ],
)
def test_settings_that_vllm_would_refuse_are_refused_before_it_starts(given, sentence) -> None:
    with pytest.raises(SettingsError, match=sentence):
        VllmSettings(num_speculative_tokens=4, **given)
