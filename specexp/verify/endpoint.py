"""Is a server's speculation lossless? Its answers with it and without, at temperature 0, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from specexp.core.messages import counted, shown
from specexp.engines.openai_client import Streamed, complete

Verdict = Literal["equal", "near tie", "wrong", "cannot tell"]
_AROUND = 40
"""Characters shown around a divergence."""

Ask = Callable[[str], Streamed]


@dataclass(frozen=True)
class Compared:
    """One prompt.

    Attributes:
        prompt: Its text.
        verdict: What is known of it.
        at: Characters that both answers have in common.
        gap: By how much plain decoding prefers its own token there, in log-probability; None where nothing tells.
        why: What the verdict is founded on.
        plain: The answer without speculation, around the place.
        speculative: The answer with it.
        tokens: How many tokens were compared.
    """

    prompt: str
    verdict: Verdict
    at: int = 0
    gap: float | None = None
    why: str = ""
    plain: str = ""
    speculative: str = ""
    tokens: int = 0


@dataclass(frozen=True)
class EndpointReport:
    """All prompts.

    Attributes:
        compared: Prompt by prompt.
        asked: What was asked of whom, for whoever repeats it.
    """

    compared: Sequence[Compared]
    asked: Mapping[str, Any] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """Prompts of a verdict."""
        return sum(one.verdict == verdict for one in self.compared)

    @property
    def exit_code(self) -> int:
        """0: no answer is wrong; 1: one is; 3: an answer cannot be judged."""
        if self.count("wrong"):
            return 1
        return 3 if self.count("cannot tell") else 0

    def counts(self) -> str:
        """How many prompts came to which verdict."""
        verdicts: tuple[Verdict, ...] = get_args(Verdict)
        return ", ".join(f"{self.count(verdict)} {verdict}" for verdict in verdicts)

    def text(self) -> str:
        """Markdown that can be attached to an issue."""
        tokens = sum(one.tokens for one in self.compared)
        lines = [
            f"# Speculation on against off, temperature 0: {counted(len(self.compared), 'prompt')}, {tokens} tokens",
            "",
            self.counts(),
            "",
            f"Asked: `{json.dumps(dict(self.asked))}`",
        ]
        for one in self.compared:
            if one.verdict != "equal":
                lines += [
                    "",
                    f"## {one.verdict}: {shown(one.prompt)}",
                    f"The answers part after {counted(one.at, 'character')}: {one.why}.",
                    f"- off: `{one.plain!r}`",
                    f"- on: `{one.speculative!r}`",
                ]
        return "\n".join(lines) + "\n"


def asking(url: str, model: str, tokens: int, body: Mapping[str, Any], seconds: float) -> Ask:
    """What asks a server for greedy answers, with the best few log-probabilities where it tells them."""

    def ask(prompt: str) -> Streamed:
        given = {
            "model": model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "logprobs": 5,
            **body,
        }
        return complete(url, given, seconds)

    return ask


def compare_endpoints(
    prompts: Iterable[str],
    speculative: Ask,
    plain: Ask,
    tolerance: float,
    tell: Callable[[Compared], None] = lambda one: None,
) -> list[Compared]:
    """Ask both for every prompt.

    A different answer is wrong only if plain decoding repeats itself and clearly prefers its own token, by the
    server's log-probabilities. Without these it cannot be judged.

    Args:
        prompts: Texts.
        speculative: Asks with speculation.
        plain: Asks without.
        tolerance: Largest gap of log-probabilities at which rounding may decide otherwise.
        tell: Called with every prompt's verdict.

    Raises:
        EngineError: A server does not answer.
    """
    found = []
    for prompt in prompts:
        off, on = plain(prompt), speculative(prompt)
        one = _compared(prompt, off, on, plain, tolerance)
        tell(one)
        found.append(one)
    return found


def _compared(prompt: str, off: Streamed, on: Streamed, plain: Ask, tolerance: float) -> Compared:
    tokens = off.tokens or len(off.pieces) or len(off.times)
    if off.text == on.text:
        return Compared(prompt, "equal", tokens=tokens)
    at = next(
        (place for place, pair in enumerate(zip(off.text, on.text, strict=False)) if pair[0] != pair[1]),
        min(len(off.text), len(on.text)),
    )
    parted = Parted(prompt, at, off.text, on.text, tokens)
    if plain(prompt).text != off.text:
        return parted.by_itself()
    return parted.judged(_told_gap(off, on, at), "the server's own log-probabilities", tolerance)


@dataclass(frozen=True)
class Parted:
    """Two answers to a prompt that are not the same.

    Attributes:
        prompt: Its text.
        at: Characters that they have in common.
        plain: The answer without speculation.
        speculative: The answer with it.
        tokens: How many tokens were compared.
    """

    prompt: str
    at: int
    plain: str
    speculative: str
    tokens: int

    def by_itself(self) -> Compared:
        """The verdict where plain decoding said another thing when it was asked again."""
        return self._told("cannot tell", None, "plain decoding does not give its own answer twice")

    def judged(self, gap: float | None, source: str, tolerance: float) -> Compared:
        """The verdict by how far plain decoding prefers its own token.

        Args:
            gap: In log-probability; None where nothing tells.
            source: What told it.
            tolerance: Largest gap at which rounding may decide otherwise.
        """
        if gap is None:
            why = "there are no log-probabilities of the token, so a near tie cannot be told from a mistake"
            return self._told("cannot tell", None, why)
        if gap < -tolerance:
            why = f"{source} prefers the speculative token by {-gap:.3g}, so it is not the model that decodes plainly"
            return self._told("cannot tell", gap, why)
        why = f"plain decoding prefers its own token by {gap:.3g} in log-probability there, by {source}"
        return self._told("near tie" if gap <= tolerance else "wrong", gap, why)

    def _told(self, verdict: Verdict, gap: float | None, why: str) -> Compared:
        around = slice(max(0, self.at - _AROUND), self.at + _AROUND)
        plain, speculative = self.plain[around], self.speculative[around]
        return Compared(self.prompt, verdict, self.at, gap, why, plain, speculative, self.tokens)


def _told_gap(off: Streamed, on: Streamed, at: int) -> float | None:
    """By plain decoding's log-probabilities of the token in which the answers part; of a token not among the best it
    told, at least so much. None where it told them not of every token, or where an answer has ended, for then the
    token is the one that ends it, which no text shows.
    """
    if "".join(off.pieces) != off.text or len(off.logprobs) != len(off.pieces):
        return None
    if at == len(off.text) or at == len(on.text):
        return None
    begin = 0
    for piece, best in zip(off.pieces, off.logprobs, strict=True):
        if at < begin + len(piece):
            if piece not in best or not best:
                return None
            rest = on.text[begin:]
            others = [
                value for text, value in best.items() if text and text != piece and rest.startswith(text)
            ]
            return best[piece] - max(others, default=min(best.values()))
        begin += len(piece)
    return None
