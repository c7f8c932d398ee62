#!/usr/bin/env bash
# llama.cpp's server (xllamacpp 2026.10.11549): with drafts, answers end before the context is full, by up to a draft.
# Plain decoding fills the context to its last token. A step with drafts that reach the end of the context yields one
# token and ends the answer, with the same stop_type, also if all drafts are right. So outputs differ, and not only in
# time.
# One would have guessed that drafts get shorter at the context's end and the answer does not.
# Seen: plain decoding reaches token 512 of 512 for four prompts. With a draft model of the same weights and drafts of
# 32 tokens, the answers end at tokens 483 to 501, and with n-grams some end at 507 to 511.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON'
import json
import random
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
    writer.add_token_list([f"t{n}" for n in range(256)]), writer.add_token_types([1] * 256)
    writer.add_token_merges(["t0 t1"])
    writer.add_bos_token_id(0), writer.add_eos_token_id(0)
    writer.add_tensor("token_embd.weight", draw.normal(size=(256, width)).astype(np.float32))
    writer.add_tensor("output.weight", draw.normal(size=(256, width)).astype(np.float32) * 0.3)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=(width, width)).astype(np.float32) * 0.2)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


def served(path, kind=None, draft="", **sizes):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = path, 512, 1
    params.cpuparams.n_threads, params.warmup = 1, False
    if kind:
        params.speculative.types = [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"]]
        params.speculative.draft.mparams.path = draft
        for name, value in sizes.items():
            setattr(params.speculative.draft if draft else getattr(params.speculative, kind.lower()), name, value)
    return xllamacpp.Server(params)


def ends(server):
    """Return, for four prompts, the number of tokens of prompt and answer, which the context limits."""
    drawn, found = random.Random(0), []
    block = [drawn.randrange(1, 250) for _ in range(5)]
    for prompt in (block * 99, block * 90, block * 50, [drawn.randrange(1, 250) for _ in range(400)]):
        body = {"prompt": prompt, "max_tokens": 900, "ignore_eos": True, "return_tokens": True}
        body |= {"temperature": 0, "top_k": 1, "cache_prompt": False}
        request = urllib.request.Request(f"{server.listening_address}/completion", json.dumps(body).encode())
        answer = json.load(urllib.request.urlopen(request))
        assert answer["stop_type"] == "limit"
        found.append(len(prompt) + len(answer["tokens"]))
    return found


model = f"{sys.argv[1]}/model.gguf"
write_model(model)
plain, ngrams = ends(served(model)), ends(served(model, "NGRAM_MAP_K", size_n=2, size_m=16))
drafted = ends(served(model, "DRAFT_SIMPLE", model, n_max=32, p_min=0.0))
print(f"last token of 512: {plain} plain, {ngrams} with n-grams, {drafted} with a draft model")
assert plain == [512] * 4
assert max(drafted) < 510 and min(ngrams) < 512
PYTHON
