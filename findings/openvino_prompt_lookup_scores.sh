#!/usr/bin/env bash
# OpenVINO GenAI 2026.4.1: with prompt lookup, an answer's score leaves out the log-probabilities of accepted drafts.
# With logprobs 1, scores are the sums of the tokens' log-probabilities. Prompt lookup adds 0 for every accepted draft,
# so the more it accepts, the surer an answer looks. A draft model gives the same scores as plain decoding.
# One would have guessed that equal answers of one model have equal scores. Answers cannot be ranked by them.
# Seen: 20 tokens of probability 1/2 have score -13.86 with plain decoding and a draft model, and -3.47, that of the 5
# passes, with prompt lookup.
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


def score(pipeline, **drafts):
    """Return the score of an answer of 20 tokens and its number of passes."""
    given = {"max_new_tokens": 20, "do_sample": False, "ignore_eos": True, "eos_token_id": 63, "logprobs": 1}
    config = openvino_genai.GenerationConfig(**given, **drafts)
    made = pipeline.generate(openvino.Tensor(np.array([[*range(64), *range(10)]])), config)
    assert list(made.tokens[0]) == list(range(10, 30))
    return round(made.scores[0], 2), len(made.perf_metrics.raw_metrics.m_batch_sizes)


model = f"{sys.argv[1]}/model"
write_model(model, 0.5)
drafter = openvino_genai.draft_model(model, "CPU", **F32)
found = {
    "plain": score(openvino_genai.LLMPipeline(model, "CPU", **F32)),
    "prompt lookup": score(
        openvino_genai.LLMPipeline(model, "CPU", prompt_lookup=True, **F32), num_assistant_tokens=4, max_ngram_size=3
    ),
    "draft model": score(openvino_genai.LLMPipeline(model, "CPU", draft_model=drafter, **F32), num_assistant_tokens=4),
}
print(f"score and passes: {found}")
assert found == {"plain": (-13.86, 20), "prompt lookup": (-3.47, 5), "draft model": (-13.86, 5)}
PYTHON
