"""Constraints by JSON schema, regular expression, choices or grammar, which llguidance reads.

llguidance was chosen over xgrammar 0.2.9. Its masks take longer (some 40 µs against 6 for SmolLM2's 49,152 tokens), but
both are below a hundredth of a step. A schema takes it 2.5 ms to compile against 16. It gives forced text as the
tokenizer's own tokens, where xgrammar gives a string. And it needs nothing else, where xgrammar's wheel for Linux needs
triton (286 MB) on a CPU too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.messages import first_line, shown
from specexp.core.constraint import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions
    from transformers import PreTrainedTokenizerBase

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""The keys of a constraint, as in vLLM's ``structured_outputs``. A constraint has exactly one of them."""
_SEPARATORS: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON is written on one line as Python's ``json.dumps`` does. White space that may be anything would force nothing."""
# keys of a schema with other schemas by name, in a list, and alone
_NAMED = ("$defs", "definitions", "properties", "patternProperties")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")
_compilers: WeakKeyDictionary[PreTrainedTokenizerBase, Compiler] = WeakKeyDictionary()


class ConstraintError(ValueError):
    """Raised if a constraint cannot be used. ``key`` is the path to the value at fault within the constraint."""

    def __init__(self, sentence: str, key: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.key = key


class GrammarConstraint(Constraint):
    """A constraint by one of llguidance's matchers. The findings of a step are kept until its tokens are committed."""

    def __init__(self, matcher: LLMatcher, vocabulary: LLTokenizer, eos_token_ids: frozenset[int]) -> None:
        self.eos_token_ids = eos_token_ids
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._path: list[int] = []  # the matcher has read these tokens after the committed ones
        self._allowed: set[tuple[int, ...]] = set()  # paths
        self._forced: dict[tuple[int, ...], list[int]] = {}
        self._common: list[int] = []  # tokens of the last mask with many

    @override
    def mask(self, path: Sequence[int]) -> NDArray[np.uint8] | None:
        return np.frombuffer(self._matcher.compute_bitmask(), np.uint8) if self._go(path) else None

    @override
    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            before = (*path, *tokens[:count])
            if (*before, token) not in self._allowed:
                # where text is forced, the mask has one token, but the matcher takes others that spell the text too
                if not self._go(before) or self._matcher.compute_ff_tokens()[:1] not in ([], [token]):
                    return count
                if not self._matcher.try_consume_tokens([token]):
                    return count
                self._path.append(token)
                self._allowed.add((*before, token))
        return len(tokens)

    @override
    def some(self, path: Sequence[int], most: int) -> list[int]:
        # in strings and numbers, the same few tokens nearly always show that there are many
        free = len(self._common) >= most and self._go(path) and not self._matcher.compute_ff_tokens()
        if free and all(self._matcher.validate_tokens([token]) for token in self._common):
            return self._common[:most]
        tokens = super().some(path, most)
        self._common = tokens if len(tokens) == most else self._common
        return tokens

    @override
    def forced(self, path: Sequence[int]) -> list[int]:
        key = tuple(path)
        if key not in self._forced:
            # compute_ff_tokens() leaves out the end of the text, which is nearly always right
            text = self._vocabulary.tokenize_bytes(self._matcher.compute_ff_bytes()) if self._go(path) else []
            # the rest of the text is forced after each of its tokens
            self._forced |= {(*key, *text[:at]): text[at:] for at in range(len(text) + 1)}
        return self._forced[key]

    @override
    def commit(self, tokens: Sequence[int]) -> None:
        if not self._go([token for token in tokens if token not in self.eos_token_ids]):  # nothing follows EOS
            raise ValueError(f"the constraint does not allow the tokens {list(tokens)} at this place")
        self._path = []
        self._allowed.clear()
        self._forced.clear()

    def _go(self, path: Sequence[int]) -> bool:
        """Bring the matcher to a path, and return whether all of it is allowed."""
        common = 0
        for known, token in zip(self._path, path, strict=False):
            if known != token:
                break
            common += 1
        if len(self._path) > common:
            self._matcher.rollback(len(self._path) - common)
        rest = list(path[common:])
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._path = list(path[: common + taken])
        return taken == len(rest)


class Compiler:
    """Makes constraints for a tokenizer. Preparing the vocabulary takes a second, so :func:`compiler_of` keeps it.

    Raises:
        ConstraintError: llguidance cannot read the tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: frozenset[int]) -> None:
        from llguidance.hf import from_tokenizer

        self.vocab_size, self.eos_token_ids = vocab_size, eos
        try:
            ends = sorted(eos) or None
            self._tokenizer: LLTokenizer = from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=ends)
        except (ValueError, TypeError) as error:
            raise ConstraintError(
                f"constraints need a fast tokenizer, got {type(tokenizer).__name__} ({first_line(error)})"
            ) from error

    def constraint(self, spec: Mapping[str, Any]) -> GrammarConstraint:
        """Return a new constraint, for one output.

        Args:
            spec: one of ``{"json": schema}``, ``{"json_object": True}``, ``{"regex": pattern}``,
                ``{"choice": [text, ...]}`` and ``{"grammar": text}`` (llguidance's Lark, or GBNF).

        Raises:
            ConstraintError: the constraint cannot be read. Its key leads to the part of a schema at fault.
        """
        from llguidance import LLMatcher

        if len(spec) != 1 or not spec.keys() <= set(KINDS):
            raise ConstraintError(f"a constraint must have exactly one of the keys {list(KINDS)}, got {shown(spec)}")
        ((kind, value),) = spec.items()
        if why := self._fault(kind, value):
            inside = self._faults_inside(value, value) if kind == "json" and isinstance(value, dict) else iter(())
            key, why = next(inside, ((), why))
            raise ConstraintError(why, (kind, *key))
        matcher = LLMatcher(self._tokenizer, _grammar(kind, value), log_level=0)
        return GrammarConstraint(matcher, self._tokenizer, self.eos_token_ids)

    def _fault(self, kind: str, value: Any) -> str:
        """Return in one line why llguidance cannot read a constraint; empty if it can."""
        from llguidance import LLMatcher

        try:
            found = LLMatcher.validate_grammar(_grammar(kind, value), self._tokenizer)
        except (ValueError, TypeError) as error:
            found = str(error)
        return " ".join(found.split())

    def _faults_inside(self, part: Any, schema: Any) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield the places in a schema that cannot be read by themselves, deepest first, each with the reason."""
        shared = {name: schema[name] for name in _NAMED[:2] if name in schema}
        for place, inner in _schemas_in(part):
            for deeper, why in self._faults_inside(inner, schema):
                yield (*place, *deeper), why
            if why := self._fault("json", {**shared, **inner}):
                yield place, why


def compiler_of(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: frozenset[int]) -> Compiler:
    """Return the compiler of a tokenizer, made on first use.

    Args:
        vocab_size: of the model, which may be larger than the tokenizer's.
        eos: tokens that end an output.
    """
    found = _compilers.get(tokenizer)
    if found is None or (found.vocab_size, found.eos_token_ids) != (vocab_size, eos):
        found = _compilers[tokenizer] = Compiler(tokenizer, vocab_size, eos)
    return found


def call_grammar(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the grammar (Lark) of a call ``{"name": ..., "arguments": ...}`` of one of several functions.

    Args:
        schemas: JSON schema of each function's arguments, by the function's name.
    """
    lines = [f"start: {' | '.join(f'call_{number}' for number in range(len(schemas)))}"]
    for number, (name, schema) in enumerate(schemas.items()):
        head = json.dumps(f'{{"name": "{name}", "arguments": ')
        lines.append(f'call_{number}: {head} %json {json.dumps({"x-guidance": _SEPARATORS, **schema})} "}}"')
    return "\n".join(lines)


def _schemas_in(part: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the schemas directly inside a schema, each with its place."""
    for key, value in part.items():
        found: list[tuple[tuple[str, ...], Any]]
        if key in _NAMED and isinstance(value, dict):
            found = [((key, name), inner) for name, inner in value.items()]
        elif key in _LISTED and isinstance(value, list):
            found = [((key, str(number)), inner) for number, inner in enumerate(value)]
        else:
            found = [((key,), value)] if key in _SINGLE else []
        yield from ((place, inner) for place, inner in found if isinstance(inner, dict))


def _grammar(kind: str, value: Any) -> str:
    from llguidance import LLMatcher, grammar_from

    if kind == "json_object":
        kind, value = "json", {"type": "object"}
    if kind == "json":
        schema = json.loads(value) if isinstance(value, str) else value
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SEPARATORS)
    return grammar_from(kind, json.dumps(value) if kind == "choice" else value)  # type: ignore[arg-type]
