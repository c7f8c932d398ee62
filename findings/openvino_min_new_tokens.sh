#!/usr/bin/env bash
# OpenVINO GenAI 2026.4.1: with drafts, min_new_tokens forbids end tokens behind the minimum too, so greedy answers change.
# All tokens of a step that begins before the minimum may not be an end token, also those far behind it. So
# min_new_tokens 3 can forbid the end of an answer of 10 tokens, which gets the second best token there and goes on.
# One would have guessed that min_new_tokens has no effect on tokens behind the minimum.
# Seen: prompt lookup and a draft model, 8 drafts, continue an answer of 10 tokens to the limit of 40 with
# min_new_tokens 3. Plain decoding and drafts without min_new_tokens give it 10.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 \
  transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" 2>"$folder/log" <<'PYTHON'
import json
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


def write_model(folder):
    """Write a model that counts: after token n comes n + 1, second best is n + 2, and after 63 comes 0."""
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
    one = np.eye(64, dtype=np.float32)
    after = 10 * np.roll(one, 1, 1) + 5 * np.roll(one, 2, 1)
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


def lengths(pipeline, **drafts):
    """Return by min_new_tokens the length of an answer that counts from 10 and ends with token 19."""
    given = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": 63, "stop_token_ids": {19, 63}, **drafts}
    configs = {least: openvino_genai.GenerationConfig(min_new_tokens=least, **given) for least in (0, 3)}
    prompt = openvino.Tensor(np.array([[*range(64), *range(10)]]))
    return {least: len(pipeline.generate(prompt, config).tokens[0]) for least, config in configs.items()}


model = f"{sys.argv[1]}/model"
write_model(model)
drafter = openvino_genai.draft_model(model, "CPU", **F32)
found = {
    "plain": lengths(openvino_genai.LLMPipeline(model, "CPU", **F32)),
    "prompt lookup": lengths(
        openvino_genai.LLMPipeline(model, "CPU", prompt_lookup=True, **F32), num_assistant_tokens=8, max_ngram_size=3
    ),
    "draft model": lengths(
        openvino_genai.LLMPipeline(model, "CPU", draft_model=drafter, **F32), num_assistant_tokens=8
    ),
}
print(f"tokens by min_new_tokens: {found}")
assert found == {"plain": {0: 10, 3: 10}, "prompt lookup": {0: 10, 3: 40}, "draft model": {0: 10, 3: 40}}
PYTHON
