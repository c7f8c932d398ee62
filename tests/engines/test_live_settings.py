"""Every setting of every engine that runs here changes what the real engine drafts, or is refused with the reason.

The drafts of a setting are seen by the counts of drafted tokens, or by the steps where an engine has no such count.
"""

import dataclasses
import shutil
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from specexp.data import StdlibFunctions, Workload
from specexp.engines.engine import EngineError
from specexp.engines.http_engines import LlamaCppServer
from specexp.engines.hugging_face import HuggingFace
from specexp.engines.openvino import OpenVINO
from specexp.engines.settings import HuggingFaceSettings, LlamaCppSettings, OpenVinoSettings, SettingsError
from specexp.models.pair import load_pair

NEEDS = {
    OpenVINO: (find_spec("openvino_genai"), "pip install 'specexp[openvino]'"),
    LlamaCppServer: (shutil.which("llama-server") or find_spec("xllamacpp"), "pip install 'specexp[llama-server]'"),
    HuggingFace: (True, ""),
}
TREES = {"branching_factor", "tree_depth"}  # only for EAGLE-3 heads, of which there is none here
UNSEEN = {"num_assistant_tokens_schedule", "cache_implementation", "spec_type", "spec_draft_model"}  # not numbers


def ngrams(kind, **given):
    return {f"spec_ngram_{kind}_{name}": value for name, value in given.items()}


# engine, its drafter, its settings, and for each setting another value
LIVE = [
    (
        HuggingFace,
        "model",
        {"num_assistant_tokens": 8},
        {"num_assistant_tokens": 2, "assistant_confidence_threshold": 0.8},
    ),
    (
        HuggingFace,
        "prompt-lookup",
        {"prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 3},
        {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 1},
    ),
    (OpenVINO, "model", {"num_assistant_tokens": 8}, {"num_assistant_tokens": 2}),
    (
        OpenVINO,
        "prompt-lookup",
        {"num_assistant_tokens": 8, "max_ngram_size": 3},
        {"num_assistant_tokens": 1, "max_ngram_size": 1},
    ),
    (
        LlamaCppServer,
        "draft-simple",
        {"spec_draft_n_max": 8, "spec_draft_p_min": 0.6},
        {"spec_draft_n_max": 2, "spec_draft_p_min": 0.0, "spec_draft_n_min": 4},
    ),
    (LlamaCppServer, "ngram-simple", ngrams("simple", size_n=2, size_m=4), ngrams("simple", size_n=3, size_m=8)),
    (LlamaCppServer, "ngram-map-k", ngrams("map_k", size_n=2, size_m=4), ngrams("map_k", size_n=3, size_m=1)),
    (
        LlamaCppServer,
        "ngram-map-k4v",
        ngrams("map_k4v", size_n=2, size_m=4),
        ngrams("map_k4v", size_n=3, size_m=1, min_hits=2),
    ),
    (
        LlamaCppServer,
        "ngram-mod",
        ngrams("mod", n_match=2, n_min=1, n_max=16),  # chains of 4 are rarely shorter
        ngrams("mod", n_match=4, n_min=16, n_max=4),
    ),
]
DEAD = [
    (OpenVinoSettings, {"assistant_confidence_threshold": 0.4}),
    (LlamaCppSettings, {"spec_type": "ngram-simple", "spec_ngram_simple_min_hits": 2}),
    (LlamaCppSettings, {"spec_type": "ngram-map-k", "spec_ngram_map_k_min_hits": 2}),
    (LlamaCppSettings, {"spec_type": "draft-simple", "spec_draft_model": "d.gguf", "spec_draft_p_split": 0.2}),
]


@pytest.mark.parametrize("settings", [HuggingFaceSettings, OpenVinoSettings, LlamaCppSettings])
def test_every_setting_is_tried_or_refused(settings) -> None:
    kinds = {HuggingFace: HuggingFaceSettings, OpenVINO: OpenVinoSettings, LlamaCppServer: LlamaCppSettings}
    tried = {name for engine, _, _, others in LIVE if kinds[engine] is settings for name in others}
    dead = {name for kind, given in DEAD if kind is settings for name in given}
    assert {one.name for one in dataclasses.fields(settings)} - TREES - UNSEEN == (tried | dead) - UNSEEN


@pytest.mark.parametrize(("settings", "given"), DEAD)
def test_a_setting_without_effect_is_refused_with_the_reason(settings, given) -> None:
    with pytest.raises(SettingsError, match=rf"{list(given)[-1]} must be left out: .*(drafts|every)"):
        settings(**given)


@pytest.mark.parametrize("sizes", [(3, 2), (None, 8), (49, None)])
def test_n_grams_longer_than_their_chains_are_refused_since_nothing_would_be_drafted(sizes) -> None:
    with pytest.raises(SettingsError, match=r"drafts nothing below it, got .*; ngram-map-k drafts"):
        LlamaCppSettings("ngram-simple", None, spec_ngram_simple_size_n=sizes[0], spec_ngram_simple_size_m=sizes[1])


@pytest.fixture(scope="module")
def pair():
    return load_pair("stdlib", target_dtype="float32", draft_dtype="float32")


@pytest.fixture(scope="module")
def prompts(pair):
    return [one.token_ids for one in Workload(StdlibFunctions("validation"), max_prompts=8).load(pair.tokenizer)][3:]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from experiments.passes.gguf_writer import main as write

    folder = tmp_path_factory.mktemp("gguf")
    write(["stdlib", str(folder)])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", LIVE, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def test_every_setting_changes_what_is_drafted(case, pair, prompts, files) -> None:
    kind, drafter, settings, others = case
    found, reason = NEEDS[kind]
    if not found:
        pytest.skip(reason)

    def engine(given):
        if kind is not LlamaCppServer:
            return kind(drafter, {HuggingFace: HuggingFaceSettings, OpenVINO: OpenVinoSettings}[kind](**given))
        draft = {"spec_draft_model": str(files / "draft.gguf")} if drafter == "draft-simple" else {}
        return LlamaCppServer(LlamaCppSettings(drafter, **draft, **given), str(files / "target.gguf"))

    running = {}

    def drafts(given):
        chosen = engine(given)
        if chosen.restart_key not in running:
            running[chosen.restart_key] = chosen.start(pair)
        answers = [running[chosen.restart_key].answer(chosen, one, 32, frozenset()) for one in prompts]
        return [one.token_ids for one in answers], [(one.drafted_nodes, one.steps) for one in answers]

    try:
        tokens, before = drafts(settings)
        for name, value in others.items():
            same, after = drafts({**settings, name: value})
            assert same == tokens
            assert after != before, name
    finally:
        for one in running.values():
            one.close()


def test_assisted_generation_needs_a_draft_model_before_it_starts() -> None:
    engine = HuggingFace("model", HuggingFaceSettings(num_assistant_tokens=3))
    without: Any = SimpleNamespace(draft=None)
    with pytest.raises(EngineError, match="drafts must be 'prompt-lookup' without a draft model, or"):
        engine.check(without, 9)
    HuggingFace().check(without, 9)
