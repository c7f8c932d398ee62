#!/usr/bin/env bash
# OpenVINO GenAI 2026.4.1: with drafts, the number of generated tokens includes those behind a stop string.
# The answer is cut before the stop string, but perf_metrics counts all accepted drafts of the last step, also those
# behind it. So tokens per pass, get_throughput and get_tpot look better than they are, most for short answers and long
# drafts. Plain decoding counts the tokens of the stop string and none behind it.
# One would have guessed that the number of generated tokens does not depend on speculation if the answer is the same.
# Seen: an answer of 3 tokens and a stop string of 2 count as 5 tokens with plain decoding, and as 10 with prompt lookup
# and with a draft model, 8 drafts each.
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


def counted(pipeline, **drafts):
    """Return an answer's tokens, which a stop string cuts, and the numbers of tokens that the metrics give."""
    given = {"max_new_tokens": 40, "do_sample": False, "ignore_eos": True, "eos_token_id": 63, "stop_strings": {"no"}}
    config = openvino_genai.GenerationConfig(**given, **drafts)
    made = pipeline.generate(openvino.Tensor(np.array([[*range(64), *range(10)]])), config)
    metrics = made.perf_metrics
    return list(made.tokens[0]), metrics.get_num_generated_tokens(), sum(metrics.raw_metrics.m_batch_sizes)


model = f"{sys.argv[1]}/model"
write_model(model)
drafter = openvino_genai.draft_model(model, "CPU", **F32)
found = {
    "plain": counted(openvino_genai.LLMPipeline(model, "CPU", **F32)),
    "prompt lookup": counted(
        openvino_genai.LLMPipeline(model, "CPU", prompt_lookup=True, **F32), num_assistant_tokens=8, max_ngram_size=3
    ),
    "draft model": counted(
        openvino_genai.LLMPipeline(model, "CPU", draft_model=drafter, **F32), num_assistant_tokens=8
    ),
}
print(f"tokens, and their number by the metrics and by the sizes of passes: {found}")
assert all(answer == [10, 11, 12] for answer, _, _ in found.values())
assert found["plain"][1:] == (5, 5) and found["prompt lookup"][1:] == found["draft model"][1:] == (10, 10)
PYTHON
