#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): temperature 0 does not take the first of equal logits; top_k 1 does.
# The model has two equal logits for every token, n and n + 128. At temperature 0 the default sampler sorts 40 tokens
# for top_k first, and the sort decides between equal ones, so ids of 128 and more appear. With top_k 1 all are below.
# One would have guessed that both are the argmax, as in NumPy and PyTorch. It matters where greedy outputs are compared.
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
    """Write a random Llama of 256 byte tokens, in which each token n has an equal logit at n + 128."""
    draw, width = np.random.default_rng(0), 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512), writer.add_embedding_length(width), writer.add_block_count(1)
    writer.add_feed_forward_length(width), writer.add_head_count(2), writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5), writer.add_rope_dimension_count(32), writer.add_vocab_size(256)
    writer.add_tokenizer_model("gpt2"), writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{n}" for n in range(256)]), writer.add_token_types([1] * 256), writer.add_token_merges(["t0 t1"])
    writer.add_bos_token_id(0), writer.add_eos_token_id(0)
    output = draw.normal(size=(256, width)).astype(np.float32)
    output[128:] = output[:128]
    writer.add_tensor("token_embd.weight", draw.normal(size=(256, width)).astype(np.float32))
    writer.add_tensor("output.weight", output)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=(width, width)).astype(np.float32) * 0.1)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def served(path):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.cpuparams.n_threads, params.warmup = path, 512, 1, False
    return xllamacpp.Server(params)


def ask(server, **fields):
    body = {"prompt": [9, 8, 7, 6, 9, 8, 7, 6, 9, 8], "max_tokens": 40, "ignore_eos": True, "return_tokens": True, **fields}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))


model = f"{sys.argv[1]}/model.gguf"
write_model(model)
server = served(model)
greedy, first = ask(server, temperature=0)["tokens"], ask(server, temperature=0, top_k=1)["tokens"]
print(greedy, first, sep="\n")
assert max(first) < 128 <= max(greedy)
PYTHON
