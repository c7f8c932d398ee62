"""A GGUF model in llama.cpp answers as the Hugging Face model it was written from, and trees as their branches."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'specexp[llama-cpp]'")
pytest.importorskip("gguf", reason="gguf is not installed: pip install 'specexp[llama-cpp]'")

from helpers.small_gguf import VOCABULARY, runtime, small_llama, tokenizer, written

from specexp.builders import Chain, DySpecGreedy, StaticTree
from specexp.core.loop import Decoder
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree, TreeShape, root_tree
from specexp.drafters import DraftModel, TokenRecycling
from specexp.models import gguf
from specexp.models.gguf import WHOLE, gguf_tokenizer
from specexp.models.llama_cpp import LlamaCppModel
from specexp.models.llama_file import LlamaCppError, LlamaFile
from specexp.scheduling import Batched, Job
from specexp.scheduling.executor import bytes_of, copies
from specexp.testing.runtimes import RuntimeContract
from specexp.verifiers import Greedy

PROMPT = tokenizer()("ab ab cd ab").input_ids
SHAPE = TreeShape.from_rank_paths([[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0], [0, 1, 1], [0, 1, 0, 0]])


def filled(shape, seed=0):
    return TokenTree(shape, np.random.default_rng(seed).integers(VOCABULARY, size=shape.num_nodes + 1))


def straight(model, tokens):
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def close(left, right):
    return torch.allclose(left, right, rtol=0, atol=1e-3)


class TestLlamaCpp(RuntimeContract):
    tolerance = 1e-3

    def runtime(self):
        return runtime("Llama")


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Mistral"])
@pytest.mark.parametrize("settings", [{}, {"tie_word_embeddings": True}, {"head_dim": 16}], ids=str)
def test_a_written_model_answers_as_it_did(name, settings):
    if name == "Qwen2" and "head_dim" in settings:
        pytest.skip("has no form as GGUF")
    model = small_llama(name, **settings)
    logits = runtime(name, **settings).prefill(0, PROMPT, all_logits=True).logits[0]
    assert close(logits, straight(model, PROMPT))


def test_positions_are_stretched_as_llama_3_stretches_them():
    rope = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = small_llama("Llama", rope_parameters=rope)
    prompt = (PROMPT * 12)[:120]
    logits = runtime("Llama", rope_parameters=rope).prefill(0, prompt, all_logits=True).logits[0]
    assert close(logits, straight(model, prompt))


def test_every_row_of_a_tree_sees_its_branch_and_the_next_step_what_was_kept():
    model, language_model = small_llama("Llama"), runtime("Llama")
    text = list(PROMPT)
    assert not language_model.prefill(0, text).logits
    for seed, last in enumerate((9, 0, 6, 3, 8)):
        tree = filled(SHAPE, seed)
        (answers,) = language_model.tree_pass([0], [tree]).logits
        for row in range(tree.num_nodes + 1):
            branch = tree.tokens[[0, *SHAPE.path(row)]].tolist()
            assert close(answers[row], straight(model, text + branch)[-1])
        language_model.cache.commit(0, [0, *SHAPE.path(last)])
        text += tree.tokens[[0, *SHAPE.path(last)]].tolist()
    assert close(language_model.tree_pass([0], [root_tree(11)]).logits[0][0], straight(model, [*text, 11])[-1])


def test_a_context_that_grows_keeps_what_it_holds():
    model, language_model = small_llama("Llama"), runtime("Llama")
    language_model.prefill(0, PROMPT)
    language_model.cache.reserve(20, 3)
    language_model.cache.fork(0, 2, len(PROMPT))
    small = language_model.cache.nbytes()
    language_model.cache.reserve(2000, 3)
    assert language_model.cache.nbytes() > 8 * small
    for slot in (2, 0):
        (answers,) = language_model.tree_pass([slot], [root_tree(4)]).logits
        assert close(answers[0], straight(model, [*PROMPT, 4])[-1])


def test_in_another_process_it_starts_with_an_empty_cache():
    language_model = runtime("Llama")
    language_model.prefill(0, PROMPT)
    other = pickle.loads(pickle.dumps(language_model))
    assert other.length(0) == 0
    assert torch.equal(
        other.prefill(0, PROMPT, all_logits=True).logits[0],
        language_model.prefill(1, PROMPT, all_logits=True).logits[0],
    )


@pytest.mark.parametrize("precision", ["bf16", "f16", "q8_0"])
def test_fewer_bits_answer_nearly_the_same(precision):
    config = {"hidden_size": 64, "intermediate_size": 96}
    file = LlamaFile(written("Llama", precision, **config))
    answers = LlamaCppModel(file).prefill(0, PROMPT, all_logits=True).logits[0]
    exact = straight(small_llama("Llama", **config), PROMPT)
    assert 0 < (answers - exact).norm() / exact.norm() < 0.2


@pytest.mark.parametrize(
    ("weights", "cache", "precision"),
    [
        ("f32", "float32", "float32"),
        ("f32", "float16", "float16"),
        ("f16", "float16", "float16"),
        ("bf16", "float32", "bfloat16"),
        ("q8_0", "float16", "bfloat16"),
    ],
)
def test_what_it_rounds_to_is_the_coarser_of_file_and_cache(weights, cache, precision):
    """By it near ties are told from wrong tokens; the logits themselves are float32."""
    model = LlamaCppModel(LlamaFile(written("Llama", weights, intermediate_size=64), cache), self_check=False)
    assert model.precision == precision
    assert model.dtype == torch.float32


def test_several_sequences_share_the_weights_of_a_file():
    """Each drafts with a cache of its own, and what they take is counted once."""
    parts = copies(Parts(DraftModel(runtime("Llama")), Chain(2), Greedy()), 3)
    took = bytes_of(parts)
    assert took["weights"] == written("Llama").stat().st_size
    jobs = [Job(tuple(PROMPT), sequence=number, max_new_tokens=8) for number in range(3)]
    with Batched(3).open(runtime("Llama"), Parts(DraftModel(runtime("Llama")), Chain(2), Greedy())) as executor:
        results = executor.run(jobs).results
    plain = Decoder(runtime("Llama")).generate(PROMPT, max_new_tokens=8)
    assert [result.token_ids for result in results] == [plain.token_ids] * 3


def test_a_tokenizer_comes_back(tmp_path):
    again = gguf_tokenizer(str(written("Llama")))
    text = "def main(args):\n\treturn 'größer' <|end|>"
    assert again(text).input_ids == tokenizer()(text).input_ids
    assert again.eos_token == "<|end|>"
    assert again.decode(again(text).input_ids) == text


@pytest.mark.parametrize("whole", ["", "{", "[]", '{"model": 1}', "\0"])
def test_a_damaged_tokenizer_in_a_file_is_one_sentence(whole, monkeypatch):
    monkeypatch.setattr(gguf, "gguf_metadata", lambda source: ({WHOLE: whole}, ()))
    with pytest.raises(ValueError, match=r"\.gguf: the tokenizer cannot be read: .+") as caught:
        gguf_tokenizer("damaged.gguf")
    assert "\n" not in str(caught.value)


def message(call):
    with pytest.raises(LlamaCppError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    return said


def test_an_unreadable_file_is_refused_in_a_sentence(tmp_path):
    whole = written("Llama").read_bytes()
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "short.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "header.gguf").write_bytes(whole[:40])
    assert "must be a GGUF file, but it is a folder" in message(lambda: LlamaFile(tmp_path))
    assert "cannot be read: No such file" in message(lambda: LlamaFile(tmp_path / "none.gguf"))
    assert "does not begin with GGUF" in message(lambda: LlamaFile(tmp_path / "text.gguf"))
    assert "llama.cpp cannot load the file" in message(lambda: LlamaFile(tmp_path / "short.gguf"))
    assert "llama.cpp cannot load the file" in message(lambda: LlamaFile(tmp_path / "header.gguf"))
    assert "did you mean 'float32'" in message(lambda: LlamaFile(written("Llama"), "float3"))


def test_more_leaves_than_sequences_are_refused_in_a_sentence():
    language_model = runtime("Llama")
    language_model.prefill(0, PROMPT)
    shape = TreeShape.from_rank_paths([[rank] for rank in range(257)])
    said = message(lambda: language_model.tree_pass([0], [TokenTree(shape, np.zeros(258, dtype=np.int64))]))
    assert "llama.cpp has only 256 sequence ids" in said
    wide = StaticTree([[rank] for rank in range(64)] + [[rank, child] for rank in range(4) for child in range(52)])
    with pytest.raises(ValueError, match="up to 268 leaves, but a pass takes at most 256: lower its budget"):
        Decoder(language_model, TokenRecycling(k=64), wide)
    with pytest.raises(ValueError, match="up to 300 leaves"):
        Decoder(runtime("Llama", max_position_embeddings=640), DraftModel(language_model), DySpecGreedy(budget=300))
    assert Chain(256).max_leaves == 1
