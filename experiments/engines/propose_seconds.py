"""Seconds that our drafter takes inside vLLM for each step of a batch, without vLLM.

Everyday prompts are repeated up to the length of the text, and each step appends what the model would say if it copied:
the next token of the prompt. Prints medians and 99th percentiles.

    python -m experiments.engines.propose_seconds --artifact smollm2:tree
"""

from __future__ import annotations

import argparse
from time import perf_counter
from types import SimpleNamespace

import numpy as np

from experiments.serve.load import conditions
from specexp.data import EverydayTasks, Workload
from specexp.deploy.vllm import Proposer
from specexp.models.pair import load_tokenizer


def main() -> None:
    """Time all steps of each batch size, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", default="smollm2:tree")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--length", type=int, default=2000, help="tokens of each text at the first step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--drafts", type=int, default=5, help="most tokens that are drafted")
    options = parser.parse_args()
    tokenizer = load_tokenizer("smollm2")
    prompts = [one.token_ids for one in Workload(EverydayTasks(), max_prompts=max(options.requests)).load(tokenizer)]
    print("| requests | ms, median | ms, 99 of 100 | drafted a step |\n|--:|--:|--:|--:|")
    for requests in options.requests:
        whole = options.length + 3 * options.steps
        texts = np.stack([np.resize(np.array(one, dtype=np.int32), whole) for one in prompts[:requests]])
        settings = SimpleNamespace(revision=options.artifact, num_speculative_tokens=options.drafts)
        model = SimpleNamespace(get_vocab_size=lambda: len(tokenizer), max_model_len=whole + 1)
        proposer = Proposer(SimpleNamespace(speculative_config=settings, model_config=model))
        lengths, seconds, drafted = np.full(requests, options.length, dtype=np.int32), [], 0
        for step in range(options.steps):
            new = 1 if step == 0 else 3
            lengths += 0 if step == 0 else new
            sampled = [row[length - new : length].tolist() for row, length in zip(texts, lengths, strict=True)]
            started = perf_counter()
            drafts = proposer.propose(sampled, lengths, texts)
            seconds.append(perf_counter() - started)
            drafted += sum(map(len, drafts))
        median, most = 1e3 * np.quantile(seconds[1:], [0.5, 0.99])
        print(f"| {requests} | {median:.2f} | {most:.2f} | {drafted / options.steps / requests:.1f} |")
    print("", conditions(f"{options.artifact}; texts of {options.length} tokens"), sep="\n")


if __name__ == "__main__":
    main()
