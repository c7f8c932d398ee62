#!/usr/bin/env bash
# OpenVINO GenAI 2026.4.1: with greedy decoding, assistant_confidence_threshold drafts one token per step, however sure.
# It computes the probability of a drafted token only if logprobs is set. Without it, every draft ends after one token.
# Its samples suggest a threshold of 0.4 in place of num_assistant_tokens. That gains little, and all thresholds are
# equal.
# One would have guessed that a draft goes on while its tokens have probabilities above the threshold.
# Seen: a draft model gives each token probability 0.9, and the target agrees. With threshold 0.4 an answer of 40 tokens
# takes 21 passes. With logprobs 1 in addition it takes 2, which draft 38 tokens at once. With threshold 0.95 it takes
# 21.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 \
  transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON'
import json
import math
import string
import sys
from pathlib import Path

import numpy as np
import openvino
import openvino_genai
from openvino import PartialShape, Type
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHARACTERS = f"{string.ascii_lowercase}{string.ascii_uppercase}{string.digits}+-"
F32 = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


def write_model(folder, certainty=0.999):
    """Write a model that counts: after token n comes n + 1 with the given probability, and after 63 comes 0."""
    inputs = [op.parameter([-1, -1], Type.i64, name=name) for name in ("input_ids", "attention_mask", "position_ids")]
    inputs.append(op.parameter([-1], Type.i32, name="beam_idx"))
    for one in inputs:
        one.output(0).get_tensor().set_names({one.get_friendly_name()})
    ids, mask, _, beams = inputs
    hidden = op.gather(op.constant(np.eye(64, dtype=np.float32)), ids, op.constant(0))
    heads = op.transpose(op.reshape(hidden, op.constant([0, 0, 2, 32]), special_zero=True), op.constant([0, 2, 1, 3]))
    batch = op.gather(op.shape_of(ids, output_type="i64"), op.constant([0]), op.constant(0))
    empty = op.broadcast(op.constant(np.float32(0)), op.concat([batch, op.constant(np.array([2, 0, 32]))], axis=0))
    kept, states = [], []
    for name in ("key", "value"):
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = PartialShape([-1, 2, -1, 32]), Type.f32, name
        variable = Variable(info)
        kept.append(op.concat([op.gather(op.read_value(empty, variable), beams, op.constant(0)), heads], axis=2))
        states.append(op.assign(kept[-1], variable))
    allowed = op.convert(op.unsqueeze(mask, op.constant([1, 2])), "boolean")
    attended = op.transpose(op.scaled_dot_product_attention(heads, *kept, allowed), op.constant([0, 2, 1, 3]))
    attended = op.reshape(attended, op.constant([0, 0, 64]), special_zero=True)
    # attention is computed, as the pipelines expect, and then ignored
    hidden = op.add(hidden, op.multiply(attended, op.constant(np.float32(0))))
    after = np.roll(np.eye(64, dtype=np.float32), 1, 1) * np.float32(math.log(63 * certainty / (1 - certainty)))
    logits = op.result(op.matmul(hidden, op.constant(after), False, False))
    logits.output(0).get_tensor().set_names({"logits"})
    Path(folder).mkdir(parents=True)
    made = openvino.Model([logits], states, inputs)
    openvino.save_model(made, f"{folder}/openvino_model.xml", compress_to_fp16=False)
    Path(folder, "generation_config.json").write_text(json.dumps({"eos_token_id": 63}))
    tokens = Tokenizer(models.BPE({character: n for n, character in enumerate(CHARACTERS)}, []))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    both = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="-"), with_detokenizer=True)
    for made, name in zip(both, ("tokenizer", "detokenizer")):
        openvino.save_model(made, f"{folder}/openvino_{name}.xml")


def passes(threshold, **given):
    """Return the number of the target's passes for an answer of 40 tokens."""
    given |= {"max_new_tokens": 40, "do_sample": False, "ignore_eos": True, "eos_token_id": 63}
    config = openvino_genai.GenerationConfig(assistant_confidence_threshold=threshold, **given)
    made = pipeline.generate(openvino.Tensor(np.array([[7, 8, 9]])), config)
    assert list(made.tokens[0]) == list(range(10, 50))
    return len(made.perf_metrics.raw_metrics.m_batch_sizes)


target, draft = f"{sys.argv[1]}/target", f"{sys.argv[1]}/draft"
write_model(target)
write_model(draft, 0.9)
pipeline = openvino_genai.LLMPipeline(target, "CPU", draft_model=openvino_genai.draft_model(draft, "CPU", **F32), **F32)
found = {threshold: (passes(threshold), passes(threshold, logprobs=1)) for threshold in (0.1, 0.4, 0.95)}
print(f"passes by threshold, without and with logprobs: {found}")
assert found == {0.1: (21, 2), 0.4: (21, 2), 0.95: (21, 21)}
PYTHON
