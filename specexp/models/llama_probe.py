"""A test pass of a tiny model in llama.cpp, for a child process: llama.cpp may die on this machine's processor."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from specexp.core.runtime import tree_error
from specexp.models.llama_cpp import LlamaCppModel
from specexp.models.llama_file import LlamaFile

_SIZE = 64  # width, vocabulary and context: the smallest for which llama.cpp uses AMX are multiples of 32


def main() -> None:
    """Run passes over one row and over a small tree."""
    with TemporaryDirectory(prefix="specexp-probe-") as folder:
        file = Path(folder) / "tiny.gguf"
        write_tiny(file)
        tree_error(LlamaCppModel(LlamaFile(file), self_check=False))


def write_tiny(file: Path) -> None:
    """Write a random Llama with one layer, 4-bit and 8-bit blocks, and no tokenizer."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer, random = GGUFWriter(file, "llama"), np.random.default_rng(0)
    for add in (writer.add_context_length, writer.add_embedding_length, writer.add_feed_forward_length):
        add(_SIZE)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_SIZE)
    writer.add_tokenizer_model("no_vocab")
    layer = [f"attn_{one}" for one in ("q", "k", "v", "output")] + ["ffn_gate", "ffn_up", "ffn_down"]
    for number, name in enumerate(["token_embd", *(f"blk.0.{one}" for one in layer)]):
        kind = GGMLQuantizationType.Q4_0 if number % 2 else GGMLQuantizationType.Q8_0
        weight = random.normal(size=(_SIZE, _SIZE)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", quantize(weight, kind), raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_SIZE, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
