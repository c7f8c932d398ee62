"""What compiled passes refuse, where they are kept, and when a model runs by its own code instead."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_families import family_model
from helpers.small_models import FULL_ATTENTION, build, small_model

from specexp.base import kernels
from specexp.base.kernels import CannotCompileError, library
from specexp.builders import TokenRecyclingTree
from specexp.builders.static_tree import FixedShape
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.runtime import TokenRequest
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import TokenRecycling
from specexp.models.compiled import CompiledModel
from specexp.models.llama_weights import Field, structures
from specexp.models.runtime import runtime_of, tell_once
from specexp.verifiers import Greedy, KeyedSampling

LLAMA: dict[str, Any] = {**FULL_ATTENTION["Llama"], "head_dim": 16}


@pytest.mark.parametrize(
    ("model", "settings", "sentence"),
    [
        ("GPT2", FULL_ATTENTION["GPT2"], "support Llama, .* but the model is a GPT2LMHeadModel"),
        ("Llama", {**LLAMA, "hidden_act": "gelu"}, "has the activation 'gelu', not 'silu'"),
        ("Llama", {**LLAMA, "hidden_size": 24}, "has a hidden size of 24, not a multiple of 16"),
        ("Llama", {**LLAMA, "head_dim": 12}, "has heads of 12 numbers, not a multiple of 16"),
    ],
)
def test_a_model_that_there_are_no_passes_of_is_refused_or_runs_by_its_own_code(
    model: str, settings: dict[str, Any], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = build(model, settings, dtype=torch.float32)
    with pytest.raises(CannotCompileError, match=sentence):
        runtime_of(made, "compiled")
    tell_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert isinstance(runtime_of(made, "auto"), LanguageModel)
        assert isinstance(runtime_of(made, "auto"), LanguageModel)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("running in eager mode, since ")


def test_float64_and_training_are_refused() -> None:
    with pytest.raises(CannotCompileError, match="is float64, not bfloat16, float16 or float32"):
        CompiledModel(small_model("Llama"))
    with pytest.raises(ValueError, match="the llama model is in training mode"):
        CompiledModel(build("Llama", LLAMA, dtype=torch.float32).train())


def test_a_pass_that_answers_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Llama", LLAMA, dtype=torch.float32)
    honest = CompiledModel._forward
    monkeypatch.setattr(CompiledModel, "_forward", lambda *given: honest(*given).roll(1, dims=-1))
    with pytest.raises(CannotCompileError, match="the llama model failed the self-check of its compiled pass"):
        CompiledModel(model)


def test_an_interrupted_check_restores_the_windows_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    model, checks = family_model("Mistral"), []

    def interrupted(*given: object) -> None:
        checks.append(model.config.sliding_window)
        raise KeyboardInterrupt

    monkeypatch.setattr(CompiledModel, "check_tree", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            CompiledModel(model)
    assert checks == [3, 3]
    assert model.config.sliding_window == 8
    monkeypatch.undo()
    prompt = list(range(3, 40))
    logits = CompiledModel(model).prefill(0, prompt, all_logits=True).logits[0]
    assert logits is not None
    torch.testing.assert_close(logits[-1], model(torch.tensor([prompt])).logits[0, -1], rtol=0, atol=1e-4)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of compiled libraries, which has not been made yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.cache_clear()
    yield tmp_path / "specexp" / "kernels"
    library.cache_clear()


@pytest.mark.usefixtures("cache")
def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    model = build("Llama", LLAMA, dtype=torch.float32)
    with pytest.raises(CannotCompileError, match=r"there is no C\+\+ compiler \(g\+\+ or clang\+\+ on PATH"):
        runtime_of(model, "compiled")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(
        CannotCompileError, match=r"the C\+\+ compiler '/nowhere/c\+\+' \(CXX, or from PATH\) does not run: "
    ):
        runtime_of(model, "compiled")
    assert isinstance(runtime_of(model, "auto"), LanguageModel)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_library_in_a_folder_that_others_can_write_is_not_loaded(
    mode: int, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    cache.mkdir(parents=True)
    cache.chmod(mode)
    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda file: pytest.fail(f"{file} was loaded"))
    model = build("Llama", LLAMA, dtype=torch.float32)
    with pytest.raises(CannotCompileError, match="kernels belongs to another user or can be written by one"):
        runtime_of(model, "compiled")
    assert isinstance(runtime_of(model, "auto"), LanguageModel)


def test_a_library_of_another_user_is_not_loaded(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "planted.cpp"
    source.touch()
    monkeypatch.setattr(kernels, "_key", lambda *given: "key")
    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda file: pytest.fail(f"{file} was loaded"))
    cache.mkdir(mode=0o700, parents=True)
    planted = cache / "planted-key.so"
    planted.touch(mode=0o700)
    planted.chmod(0o722)
    with pytest.raises(CannotCompileError, match=r"planted-key\.so belongs to another user or can be"):
        library(source)
    planted.chmod(0o700)
    monkeypatch.setattr(kernels.os, "geteuid", lambda: planted.stat().st_uid + 1)
    if planted.stat().st_uid == 0:  # root's files are trusted by all, so that only root can make one of another
        os.chown(planted, 1, 1)
        monkeypatch.setattr(kernels.os, "geteuid", lambda: 0)
    with pytest.raises(CannotCompileError, match=r"(kernels|planted-key\.so) belongs to another user"):
        library(source)


def test_the_folder_of_libraries_is_private(cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "empty.cpp"
    source.touch()
    before = os.umask(0o002)
    try:
        library(source)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (cache, *cache.iterdir())] == [0o700, 0o700]


def test_every_source_file_is_part_of_the_key(tmp_path: Path) -> None:
    source, header = tmp_path / "one.cpp", tmp_path / "other.h"
    source.write_text('#include "other.h"')
    header.write_text("// nothing")
    before = kernels._key(source, ["g++"], ())
    header.write_text("// something")
    assert kernels._key(source, ["g++"], ()) != before


def test_a_library_that_does_not_list_all_fields_is_one_sentence() -> None:
    listed = (Field * 3)(Field(b"Model", b"layers", ord("q"), 8), Field(b"Model", None, 0, 16))
    with pytest.raises(CannotCompileError, match="must list all fields of the structure Model in order"):
        structures.__wrapped__(SimpleNamespace(fields=listed))


def test_few_libraries_are_kept(tmp_path: Path) -> None:
    for number in range(12):
        for processor in ("old", "new"):
            (tmp_path / f"one-{processor}-{number}.so").touch()
    kernels._make_room(tmp_path / "one-new-11.so")
    assert len(list(tmp_path.glob("*-new-*"))) == kernels.MOST_KEPT
    assert len(list(tmp_path.glob("*-old-*"))) == 12  # another machine may share the folder


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("wrapper", ["", "env "], ids=["options", "a wrapper"])
def test_a_compiler_may_have_options_and_a_wrapper(wrapper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{wrapper}g++ -O0 -DANSWER=42")
    source = tmp_path / "one.cpp"
    source.write_text('extern "C" int answer() { return ANSWER; }\n')
    assert kernels.library(source).answer() == 42


def test_nothing_grows_with_steps() -> None:
    model = CompiledModel(build("Llama", LLAMA, dtype=torch.float32))
    decoder = Decoder(model, TokenRecycling(), TokenRecyclingTree())
    decoder.generate([1, 2, 3], max_new_tokens=100)
    kept = model.cache.nbytes(), model._rows.numbers.nbytes, model._rows.visible.nbytes
    for sequence in range(3):
        decoder.generate([1, 2, 3], max_new_tokens=100, sequence=sequence)
    assert (model.cache.nbytes(), model._rows.numbers.nbytes, model._rows.visible.nbytes) == kept


def test_a_model_of_another_type_than_it_had_is_refused() -> None:
    model = build("Llama", LLAMA, dtype=torch.bfloat16)
    kept = CompiledModel(model)
    model.float()
    with pytest.raises(ValueError, match=r"was torch.bfloat16 when .* is torch.float32 now: make a new runtime"):
        Decoder(kept).generate([1, 2, 3], max_new_tokens=8)


def test_a_model_with_moved_memory_decodes_as_before() -> None:
    model = build("Llama", LLAMA, dtype=torch.float32)
    kept = CompiledModel(model)
    of_model = {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert not of_model & {one.untyped_storage().data_ptr() for one in kept._weights._kept}
    expected = Decoder(kept).generate([1, 2, 3], max_new_tokens=8).token_ids
    model.share_memory()  # as workers of other processes ask for
    assert Decoder(kept).generate([1, 2, 3], max_new_tokens=8).token_ids == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_logits_are_ranked_by_token_and_broken_ones_give_broken_scores(dtype: torch.dtype) -> None:
    model = build("Llama", {**LLAMA, "vocab_size": 501}, dtype=dtype)
    runtime, tree = CompiledModel(model), TokenTree(TreeShape([-1, 0, 0], [-1, 0, 1]), np.array([3, 4, 5]))
    runtime.prefill(0, [1, 2])
    runtime.request_tokens(0, TokenRequest(Context([1, 2, 3]), Greedy(), learned=8))
    result = runtime.tree_pass([0], [tree])
    best = np.argsort(-result.logits[0].float().numpy(), axis=1, kind="stable")[:, :8]
    assert result.tokens[0].tokens.tolist() == best[:, 0].tolist()
    assert result.tokens[0].top[0].tolist() == best.tolist()
    with torch.no_grad():
        model.lm_head.weight[9] = torch.nan
    runtime.prefill(0, [])
    assert np.isnan(runtime.tree_pass([0], [tree]).tokens[0].scores).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_are_drawn_in_the_pass_as_by_keyed_sampling(dtype: torch.dtype) -> None:
    """Bit by bit, for two lanes with noise of their own; beside a greedy lane, or with top-k, by the verifier."""
    model = build("Llama", {**LLAMA, "vocab_size": 501}, dtype=dtype)
    runtime = CompiledModel(model)
    tree = TokenTree(TreeShape([-1, 0, 0, 1], [-1, 0, 1, 0]), np.array([3, 4, 5, 6]))
    verifier = KeyedSampling(0.7)
    contexts = [Context([1, 2, 3 + slot], seed=slot, noise_temperature=0.7) for slot in (0, 1)]
    for slot, context in enumerate(contexts):
        runtime.prefill(slot, [1, 2])
        runtime.request_tokens(slot, TokenRequest(context, verifier, learned=3 * slot))
    result = runtime.tree_pass([0, 1], [tree, tree])
    for context, (logits, _, computed) in zip(contexts, result.by_tree(), strict=True):
        noise = context.target_noise(3, 3, 501)[tree.shape.depths]
        scores = verifier.scores(logits, noise)
        assert torch.equal(torch.from_numpy(computed.scores), scores.amax(1))
        assert computed.tokens.tolist() == scores.argmax(1).tolist()
        assert computed.top is not None
        assert computed.top[0].shape == (4, 3)
    runtime.request_tokens(1, TokenRequest(contexts[1], Greedy(), learned=0))
    first, second = runtime.tree_pass([0, 1], [tree, tree]).tokens
    assert first is None
    assert second is not None
    runtime.request_tokens(0, TokenRequest(contexts[0], KeyedSampling(0.7, top_k=5), learned=0))
    assert not any(runtime.tree_pass([0], [tree]).tokens)


def test_lanes_with_the_same_fixed_tree_share_its_buffers_but_no_results() -> None:
    """The buffers are placed once for each lane, and the next pass does not change earlier results."""
    runtime = CompiledModel(build("Llama", {**LLAMA, "vocab_size": 501}, dtype=torch.float32))
    shape = FixedShape([-1, 0, 0, 1], [-1, 0, 1, 0])
    trees = [TokenTree(shape, np.array([3, 4, 5, 6]) + slot) for slot in (0, 1)]
    for slot, prompt in enumerate(([1, 2], [7, 8, 9])):
        runtime.prefill(slot, prompt)
        runtime.request_tokens(slot, TokenRequest(Context([*prompt, 3 + slot]), Greedy(), learned=2))
    together = runtime.tree_pass([0, 1], trees)
    first = together.tokens[0].top
    assert first is not None
    before = [values.copy() for values in first]
    alone = [runtime.tree_pass([slot], [tree]).logits[0] for slot, tree in enumerate(trees)]
    assert all(torch.equal(one, other) for one, other in zip(together.logits, alone, strict=True))
    assert runtime._form(shape) is runtime._form(shape)
    runtime.tree_pass([0], [TokenTree(shape, np.array([9, 9, 9, 9]))])
    assert all(np.array_equal(now, then) for now, then in zip(first, before, strict=True))


def test_an_earlier_request_is_replaced_by_the_next_sequence() -> None:
    """The next sequence of the slot is verified by its own rule."""
    model = build("Llama", LLAMA, dtype=torch.float32)
    runtime = CompiledModel(model)
    sampled = Decoder(runtime, verifier=KeyedSampling(1.0)).generate([1, 2, 3], max_new_tokens=9, seed=1)
    runtime.request_tokens(0, TokenRequest(Context([1]), Greedy(), learned=0))
    again = Decoder(runtime, verifier=KeyedSampling(1.0)).generate([1, 2, 3], max_new_tokens=9, seed=1)
    assert again.token_ids == sampled.token_ids
