#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): tokens of a step that checked a draft have no log-probabilities.
# With n_probs 3 every token of plain decoding has its three best alternatives. With ngram-map-k the tokens of steps
# that checked a draft have none, or one entry of log-probability 0, though the target computed their logits.
# One would have guessed that n_probs does not depend on speculation. Near ties cannot be told from errors by them.
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
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=(width, width)).astype(np.float32) * 0.1)
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
    body = {"prompt": [9, 8, 7, 6, 9, 8, 7, 6, 9, 8], "max_tokens": 40, "ignore_eos": True, "return_tokens": True, **fields}
    request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))


model = f"{sys.argv[1]}/model.gguf"
write_model(model)


def informative(server):
    """Return the number of tokens with three alternatives, and of all tokens."""
    answer = ask(server, temperature=0, top_k=1, n_probs=3)
    tops = [one.get("top_logprobs") or [] for one in answer["completion_probabilities"]]
    return sum(len(top) == 3 for top in tops), len(answer["tokens"])


plain, speculative = informative(served(model)), informative(served(model, "NGRAM_MAP_K", size_n=2, size_m=4))
print(plain, speculative)
assert plain[0] == plain[1] == speculative[1] > speculative[0]
PYTHON
