"""llama.cpp's real server on the embedded pair, converted by the project's own command.

It is the program on the path or where the variable LLAMA_SERVER says, or the wheel xllamacpp.
"""

import os
import shutil
from importlib.util import find_spec

import pytest
import torch

from specexp.data import StdlibFunctions, Workload
from specexp.engines.engine import EngineError
from specexp.engines.http_engines import LlamaCppServer
from specexp.engines.settings import LlamaCppSettings
from specexp.models.pair import load_pair

PROGRAM = os.environ.get("LLAMA_SERVER", "llama-server")
TOKENS = 40

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(PROGRAM) is None and find_spec("xllamacpp") is None,
        reason="pip install 'specexp[llama-server]', or put llama-server on the path",
    ),
]


@pytest.fixture(scope="module")
def pair():
    return load_pair("stdlib", target_dtype="float32")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from experiments.passes.gguf_writer import main as write

    folder = tmp_path_factory.mktemp("gguf")
    write(["stdlib", str(folder)])
    return folder


@pytest.fixture(scope="module")
def expected(pair):
    """The target's own tokens, by prompt."""
    eos = pair.tokenizer.eos_token_id
    greedy = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": eos, "pad_token_id": eos}
    prompts = [one.token_ids for one in Workload(StdlibFunctions("test"), max_prompts=3).load(pair.tokenizer)]
    return {one: pair.target.generate(torch.tensor([one]), **greedy)[0, len(one) :].tolist() for one in prompts}


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("none", {}),
        ("draft-simple", {"spec_draft_n_max": 4}),
        ("draft-simple", {"spec_draft_n_max": 8, "spec_draft_p_min": 0.5}),
        ("ngram-simple", {"spec_ngram_simple_size_n": 2, "spec_ngram_simple_size_m": 4}),
        ("ngram-map-k", {"spec_ngram_map_k_size_n": 2, "spec_ngram_map_k_size_m": 4}),
        ("ngram-map-k4v", {"spec_ngram_map_k4v_size_n": 2, "spec_ngram_map_k4v_size_m": 4}),
        ("ngram-mod", {"spec_ngram_mod_n_match": 4, "spec_ngram_mod_n_min": 1, "spec_ngram_mod_n_max": 4}),
    ],
)
def test_it_gives_the_targets_tokens_however_it_drafts(kind, settings, concurrency, pair, files, expected) -> None:
    eos = pair.tokenizer.eos_token_id
    if kind == "draft-simple":
        settings = {**settings, "spec_draft_model": str(files / "draft.gguf")}
    engine = LlamaCppServer(
        LlamaCppSettings(kind, **settings), str(files / "target.gguf"), PROGRAM, concurrency=concurrency
    )
    running = engine.start(pair)
    try:
        answers = {prompt: running.answer(engine, prompt, TOKENS, frozenset({eos})) for prompt in expected}
    finally:
        running.close()
    for prompt, answer in answers.items():
        assert answer.token_ids == expected[prompt]
        assert answer.finish_reason == ("eos" if eos in expected[prompt] else "length")
        assert answer.accepted_drafts <= answer.drafted_nodes
        assert answer.memory_bytes > 20 * 2**20
    assert "commit" in engine.version or "xllamacpp 20" in engine.version
    drafted = sum(answer.drafted_nodes for answer in answers.values())
    assert (drafted == 0) if kind == "none" else (drafted > 0 or kind != "draft-simple")


def test_an_error_has_the_last_lines_of_the_server(pair, files) -> None:
    settings = LlamaCppSettings("draft-simple", str(files / "no-such-draft.gguf"))
    with pytest.raises(EngineError, match=r"healthy, it exited with status .*(no-such-draft|Failed to init server)"):
        LlamaCppServer(settings, str(files / "target.gguf"), PROGRAM).start(pair)
