"""``python -m specexp.fit.training.evaluate TARGET [DRAFT ...] [--recipe FILE] [--key value]``: a model card's figures.

Every source of a recipe is a domain, measured on its held-out texts: loss, how well each draft agrees with the target,
how the target's continuations end, and the answers to problems that can be checked. Without a recipe the domains are
those that need no file. TARGET is what `load_pair` takes, such as ``stdlib``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexp.bench.looping import loops
from specexp.data.corpus.text_source import Probe, TextSource
from specexp.data.held_out import opening

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, row_length: int = 512
) -> dict[str, float]:
    """Loss on texts, each by itself and cut at ``row_length`` tokens: nats a token and bits a byte."""
    import torch
    import torch.nn.functional as F

    nats = tokens = size = 0.0
    with torch.inference_mode():
        for ids in encoded(tokenizer, texts, row_length):
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits[0, :-1].float()
            nats += float(F.cross_entropy(logits, ids[0, 1:].to(model.device), reduction="sum"))
            tokens += ids.shape[1] - 1
            size += len(tokenizer.decode(ids[0, 1:], skip_special_tokens=True).encode())
    return {
        "nats a token": nats / tokens,
        "bits a byte": nats / math.log(2) / size,
        "bytes a token": size / tokens,
    }


def agreement(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    temperature: float,
    row_length: int = 512,
) -> dict[str, float]:
    """In how many places a draft has its target's most likely token, and the probability that both share.

    What is shared is the mean of ``sum(min(p, q))`` of the distributions at a temperature.
    """
    import torch

    same = common = count = 0.0
    with torch.inference_mode():
        for ids in encoded(tokenizer, texts, row_length):
            p, q = (
                (
                    model(input_ids=ids.to(model.device), use_cache=False).logits[0].float() / temperature
                ).softmax(-1)
                for model in (target, draft)
            )
            same += float((p.argmax(dim=-1) == q.argmax(dim=-1)).sum())
            common += float(torch.minimum(p, q).sum())
            count += ids.shape[1]
    return {"same best token": same / count, f"shared at {temperature}": common / count}


def encoded(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], length: int) -> Iterator[Any]:
    """Token ids ``[1, n]`` of every text that has at least two, closed by EOS, at most ``length`` of each."""
    import torch

    for text in texts:
        ids: Any = tokenizer(text, verbose=False)["input_ids"]
        if len(ids) > 1:
            yield torch.tensor([[*ids, tokenizer.eos_token_id][:length]])


def continuations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    temperature: float,
    max_new_tokens: int = 128,
    batch_size: int = 50,
    seed: int = 0,
) -> list[list[int]]:
    """New token ids of every prompt, an EOS at most at the end; greedy at temperature 0."""
    import torch

    torch.manual_seed(seed)
    tokenizer.padding_side = "left"
    results = []
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_k": 0}
        if temperature > 0
        else {"do_sample": False}
    )
    for first in range(0, len(prompts), batch_size):
        inputs = tokenizer(list(prompts[first : first + batch_size]), return_tensors="pt", padding=True)
        generate: Any = model.generate
        with torch.inference_mode():
            output = generate(
                input_ids=inputs["input_ids"].to(model.device),
                attention_mask=inputs["attention_mask"].to(model.device),
                max_new_tokens=max_new_tokens,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                **sampling,
            )
        for new in output[:, inputs["input_ids"].shape[1] :].tolist():
            end = new.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in new else len(new)
            results.append(new[:end])
    return results


def shares(outputs: Sequence[Sequence[int]], eos_token_id: int) -> dict[str, float]:
    """Share of continuations that loop, share that ended by EOS, and their mean length."""
    count = len(outputs)
    return {
        "loops": sum(loops(output) for output in outputs) / count,
        "ended by EOS": sum(output[-1] == eos_token_id for output in outputs) / count,
        "tokens": sum(len(output) for output in outputs) / count,
    }


def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, probes: Sequence[Probe]
) -> dict[str, dict[str, float]]:
    """By kind of problem, the share of greedy answers that are right, and of those that can be read."""
    told: dict[str, list[bool | None]] = defaultdict(list)
    by_length: dict[int, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_length[probe.ending.max_new_tokens].append(probe)
    for length, some in by_length.items():
        outputs = continuations(
            model, tokenizer, [probe.prompt for probe in some], temperature=0, max_new_tokens=length
        )
        for probe, output in zip(some, outputs, strict=True):
            text = tokenizer.decode(output, skip_special_tokens=True)
            told[probe.kind].append(probe.is_right(probe.ending.cut(text)))
    return {
        kind: {
            "right": sum(one is True for one in values) / len(values),
            "readable": sum(one is not None for one in values) / len(values),
            "problems": len(values),
        }
        for kind, values in told.items()
    }


def domain_table(
    target: str, drafts: Sequence[str], sources: Mapping[str, TextSource], *, texts: int, temperature: float
) -> pd.DataFrame:
    """One row a domain and model: losses, agreement with the target, and how continuations end."""
    import pandas as pd

    from specexp.fit.training.corpus import held_out_texts
    from specexp.pairs.pair import load_pair

    pairs = [load_pair(target, draft) for draft in drafts] or [load_pair(target)]
    tokenizer, eos = pairs[0].tokenizer, pairs[0].tokenizer.eos_token_id
    models = {"target": pairs[0].target}
    models |= {
        Path(pair_draft).name: pair.draft
        for pair_draft, pair in zip(drafts, pairs, strict=False)
        if pair.draft
    }
    if not drafts and pairs[0].draft is not None:
        models["draft"] = pairs[0].draft
    rows = []
    for domain, source in sources.items():
        held = [text.text for text in held_out_texts(source, "test")[:texts]]
        for name, model in models.items() if held else ():
            row: dict[str, Any] = {"domain": domain, "model": name, **losses(model, tokenizer, held)}
            if name != "target":
                row |= agreement(models["target"], model, tokenizer, held, temperature=temperature)
            for value in (0.0, temperature):
                outputs = continuations(model, tokenizer, [opening(text) for text in held], temperature=value)
                row |= {f"{key}, T={value:g}": share for key, share in shares(outputs, eos).items()}
            rows.append(row)
    return pd.DataFrame(rows).set_index(["domain", "model"])


def answer_table(target: str, sources: Mapping[str, TextSource], *, problems: int) -> pd.DataFrame:
    """One row a domain and kind of problem: the share of the target's answers that are right and readable."""
    import pandas as pd

    from specexp.pairs.pair import load_pair

    pair = load_pair(target)
    rows = [
        {"domain": domain, "problem": kind, **shares_of_kind}
        for domain, source in sources.items()
        if (probes := list(islice(source.probes("test"), 2 * problems)))
        for kind, shares_of_kind in answers(pair.target, pair.tokenizer, probes).items()
    ]
    return pd.DataFrame(rows).set_index(["domain", "problem"])


