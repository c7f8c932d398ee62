#!/usr/bin/env bash
# transformers 5.23.0: an assistant with another tokenizer reads prompts without their special tokens.
# Universal assisted generation, and its variant for sampling, decode the prompt with skip_special_tokens for the
# assistant. So a chat model drafts without its chat template: there are no marks of where a message begins and ends,
# even if both tokenizers have the same ones. The output stays the target's, but drafts continue a bare text.
# One would have guessed that the assistant reads the text that the target reads.
# Seen: of <|im_start|>user, a question, <|im_end|>, <|im_start|>assistant, the assistant reads user, the question,
# assistant.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.23.0 numpy==2.4.6
"$folder/venv/bin/python" 2>"$folder/log" <<'PYTHON'
import string

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MARKS = ["<|im_start|>", "<|im_end|>"]
torch.manual_seed(0)


def tokenizer(*merges):
    """Return a tokenizer of letters, line breaks, spaces, merged pairs and the marks of a chat."""
    letters = [*string.ascii_lowercase, "\u010a", "\u0120"]  # the last two are a line break and a space
    vocabulary = {text: n for n, text in enumerate([*letters, *map("".join, merges)])}
    tokens = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokens)
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


def model(vocabulary):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **ends, **sizes)).eval()


ours, theirs = tokenizer(("a", "b")), tokenizer(("c", "d"), ("e", "f"))
target, assistant = model(len(ours)), model(len(theirs))
prompt = f"{MARKS[0]}user\nwhy is the sky blue{MARKS[1]}\n{MARKS[0]}assistant\n"
ids = ours(prompt, return_tensors="pt").input_ids
assert ours.decode(ids[0]) == theirs.decode(theirs(prompt).input_ids) == prompt
found = {}
for name, sampled in (("greedy", False), ("sampled", True)):
    read = []
    note = lambda _, given, named: read.append(named["input_ids"][0])  # noqa: E731
    hook = assistant.register_forward_pre_hook(note, with_kwargs=True)
    both = {"tokenizer": ours, "assistant_tokenizer": theirs}
    target.generate(ids, assistant_model=assistant, max_new_tokens=4, do_sample=sampled, **both)
    hook.remove()
    found[name] = theirs.decode(read[0])
print(f"the prompt is {prompt!r}, the assistant reads {found}")
assert set(found.values()) == {"user\nwhy is the sky blue\nassistant\n"}
PYTHON
