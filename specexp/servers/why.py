"""``python -m specexp.why``: explains where a composition or, with ``--endpoint URL``, a server loses time.

A server's costs are fitted to requests with several draft lengths. Its acceptance comes from its own counters.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specexp.bench.signatures import likely_cause, template_cause
from specexp.engines import openai_client as client
from specexp.engines.engine import EngineError
from specexp.replay.advice import why
from specexp.servers.counters import Drafts, draft_counters
from specexp.servers.options import endpoint_parser, prompts_of, run_endpoint_command, server_url, watches_server

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.report.publish import Report

LENGTHS = (1, 2, 4, 8)
OWN, OTHER, LONG = "as it is", "other template", "long prompt"
"""Kinds of requests that do not set a draft length: unchanged, with the chat template toggled, after other prompts."""
PAYS = "none; drafting pays at these costs"
_LENGTH_FIELDS = {"specexp": "speculative", "llamacpp": "speculative.n_max"}
_LONG_PROMPT = 4000  # characters
_LEAST_PROMPTS = 4  # two that keep the server's own draft length, if every second one chooses another


class Answer(NamedTuple):
    """The times and counts of a request. ``sent`` is its draft length, its kind (such as ``OWN``) or a server's URL."""

    sent: str | int
    number: int  # index of its prompt
    tokens: int
    prompt_tokens: int
    first_seconds: float
    seconds: float  # from the first token to the last
    drafts: Drafts | None

    @property
    def rate(self) -> float:
        """Tokens per second after the first token."""
        return (self.tokens - 1) / self.seconds

    @property
    def passes(self) -> tuple[int, int, int]:
        """The numbers of steps without a draft, steps with a draft, and drafted tokens."""
        drafts = self.drafts or Drafts(0, 0, 0)
        return max(0, self.tokens - 1 - drafts.accepted - drafts.steps), drafts.steps, drafts.drafted