def without_files() -> dict[str, TextSource]:
    """The domains that need no file."""
    from specexp.data.corpus.arithmetic import Arithmetic
    from specexp.data.corpus.blocks_plans import BlocksPlans
    from specexp.data.corpus.python_source import PythonLibrary

    return {"library": PythonLibrary(), "arithmetic": Arithmetic(200), "blocks": BlocksPlans(200)}


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m specexp.fit.training.evaluate", description=__doc__)
    parser.add_argument("target", help="a folder, a hub id, or the name of an embedded pair")
    parser.add_argument(
        "drafts", nargs="*", help="folders or hub ids; an embedded pair's own draft when absent"
    )
    parser.add_argument("--recipe", help="a training whose sources are the domains; --data.* override it")
    parser.add_argument("--texts", type=int, default=100, help="so many held-out texts of every domain")
    parser.add_argument(
        "--problems", type=int, default=100, help="so many problems of every domain that has some"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="of sampled continuations and what is shared"
    )
    options, overrides = parser.parse_known_args(arguments)
    sources = without_files()
    if options.recipe is not None:
        from specexp.fit.__main__ import read_fit

        sources = read_fit(options.recipe, overrides)["data"].sources
    table = domain_table(
        options.target, options.drafts, sources, texts=options.texts, temperature=options.temperature
    )
    print(table.round(3).to_string(), end="\n\n")
    print(answer_table(options.target, sources, problems=options.problems).round(3).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
