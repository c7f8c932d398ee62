"""Constraints by JSON schema, regular expression, choices or grammar, which llguidance reads.

llguidance was chosen over xgrammar 0.2.9, though its masks take 40 µs against 6 for SmolLM2's 49,152 tokens. It gives
forced text as the tokenizer's own tokens, and xgrammar's wheel for Linux needs triton (286 MB) on a CPU too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.base.messages import first_line, shown
from specexp.core.constraint import Constraint
from specexp.core.context import common_prefix

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
# keys of a schema that hold schemas by name, of which the first two are definitions, and keys that hold values
_NAMED = ("$defs", "definitions", "properties", "patternProperties")
_VALUES = ("const", "enum", "default", "examples")


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
        # by path: the tokens of the text that must follow, and the number of them that are alone in their masks
        self._texts: dict[tuple[int, ...], tuple[list[int], int]] = {}
        # most strings take the letters, and most numbers the digits: if several are allowed, no mask is needed
        self._usual = [token for byte in b"etaon01234" for token in vocabulary.tokenize_bytes(bytes([byte]))]

    @override
    def mask(self, path: Sequence[int]) -> NDArray[np.uint8]:
        return np.frombuffer(self._matcher.compute_bitmask() if self._go(path) else b"", np.uint8)

    @override
    def allowed(self, path: Sequence[int], tokens: Sequence[int]) -> int:
        for count, token in enumerate(tokens):
            before = (*path, *tokens[:count])
            text, alone = self._text(before)
            if alone and token != text[0]:  # the matcher takes other tokens that spell the text too
                return count
            if not alone and (*before, token) not in self._allowed:
                if not self._go(before):
                    return count
                if not self._matcher.try_consume_tokens([token]):
                    # at the end of its grammar, the matcher has EOS in the mask but does not take it
                    return count + (token in self.eos_token_ids and self._matcher.is_stopped())
                self._path.append(token)
                self._allowed.add((*before, token))
        return len(tokens)

    @override
    def some(self, path: Sequence[int], most: int) -> list[int]:
        if not self._text(tuple(path))[1] and self._go(path):
            found = [*islice((token for token in self._usual if self._matcher.validate_tokens([token])), most)]
            if len(found) == most:
                return found
        return super().some(path, most)

    @override
    def forced(self, path: Sequence[int]) -> list[int]:
        return self._text(tuple(path))[0]

    def _text(self, path: tuple[int, ...]) -> tuple[list[int], int]:
        if path not in self._texts:
            written = self._matcher.compute_ff_bytes() if self._go(path) else b""
            text = self._matcher.compute_ff_tokens() if written else []
            alone = len(text)
            # they leave out the end of the text, whose own tokens are nearly always right
            if end := written[len(self._vocabulary.decode_bytes(text)) :]:
                text += self._vocabulary.tokenize_bytes(end)
            # the rest of the text must follow each of its tokens
            self._texts |= {(*path, *text[:at]): (text[at:], max(0, alone - at)) for at in range(len(text) + 1)}
        return self._texts[path]

    @override
    def commit(self, tokens: Sequence[int]) -> None:
        if not self._go([token for token in tokens if token not in self.eos_token_ids]):  # nothing follows EOS
            raise ValueError(f"the constraint does not allow the tokens {list(tokens)} at this place")
        self._path = []
        self._allowed.clear()
        start, kept = len(tokens), self._texts.items()
        self._texts = {path[start:]: text for path, text in kept if path[:start] == tuple(tokens)}

    def _go(self, path: Sequence[int]) -> bool:
        """Bring the matcher to a path, and return whether all of it is allowed."""
        common = common_prefix(self._path, path)
        if len(self._path) > common:
            self._matcher.rollback(len(self._path) - common)
        rest = list(path[common:])
        taken = self._matcher.try_consume_tokens(rest) if rest else 0
        self._path = list(path[: common + taken])
        return taken == len(rest)


def constraint_of(
    spec: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: frozenset[int]
) -> GrammarConstraint:
    """Return a new constraint, for one output. ``vocab_size`` is the model's, which may exceed the tokenizer's.

    Raises ConstraintError as :func:`grammar_of` does, or if the tokenizer cannot be read.
    """
    from llguidance import LLMatcher

    vocabulary = vocabulary_of(tokenizer, vocab_size, eos)
    matcher = LLMatcher(vocabulary, grammar_of(spec), log_level=0)
    if fault := matcher.get_error():
        raise ConstraintError(" ".join(fault.split()), tuple(spec))
    return GrammarConstraint(matcher, vocabulary, eos)


@lru_cache(maxsize=2)
def vocabulary_of(tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: frozenset[int]) -> LLTokenizer:
    """Return llguidance's form of a tokenizer, as in :func:`constraint_of`. It takes a second, so it is kept."""
    from llguidance.hf import from_tokenizer

    try:
        return from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=sorted(eos) or None)
    except (ValueError, TypeError) as error:
        raise ConstraintError(
            f"constraints need a fast tokenizer, got {type(tokenizer).__name__} ({first_line(error)})"
        ) from error


