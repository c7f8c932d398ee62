"""Where llama.cpp, OpenVINO or a compiled pass dies, models run another way, and one sentence states it."""

from types import SimpleNamespace

import pytest
import torch
from gguf import GGUFReader
from helpers.small_gguf import written

from specexp import load_pair
from specexp.commands.doctor import native
from specexp.core.language_model import LanguageModel
from specexp.engines import http_engines, openvino
from specexp.engines.engine import EngineError
from specexp.engines.http_engines import LlamaCppServer
from specexp.engines.openvino import OpenVINO
from specexp.models import gguf, llama_file, llama_weights
from specexp.models.llama_file import LlamaCppError, LlamaFile
from specexp.models.llama_probe import write_tiny
from specexp.models.runtime import tell_once
from specexp.models.sources import PairError

DEATH = "the compiled pass died (SIGILL) in a test pass"


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A llama.cpp that dies when it is loaded."""
    package, about = tmp_path / "llama_cpp", tmp_path / "llama_cpp_python-0.dist-info"
    for folder in (package, about):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").write_text("import ctypes\nctypes.string_at(0)\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for one in (tell_once, gguf.death_of):
        one.cache_clear()
    yield
    gguf.death_of.cache_clear()


@pytest.mark.usefixtures("planted")
@pytest.mark.slow
def test_where_llama_cpp_dies_specexp_runs_the_file(caplog, monkeypatch):
    """One test, because the child process takes seconds."""
    file = str(written("Llama"))
    pair = load_pair(file, target_dtype="float32")
    sentence = "llama.cpp died (SIGSEGV) in a test pass, so specexp's own passes run"
    assert [one.getMessage() for one in caplog.records if "died" in one.getMessage()] == [f"{sentence} {file}"]
    assert isinstance(pair.target, torch.nn.Module)
    monkeypatch.setattr(llama_file, "library", lambda: None)  # it would kill this process
    with pytest.raises(
        LlamaCppError, match=r"llama.cpp died \(SIGSEGV\) in a test pass, so it cannot run .*set pair.mode"
    ):
        LlamaFile(file)
    (found,) = [one for one in native() if one.topic == "llama-cpp"]
    assert (found.finding, found.verdict) == ("llama.cpp died (SIGSEGV) in a test pass", "note")


def test_a_compiled_pass_that_dies_leaves_the_model_eager(monkeypatch, caplog):
    monkeypatch.setattr(llama_weights, "death_of", lambda *given: DEATH)
    tell_once.cache_clear()
    assert type(load_pair("stdlib").target_runtime()) is LanguageModel
    assert f"running in eager mode, since {DEATH}: set pair.mode to eager" in caplog.text
    with pytest.raises(PairError, match=r"the compiled pass died .* set pair.mode to eager") as caught:
        load_pair("stdlib", mode="compiled")
    assert caught.value.argument == "mode"


def test_an_openvino_that_dies_is_one_sentence(monkeypatch):
    monkeypatch.setattr(openvino, "death_of", lambda library, *given: f"{library} died (SIGILL) in a test pass")
    with pytest.raises(EngineError, match=r"^OpenVINO died \(SIGILL\) in a test pass: leave the engine out"):
        OpenVINO().start(None)


@pytest.mark.parametrize("amx", [False, True])
def test_weights_are_not_repacked_on_processors_with_amx(amx, monkeypatch):
    """llama.cpp crashes with quantized weights there if GCC 12 compiled it."""
    given = SimpleNamespace()
    functions = SimpleNamespace(llama_model_default_params=lambda: given, llama_model_load_from_file=lambda *_: None)
    monkeypatch.setattr(llama_file, "library", lambda: functions)
    monkeypatch.setattr(llama_file, "why_no_llama_cpp", lambda: "")
    for module in (llama_file, http_engines):
        monkeypatch.setattr(module, "has_amx", lambda: amx)
    with pytest.raises(LlamaCppError, match="cannot load the file"):
        LlamaFile(written("Llama"))
    assert given.use_extra_bufts is not amx
    pair = SimpleNamespace(name="target.gguf", target=SimpleNamespace(dtype=torch.bfloat16))
    assert ("--no-repack" in LlamaCppServer(program="mine").words(1, pair)) is amx


def test_the_tiny_model_has_blocks_of_four_and_of_eight_bits(tmp_path):
    write_tiny(tmp_path / "tiny.gguf")
    kinds = {one.tensor_type.name for one in GGUFReader(tmp_path / "tiny.gguf").tensors}
    assert kinds == {"Q4_0", "Q8_0", "F32"}


def test_llama_cpp_passes_its_test_where_it_works():
    pytest.importorskip("llama_cpp")
    assert gguf.why_no_llama_cpp() == ""
