#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): ngram-simple drafts nothing if its chains are shorter than its n-gram.
# With --spec-type ngram-simple, size_n 3 and size_m 2 draft no token at all, while size_m 3 drafts. min_hits changes
# nothing: 50 required occurrences draft as many tokens as one. ngram-map-k drafts with size_n 3 and size_m 2.
# One would have guessed that size_m is only the length of the chain, so that 2 drafts up to two tokens, and that no
# n-gram occurs 50 times in 50 tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON'
import json
import sys
import urllib.request

import gguf
import numpy as np
import xllamacpp


def write_model(path):
    """Write a random Llama of 256 byte tokens."""
    draw, width = np.random.default_rng(0), 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512), writer.add_embedding_length(width), writer.add_block_count(1)
    writer.add_feed_forward_length(width), writer.add_head_count(2), writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_dimension_count(32), writer.add_vocab_size(256)
    writer.add_tokenizer_model("gpt2"), writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{n}" for n in range(256)]), writer.add_token_types([1] * 256), writer.add_token_merges(["t0 t1"])
    writer.add_bos_token_id(0), writer.add_eos_token_id(0)
    output = draw.normal(size=(256, width)).astype(np.float32)
    writer.add_tensor("token_embd.weight", draw.normal(size=(256, width)).astype(np.float32))
    writer.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=(width, width)).astype(np.float32) * 0.3)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def served(path, kind=None, **sizes):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.cpuparams.n_threads, params.warmup = path, 512, 1, False
    if kind:
        params.speculative.types = [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"]]
        for name, value in sizes.items():
            setattr(getattr(params.speculative, kind.lower()), name, value)
    return xllamacpp.Server(params)


def ask(server, **fields):
    body = {"prompt": [9, 8, 7, 6, 9, 8, 7, 6, 9, 8], "max_tokens": 200, "ignore_eos": True, "return_tokens": True, **fields}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))


model = f"{sys.argv[1]}/model.gguf"
write_model(model)


def drafted(kind, **sizes):
    server = served(model, kind, **sizes)
    return ask(server, temperature=0, top_k=1)["timings"].get("draft_n", 0)


counts = {
    "simple 3 2": drafted("NGRAM_SIMPLE", size_n=3, size_m=2),
    "simple 3 3": drafted("NGRAM_SIMPLE", size_n=3, size_m=3),
    "simple 3 3, 50 hits": drafted("NGRAM_SIMPLE", size_n=3, size_m=3, min_hits=50),
    "map-k 3 2": drafted("NGRAM_MAP_K", size_n=3, size_m=2),
}
print(counts)
assert counts["simple 3 2"] == 0 < min(counts["simple 3 3"], counts["map-k 3 2"])
assert counts["simple 3 3, 50 hits"] == counts["simple 3 3"]
PYTHON
