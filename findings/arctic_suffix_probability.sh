#!/usr/bin/env bash
# arctic-inference 0.3.0, vLLM's suffix decoding: a text that occurred once before has probability 0.5 at most.
# The end of the text itself counts as an occurrence after which nothing came, so a continuation that followed n of n
# earlier occurrences in a request has probability n / (n + 1). Above 0.5, suffix_decoding_min_token_prob therefore drafts
# nothing from a first repetition. Answers to earlier requests count as n / n. The bound also holds for the product of
# the probabilities of a draft's tokens, not for each of them.
# One would have guessed that a sure continuation has probability 1, and that 0.6 only leaves out doubtful tokens.
# Seen: after "1 2 3 4 5, 1 2" 3 is drafted with probability 0.5, after two rounds with 0.667, after another answer with 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet arctic-inference==0.3.0 numpy==2.3.5 2>"$folder/log"
"$folder/venv/bin/python" <<'PYTHON'
import numpy as np
from arctic_inference.suffix_decoding import SuffixDecodingCache


def draft(prompt, least, answers=()):
    """Return the drafted tokens after a prompt and their probabilities, with earlier answers of other requests."""
    cache = SuffixDecodingCache(max_tree_depth=24, max_cached_requests=10)
    for name, answer in enumerate(answers):
        cache.start_request(name, np.array([100], dtype=np.int32))
        cache.add_active_response(name, np.array(answer, dtype=np.int32))
        cache.stop_request(name)
    cache.start_request("own", np.array(prompt, dtype=np.int32))
    found = cache.speculate("own", np.array(prompt, dtype=np.int32), 4, max_spec_factor=4, min_token_prob=least)
    return found.token_ids, [round(one, 3) for one in found.probs]


once, twice, answer = [1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4, 5, 6]
# 1 and 5 are followed by 0 always, and then three of four times by 1
product = [1, 5, 0] * 4 + [7, 1]
found = {
    "once, 0.5": draft(once, 0.5),
    "once, 0.6": draft(once, 0.6),
    "twice, 0.6": draft(twice, 0.6),
    "another answer, 1": draft([8, 1, 2], 1, [answer]),
    "product, 0.7": draft(product, 0.7),
}
print(*found.items(), sep="\n")
assert found["once, 0.5"] == ([3, 4, 5, 1], [0.5] * 4)
assert found["once, 0.6"] == ([], [])
assert found["twice, 0.6"] == ([3, 4, 5, 1], [0.667] * 4)
assert found["another answer, 1"] == ([3, 4, 5, 6], [1] * 4)
assert found["product, 0.7"] == ([5, 0], [0.8, 0.8])
PYTHON