def grammar_of(spec: Mapping[str, Any]) -> str:
    """Return a constraint in llguidance's own form, which needs no tokenizer.

    ``spec`` is one of ``{"json": schema}``, ``{"json_object": True}``, ``{"regex": pattern}``,
    ``{"choice": [text, ...]}`` and ``{"grammar": text}`` (llguidance's Lark, or GBNF). Raises ConstraintError if it
    cannot be read. The error's key leads to the part of a schema at fault.
    """
    if len(spec) != 1 or not spec.keys() <= set(KINDS):
        raise ConstraintError(f"a constraint must have exactly one of the keys {', '.join(KINDS)}, got {shown(spec)}")
    ((kind, value),) = spec.items()
    fits, wanted = {
        "json": (isinstance(value, dict | str), "a schema"),
        "json_object": (value is True, "true"),
        "choice": (isinstance(value, list) and {type(one) for one in value} == {str}, "a list of one or more texts"),
    }.get(kind, (isinstance(value, str), "a text"))
    if not fits:
        raise ConstraintError(f"the value must be {wanted}, got {shown(value)}", (kind,))
    try:
        grammar = _grammar(kind, value)
    except ConstraintError:
        for place, schema in _schemas_in(value) if kind == "json" else ():
            _grammar(kind, schema, place)  # raises at the deepest schema that cannot be read by itself
        raise
    for place, schema in _schemas_in(json.loads(value) if isinstance(value, str) else value) if kind == "json" else ():
        _check_keys(schema, (kind, *place))
    return grammar


def _grammar(kind: str, value: Any, place: tuple[str, ...] = ()) -> str:
    from llguidance import LLMatcher, grammar_from

    try:
        if kind in ("json", "json_object"):
            schema = {"type": "object"} if kind == "json_object" else value
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_SEPARATORS)
        else:
            grammar = grammar_from(kind, json.dumps(value) if kind == "choice" else value)  # type: ignore[arg-type]
        fault = LLMatcher.validate_grammar(grammar)
    except ValueError as error:
        fault = str(error)
    if fault:
        raise ConstraintError(_plain(fault), (kind, *place))
    return grammar


def _plain(fault: str) -> str:
    """Return llguidance's message in one line, without its names for what it lacks and for options of its own."""
    if keys := re.fullmatch(r"Unimplemented keys: (\[.+\])", fault.strip()):
        return f"{', '.join(json.loads(keys[1]))} must be left out of the schema: not supported here"
    if fault.startswith("oneOf constraints are not supported"):
        return "oneOf with parts that overlap is not supported: use anyOf"
    return " ".join(fault.split())


def _check_keys(schema: Mapping[str, Any], place: tuple[str, ...]) -> None:
    """Raise ConstraintError if an answer may have fewer keys than ``minProperties``.

    llguidance 1.9.1 counts a key that ``properties`` does not name each time, though JSON keeps only its last value.
    """
    is_open = schema.get("additionalProperties", True) is not False or "patternProperties" in schema
    least = schema.get("minProperties", 0)
    if is_open and least > max(1, len(schema.get("required", ()))):
        raise ConstraintError(
            "minProperties must be at most 1, or required as many, if keys may be others than those of properties, "
            f"since such a key may repeat, got {least}",
            place,
        )


def _schemas_in(
    schema: Any, place: tuple[str, ...] = (), around: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the schemas in a schema, deepest first, each with its place and the definitions ``around`` it."""
    if not isinstance(schema, dict):
        return
    around = {**around, **{name: schema[name] for name in _NAMED[:2] if name in schema}}
    for key, value in schema.items():
        named = value if key in _NAMED and isinstance(value, dict) else {}
        listed = enumerate(value) if key not in _VALUES and isinstance(value, list) else ()
        for step, inner in (*named.items(), *listed):
            yield from _schemas_in(inner, (*place, key, str(step)), around)
        if key not in (*_NAMED, *_VALUES):
            yield from _schemas_in(value, (*place, key), around)
    yield place, {**around, **schema}