class ServerCosts(NamedTuple):
    """Seconds per step: ``plain`` without a draft, otherwise ``fixed`` plus ``token`` for each drafted token.

    Unknown costs are None. ``token`` is 0 if all drafts have about the same length.
    """

    plain: float | None = None
    fixed: float | None = None
    token: float = 0.0

    @classmethod
    def fit(cls, answers: Sequence[Answer]) -> ServerCosts:
        """Fit the costs to the requests that have counts, by non-negative least squares on relative errors."""
        from scipy.optimize import nnls

        used = [one for one in answers if one.sent not in (OTHER, LONG) and (one.sent == 0 or one.drafts)]
        if not used:
            return cls()
        passes = np.array([one.passes for one in used], dtype=float)  # [n, 3]
        drafting = passes[passes[:, 1] > 0]
        if not drafting.size or np.ptp(drafting[:, 2] / drafting[:, 1]) < 0.5:
            passes[:, 2] = 0
        found, _ = nnls(passes / np.array([[one.seconds] for one in used]), np.ones(len(used)))
        known = passes.sum(axis=0).tolist()
        plain, fixed, token = (one if count else None for one, count in zip(found.tolist(), known, strict=True))
        return cls(plain, fixed, token or 0.0)

    def break_even(self, drafts: Drafts) -> float | None:
        """Return the number of accepted tokens per step at which these drafts are as fast as plain decoding."""
        if not self.plain or self.fixed is None or not drafts.steps:
            return None
        return max(0.0, (self.fixed + self.token * drafts.drafted / drafts.steps) / self.plain - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not watches_server(given):
        return why.main(given)
    about = "Measure what a server's drafts cost and gain, and name the likely cause if they do not pay."
    parser = endpoint_parser("why", about, max_prompts=16)
    field = "field that sets a request's draft length; known for our server and llama.cpp's"
    parser.add_argument("--length-field", metavar="NAME", help=field)
    also = "servers of the same model with other draft lengths, if requests cannot choose one"
    parser.add_argument("--also", type=server_url, metavar="URL", nargs="+", default=(), help=also)
    return run_endpoint_command(parser, given, _act)


def _act(given: argparse.Namespace) -> int:
    from specexp.report.publish import publish, terminal

    publish(report(measure(given), given.endpoint), Path(given.output), None, terminal())
    return 0


def measure(given: argparse.Namespace) -> list[Answer]:
    """Send each prompt unchanged, without drafts, to other servers, with the other template, and after other prompts.

    If requests can choose the draft length, every second prompt is instead sent only once, cycling through the lengths.
    This way, a server that learns from its answers has not answered these prompts before. Raises EngineError if a
    server does not answer. Failures of the last two kinds of requests are ignored.
    """
    named = (given.endpoint, given.plain or given.endpoint, *given.also)
    url, plain_url, *others = (one.rstrip("/").removesuffix("/v1") for one in named)
    if same := {url, plain_url} & {*others}:
        raise EngineError(f"--also must be servers with other draft lengths, got {same.pop()} again")
    model = client.model_of(url, given.model, given.seconds, "--model")
    owner = client.owner_of(url, given.seconds)
    field = given.length_field or _LENGTH_FIELDS.get(str(owner))
    answers = list[Answer]()
    texts = prompts_of(given)
    if len(texts) < _LEAST_PROMPTS:
        raise EngineError(f"there must be at least {_LEAST_PROMPTS} prompts, because intervals are over prompts")
    refused = set[str]()
    read = Counter[str]()
    counts = {"return_spec_tokens_details": True} if owner == "sglang" else {}

    def ask(sent: str | int, prompt: str, body: Mapping[str, Any], at: str = url) -> None:
        chat = given.chat != (sent == OTHER)
        limits = {"model": model, "max_tokens": given.max_tokens, "temperature": 0, **counts}
        before = draft_counters(at, given.seconds, read)
        path = client.CHAT if chat else client.COMPLETIONS
        whole = {**client.prompt_fields(prompt, chat), **limits, **body}
        found = client.complete(at, whole, given.seconds, path=path)
        if not found.times:
            raise EngineError(f"{at}: the answer is empty")
        after = draft_counters(at, given.seconds, read)
        meanwhile = {name: count - before[name] for name, count in after.items()}
        sizes = found.tokens or len(found.times), found.prompt_tokens or len(prompt) // 4
        # without a tokenizer, the first piece's share of the text is its share of the tokens
        share = len(found.first) / len(found.text) if sizes[0] > len(found.times) else 0
        first, seconds = found.split(sizes[0], max(1, round(share * sizes[0])))
        if not seconds and sizes[0] > 1:
            raise EngineError(f"{at}: the answer came in one piece, so tokens per second cannot be measured")
        seconds = max(found.generation_seconds or seconds, 1e-9)
        drafts = Drafts.of(found.speculation, meanwhile)
        drafts = drafts and drafts.within(sizes[0])
        answers.append(Answer(sent, number, *sizes, first, seconds, drafts))

    for number, prompt in enumerate(texts):
        if field is not None and number % 2:
            length = LENGTHS[number // 2 % len(LENGTHS)]
            ask(length, prompt, {field: length})
            continue
        ask(OWN, prompt, {})  # first, because the server may learn drafts from earlier answers
        if field is not None:
            ask(0, prompt, {field: 0})
            if answers[-1].passes[1]:  # the server ignores the field
                field = None
                answers.pop()
        if not field and (given.plain or given.plain_body):
            ask(0, prompt, given.plain_body, plain_url)
        for other in others:
            ask(other, prompt, {}, other)
        before = "\n\n".join(texts[number + 1 :] + texts[: number + 1])
        long = "\n\n".join([before] * (1 + _LONG_PROMPT // len(before)))
        for sent, text in ((OTHER, prompt), (LONG, long[-_LONG_PROMPT:])):
            try:
                if sent not in refused:
                    ask(sent, text, {})
            except EngineError:  # no chat template, or a short context
                refused.add(sent)
    return answers


def _drafts(answers: Sequence[Answer], sent: str) -> Drafts:
    """Return the totals over all answers to one kind of request."""
    return Drafts.sum([one.drafts for one in answers if one.sent == sent and one.drafts])


def report(answers: Sequence[Answer], url: str) -> Report:
    """Return the report that the command prints and writes."""
    from specexp.report.publish import Report
    from specexp.report.table import Table, columns

    costs, own = ServerCosts.fit(answers), _drafts(answers, OWN)
    heads = "requests | drafted/step:.1 | ms/step | tokens/step | tokens/s:.1 | first token, ms:.0"
    note = "A number is a length that requests chose. Lengths from 1 on have prompts of their own."
    table = Table("Steps by draft length", columns(heads), notes=[note])
    for sent in (OWN, 0, *LENGTHS, OTHER, LONG):
        some = [one for one in answers if one.sent == sent]
        if not some:
            continue
        plain, drafting, drafted = np.sum([one.passes for one in some], axis=0).tolist()
        steps = max(plain + drafting, 1)
        seconds = sum(one.seconds for one in some)
        tokens = sum(one.tokens - 1 for one in some)
        row: list[float | None] = [drafted / steps, 1e3 * seconds / steps, tokens / steps]
        if sent != 0 and not any(one.drafts for one in some):
            row = [None] * 3
        first = 1e3 * median(one.first_seconds for one in some)
        table.rows.append([str(sent), *row, tokens / seconds, first])
    milliseconds = [None if one is None else 1e3 * one for one in costs]
    return Report(
        {"lengths": table},
        figures={"server": _draw(answers, costs, own)} if own.steps else {},
        summary=dict(zip(("plain_ms", "fixed_ms", "token_ms"), milliseconds, strict=True))
        | {"break_even": costs.break_even(own), "accepted": own.accepted / max(own.steps, 1)},
        title=f"Where does {url} lose time?",
        answer=" ".join(_sentences(answers, costs, own)),
        page="why",
    )


def _sentences(answers: Sequence[Answer], costs: ServerCosts, own: Drafts) -> list[str]:
    """Return sentences about costs, break-even, speed and the likely cause."""
    from specexp.bench.statistics import interval_text, mean_interval

    sent = [one for one in answers if one.sent == OWN]
    if not own.steps:
        first = median(one.first_seconds for one in sent)
        rate = median(one.rate for one in sent)
        found = [f"The first token takes {1e3 * first:.0f} ms, then {rate:.1f} tokens come per second."]
        if any(one.drafts for one in sent):
            return [*found, "The server drafted nothing for these prompts."]
        unknown = "The server reports no counts of drafts, so costs and acceptance are unknown"
        return [
            *found,
            f"{unknown}: start vLLM with --per-request-spec-decode-metrics summary, llama-server with --metrics.",
        ]
    found, length = [], own.drafted / own.steps
    if costs.plain is not None:
        found.append(f"A step without a draft takes {1e3 * costs.plain:.2f} ms.")
    step = f"A step with a draft takes {1e3 * (costs.fixed or 0):.2f} ms"
    if costs.token:
        found.append(f"{step} and {1e3 * costs.token:.2f} ms for each drafted token.")
    else:
        found.append(
            f"{step}. All drafts have about {length:.1f} tokens, so the cost of one is unknown: name the field that "
            "sets a request's draft length with --length-field, or servers with other draft lengths with --also."
        )
    share = f"{100 * own.accepted / own.drafted:.0f} % of its {length:.1f} drafted tokens per step are accepted"
    needed = costs.break_even(own)
    if needed is None:
        found.append(f"{share}. To know the break-even, name a server without drafts with --plain.")
    else:
        reached = f"reaches {own.accepted / own.steps:.2f}: {share}"
        found.append(f"It breaks even at {needed:.2f} accepted tokens per step and {reached}.")
    cause = cause_of(answers, costs, own)
    if plain := {one.number: one.rate for one in answers if one.sent == 0}:
        logs = np.log([one.rate / plain[one.number] for one in sent])
        speed, low, high = np.exp([logs.mean(), *mean_interval(logs)])
        found.append(f"It decodes {speed:.2f}x {interval_text(low, high)} as fast as without drafts.")
        if cause == PAYS and low <= 1 <= high:
            cause = "more prompts are needed to see whether drafting pays"
    return [*found, f"Likely cause: {cause}."]


def cause_of(answers: Sequence[Answer], costs: ServerCosts, own: Drafts) -> str:
    """Return the likely cause of low speed: the draft, its template, the prompt length or the costs."""
    lengths = [
        (one.prompt_tokens, one.drafts.drafted_at[0], one.drafts.accepted_at[0])
        for one in answers
        if one.sent in (OWN, LONG) and one.drafts and one.drafts.drafted_at
    ]
    first, other = ((sum(one.accepted_at[:1]), sum(one.drafted_at[:1])) for one in (own, _drafts(answers, OTHER)))
    chain = sum(own.drafted_at) == own.drafted
    mistake = template_cause(first, other) or likely_cause(own.drafted_at, own.accepted_at, lengths, chain)
    needed, length = costs.break_even(own), own.drafted / own.steps
    if mistake or needed is None:
        return mistake or "unknown without the cost of plain decoding"
    plain, fixed, token = costs.plain or 0.0, costs.fixed or 0.0, costs.token
    tokens = 1 + np.cumsum(own.shares)
    speeds = tokens * plain / np.maximum(fixed + token * np.arange(1, tokens.size + 1), 1e-9)
    best = speeds.max(initial=0.0)
    now = (1 + own.accepted / own.steps) / (1 + needed)
    if token and best > max(1.0, 1.05 * now):
        return f"the draft length; {speeds.argmax() + 1} would give about {best:.2f}x of plain decoding"
    if needed >= length:
        part = "its fixed part" if fixed - plain > token * length else "its drafted tokens"
        return (
            f"the cost of a step with a draft, {1 + needed:.1f} plain steps, most for {part}; it would not pay if all "
            "drafts were accepted"
        )
    if now < 1:
        return "acceptance that is too low for these costs; use another drafter, or none for such prompts"
    return PAYS


def _draw(answers: Sequence[Answer], costs: ServerCosts, own: Drafts) -> Figure:
    """Plot step time against drafted tokens, and acceptance by position with its break-even."""
    from specexp.report.pictures import BLUE, GRAY, INK, ORANGE, legend_below, new_figure

    figure, [[left, right]] = new_figure(9, 3.4, "Costs and acceptance of the server's drafts", 1, 2)
    counted = [one for one in answers if one.sent not in (OTHER, LONG) and one.drafts and one.tokens > 1]
    points = np.array([(one.passes[2], 1e3 * one.seconds) for one in counted])  # [n, 2]
    points /= [[sum(one.passes[:2])] for one in counted]
    left.scatter(points[:, 0], points[:, 1], s=12, color=BLUE, label="a request")
    ends = np.array([0, points[:, 0].max()])
    if costs.fixed is not None:
        left.plot(ends, 1e3 * (costs.fixed + costs.token * ends), color=ORANGE, label="fixed + per token")
    if costs.plain is not None:
        left.axhline(1e3 * costs.plain, color=INK, lw=0.8, ls="--", label="without a draft")
    left.set(xlabel="drafted tokens per step", ylabel="ms per step", ylim=(0, None))
    right.bar(np.arange(len(own.shares)) + 1, own.shares, color=GRAY, label="accepted, by position")
    needed = costs.break_even(own)
    if needed is not None:
        even = needed * own.steps / own.drafted
        right.axhline(even, color=ORANGE, ls=":", label="break-even, mean over positions")
    right.set(xlabel="position in the draft", ylim=(0, 1))
    legend_below(figure, 5)
    return figure
