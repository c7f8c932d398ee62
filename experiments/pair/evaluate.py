"""``python -m experiments.pair.evaluate TARGET [OTHER ...] [--recipe FILE] [--key value]``: a model card's figures.

Every source of a recipe is a domain, measured on its held-out texts: loss, how much more or less each other model has
and how well it agrees with the target, how continuations end, and the answers to problems that can be checked.
Without a recipe the domains are those that need no file. TARGET is what `load_pair` takes, such as ``stdlib``; others
are drafts, and targets of other sizes. The tables are Markdown, as model cards repeat them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.pair.corpus.human_eval_tasks import HumanEvalTasks
from specexp.bench.metrics import loops
from specexp.bench.table import Table, columns
from specexp.data.corpus.text_source import Probe, TextSource
from specexp.data.held_out import opening

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class TextLoss(NamedTuple):
    """The loss on one text in nats, its tokens after the first, and the bytes that they stand for."""

    nats: float
    tokens: int
    size: int


def text_losses(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, row_length: int = 512
) -> list[TextLoss]:
    """Loss on texts of at least two tokens, each by itself and cut at ``row_length`` tokens."""
    import torch
    import torch.nn.functional as F

    found = []
    with torch.inference_mode():
        for ids in encoded(tokenizer, texts, row_length):
            logits = model(input_ids=ids.to(model.device), use_cache=False).logits[0, :-1].float()
            nats = F.cross_entropy(logits, ids[0, 1:].to(model.device), reduction="sum")
            size = len(tokenizer.decode(ids[0, 1:], skip_special_tokens=True).encode())
            found.append(TextLoss(float(nats), ids.shape[1] - 1, size))
    return found


def losses(found: Sequence[TextLoss]) -> dict[str, float]:
    """Over all texts together: nats a token, bits a byte and bytes a token."""
    nats, tokens, size = (sum(values) for values in zip(*found, strict=True))
    return {
        "nats a token": nats / tokens,
        "bits a byte": nats / math.log(2) / size,
        "bytes a token": size / tokens,
    }


def more_than(target: Sequence[TextLoss], other: Sequence[TextLoss]) -> tuple[float, float, float]:
    """Nats a token that another model has more, mean over the texts, and its 95 % bootstrap interval, text by text."""
    import numpy as np

    from specexp.bench.statistics import bootstrap_interval

    differences = np.array(
        [b.nats / b.tokens - a.nats / a.tokens for a, b in zip(target, other, strict=True)]
    )
    return float(differences.mean()), *bootstrap_interval(differences)


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
    return {"same best token": same / count, f"shared at T = {temperature:g}": common / count}


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
    """Share of continuations that loop, that ended by EOS, that have 96 tokens or more, and their mean length."""
    count = len(outputs)
    return {
        "loops": sum(loops(output) for output in outputs) / count,
        "ended by EOS": sum(output[-1] == eos_token_id for output in outputs) / count,
        "of 96 or more": sum(len(output) >= 96 for output in outputs) / count,
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


def tables(
    target: str,
    others: Sequence[str],
    sources: Mapping[str, TextSource],
    *,
    texts: int,
    problems: int,
    temperature: float,
    losses_alone: bool = False,
) -> Iterator[Table]:
    """Losses by domain and model, ends of continuations by domain and model, and the target's answers by problem.

    The first of these alone takes a tenth of the time.
    """
    from specexp.fit.corpus import held_out_texts
    from specexp.models.pair import load_pair

    pair = load_pair(target)
    models: dict[str, Any] = {"target": pair.target}
    models |= {Path(other).name: load_pair(target, other).draft for other in others}
    if not others and pair.draft is not None:
        models["draft"] = pair.draft
    loss_table = Table(
        f"Loss on held-out texts, at most {texts} of each domain",
        columns(
            "domain | model | nats a token | bits a byte:.3 | bytes a token | nats more than the target | "
            f"same best token:.0% | shared at T = {temperature:g}:.0%"
        ),
        notes=["Nats more than the target: mean over the texts, with a 95 % bootstrap interval."],
    )
    ends = Table(
        "Continuations of their openings, at most 128 tokens",
        columns("domain | model | T | loops:.1% | ended by EOS:.0% | of 96 or more:.0% | tokens:.0"),
    )
    for domain, source in sources.items():
        held = [text.text for text in held_out_texts(source, "test")[:texts]]
        found: dict[str, list[TextLoss]] = {}
        for name, model in models.items() if held else ():
            found[name] = text_losses(model, pair.tokenizer, held)
            row: dict[str, Any] = {"domain": domain, "model": name, **losses(found[name])}
            if name != "target":
                mean, low, high = more_than(found["target"], found[name])
                row["nats more than the target"] = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
                row |= agreement(pair.target, model, pair.tokenizer, held, temperature=temperature)
            loss_table.add(row)
            for value in () if losses_alone else (0.0, temperature):
                outputs = continuations(
                    model, pair.tokenizer, [opening(text) for text in held], temperature=value
                )
                told = shares(outputs, pair.tokenizer.eos_token_id)
                ends.add({"domain": domain, "model": name, "T": f"{value:g}", **told})
    yield loss_table
    if losses_alone:
        return
    yield ends
    answered = Table(
        f"Greedy answers of the target to held-out problems, at most {2 * problems} of each domain",
        columns("domain | problem | right:.0% | readable:.0% | problems"),
    )
    for domain, source in sources.items():
        probes = list(islice(source.probes("test"), 2 * problems))
        for kind, share in answers(pair.target, pair.tokenizer, probes).items():
            answered.add({"domain": domain, "problem": kind, **share})
    yield answered


def without_files() -> dict[str, TextSource]:
    """The domains that need no file."""
    from experiments.pair.corpus.arithmetic import Arithmetic
    from experiments.pair.corpus.blocks_plans import BlocksPlans
    from experiments.pair.corpus.python_source import PythonLibrary

    return {"library": PythonLibrary(), "arithmetic": Arithmetic(200), "blocks": BlocksPlans(200)}


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.pair.evaluate", description=__doc__)
    parser.add_argument("target", help="a folder, a hub id, or the name of an embedded pair")
    parser.add_argument(
        "others",
        nargs="*",
        help="other models of the same vocabulary: folders, hub ids or embedded drafts; an embedded target's own draft "
        "when absent",
    )
    parser.add_argument("--recipe", help="a training whose sources are the domains; --data.* override it")
    parser.add_argument("--losses", action="store_true", help="the table of losses alone")
    parser.add_argument("--texts", type=int, default=100, help="so many held-out texts of every domain")
    parser.add_argument(
        "--problems", type=int, default=100, help="so many problems of every domain that has some"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="of sampled continuations and what is shared"
    )
    parser.add_argument(
        "--human-eval", metavar="FILE", help="HumanEval's file, or its name on the hub: one domain more"
    )
    options, overrides = parser.parse_known_args(arguments)
    sources = without_files()
    if options.recipe is not None:
        from specexp.fit.command import read_fit

        sources = read_fit(options.recipe, overrides)["data"].sources
    if options.human_eval is not None:
        sources = {**sources, "human-eval": HumanEvalTasks(options.human_eval)}
    measured = tables(
        options.target,
        options.others,
        sources,
        texts=options.texts,
        problems=options.problems,
        temperature=options.temperature,
        losses_alone=options.losses,
    )
    for table in measured:
        print(table.to_markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main())
