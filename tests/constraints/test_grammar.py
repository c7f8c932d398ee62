"""Grammars: answers parse and validate, with drafts as without, and a schema that cannot be read is named."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import pytest
import torch
from helpers.small_models import byte_tokenizer

from specexp import Decoder
from specexp.builders import Chain
from specexp.constraints.grammar import ConstraintError, GrammarConstraint, constraint_of, vocabulary_of
from specexp.core.constraint import tokens_in
from specexp.core.language_model import LanguageModel
from specexp.core.sampling import allowed_after
from specexp.core.tree import root_tree
from specexp.drafters import Grammar, PromptLookup, Union
from specexp.models.pair import load_tokenizer
from specexp.testing.fakes import hashed_model

TOKENIZER = byte_tokenizer()
EOS = frozenset({TOKENIZER.eos_token_id})


def constraint_by(spec: dict[str, Any]) -> GrammarConstraint:
    return constraint_of(spec, TOKENIZER, len(TOKENIZER), EOS)


def schema_of(random: Random, depth: int = 0) -> dict[str, Any]:
    """A random schema of the kinds that people write: nested, enum, pattern, arrays, references, numbers, unions."""
    simple: list[dict[str, Any]] = [
        {"type": "string", "maxLength": random.randint(0, 5)},
        {"type": "string", "pattern": random.choice(["^[a-c]{2}$", "^x{1,4}y?z{1,3}$", "^(yes|no)$"])},
        {"enum": random.sample(["red", "green", "blue", 3, None, True], 3)},
        {"const": random.choice(["fixed", 7])},
        {"type": "integer", "minimum": -5, "maximum": random.randint(0, 3000)},
        {"type": "boolean"},
    ]
    if depth == 2:
        return random.choice(simple)

    def below() -> dict[str, Any]:
        return schema_of(random, depth + 1)

    names = random.sample(["id", "name", "size", "tags", "other key"], random.randint(1, 3))
    made = {
        "type": "object",
        "properties": {name: below() for name in names},
        "required": names[: random.randint(1, len(names))],
        "additionalProperties": False,
    }
    array = {"type": "array", "items": below(), "minItems": 1, "maxItems": 2}
    return random.choice([made, made, array, {"anyOf": [below(), below()]}, random.choice(simple)])


def schema(seed: int) -> dict[str, Any]:
    found = schema_of(Random(seed))
    if seed % 5 == 0:
        return {"$defs": {"part": found}, "type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2}
    return found


def answer(spec: dict[str, Any], *parts: Any) -> tuple[list[int], str]:
    model = LanguageModel(hashed_model(len(TOKENIZER), context_limit=1024))
    prompt = TOKENIZER("Answer: ").input_ids
    result = Decoder(model, *parts).generate(prompt, max_new_tokens=400, constraint=constraint_by(spec))
    assert result.finish_reason == "eos"
    return result.token_ids, TOKENIZER.decode(result.token_ids, skip_special_tokens=True)


@pytest.mark.variants(12)
@pytest.mark.parametrize("seed", range(200))
def test_every_answer_validates_and_is_that_of_plain_decoding(seed: int) -> None:
    wanted = schema(seed)
    tokens, text = answer({"json": wanted})
    jsonschema.validate(json.loads(text), wanted)
    for parts in ((Grammar(), Chain(6)), (Union([Grammar(), PromptLookup()]), Chain(4))):
        assert answer({"json": wanted}, *parts)[0] == tokens


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({"choice": ["yes", "no", "not sure"]}, {"yes", "no", "not sure"}),
        ({"regex": "a{2}b"}, {"aab"}),
        ({"grammar": 'start: "x" "=" ("1" | "2")'}, {"x=1", "x=2"}),
        ({"grammar": 'root ::= "on" | "off"'}, {"on", "off"}),
    ],
)
def test_other_constraints_allow_their_texts_alone(spec: dict[str, Any], texts: set[str]) -> None:
    assert answer(spec, Grammar(), Chain(4))[1] in texts


def test_forced_text_is_written_in_the_tokens_of_the_mask_even_if_others_spell_it() -> None:
    tokenizer = load_tokenizer("smollm2")
    constraint = constraint_of({"json": {"type": "object", "required": ["a"]}}, tokenizer, len(tokenizer), EOS)
    [brace], [first, *_] = tokenizer.encode("{"), constraint.forced([])
    assert first != brace
    assert constraint.allowed([], [brace]) == 0
    constraint.commit([brace])  # its text is allowed
    constraint = constraint_of({"json": {"type": "object", "required": ["a"]}}, tokenizer, len(tokenizer), EOS)
    logits = torch.zeros(1, len(tokenizer))
    logits[0, brace] = 1.0
    assert allowed_after(constraint, root_tree(5), [brace], logits, 0) == first


def constraint_after(spec: dict[str, Any], tokens: list[int]) -> GrammarConstraint:
    constraint = constraint_by(spec)
    constraint.commit(tokens)
    return constraint


def check_tokens(constraint: GrammarConstraint, path: list[int], vocab_size: int) -> list[int]:
    allowed: list[int] = tokens_in(constraint.mask(path)).tolist()
    assert [token for token in range(vocab_size) if constraint.allowed(path, [token])] == allowed
    some = constraint.some(path, 4)
    assert len(some) == len({*some} & {*allowed}) == min(4, len(allowed))
    return allowed


@pytest.mark.parametrize("seed", range(12))
def test_a_token_is_allowed_if_and_only_if_the_mask_has_it(seed: int) -> None:
    """Also where an earlier path has shown what must follow, and where its tokens have been committed since."""
    [whole, committed], random, path = [constraint_by({"json": schema(seed)}) for _ in "ab"], Random(seed), list[int]()
    start = 0
    while len(path) < 40 and not EOS & {*path}:
        path.append(random.choice(check_tokens(whole, path, len(TOKENIZER))))
        if not EOS & {*path}:
            assert check_tokens(committed, path[start:], len(TOKENIZER)) == check_tokens(whole, path, len(TOKENIZER))
            assert committed.forced(path[start:]) == constraint_after({"json": schema(seed)}, path).forced([])
            if random.random() < 0.3:
                committed.commit(path[start:])
                start = len(path)


def test_another_spelling_of_forced_text_is_not_allowed() -> None:
    tokenizer = load_tokenizer("smollm2")
    constraint = constraint_of({"json": {"type": "object", "required": ["a"]}}, tokenizer, len(tokenizer), EOS)
    assert check_tokens(constraint, [], len(tokenizer)) == constraint.forced([])[:1]
    assert len(check_tokens(constraint, tokenizer.encode("{"), len(tokenizer))) == 1


def test_forced_text_is_drafted() -> None:
    spec = {
        "json": {
            "type": "object",
            "properties": {"a long name": {"type": "boolean"}},
            "required": ["a long name"],
            "additionalProperties": False,
        }
    }
    constraint = constraint_by(spec)
    forced = constraint.forced([])
    assert TOKENIZER.decode(forced) == '{"a long name": '
    for at in range(len(forced) + 1):
        assert constraint.forced(forced[:at]) == forced[at:]
    assert constraint.forced([*forced[:2], forced[0]]) == [], "the path is not allowed"
    assert tokens_in(constraint.mask([*forced[:2], forced[0]])).tolist() == []
    result = Decoder(LanguageModel(hashed_model(len(TOKENIZER), context_limit=1024)), Grammar(), Chain(8)).generate(
        [5, 6], max_new_tokens=40, constraint=constraint
    )
    assert result.steps <= len(result.token_ids) / 3


def test_forced_text_is_counted_from_the_committed_tokens() -> None:
    [a, b, c] = [TOKENIZER.encode(text)[0] for text in "abc"]
    constraint = constraint_by({"regex": "aabaac"})
    assert constraint.forced([]) == [a, a, b, a, a, c]
    constraint.commit([a])
    assert [constraint.forced([a, b][:at]) for at in (2, 1, 0)] == [[a, a, c], [b, a, a, c], [a, b, a, a, c]]
    ways = constraint_by({"choice": ["abc", "cab"]})
    assert [ways.forced(path) for path in ([], [a], [c])] == [[], [b, c], [a, b]]
    ways.commit([a])
    assert ways.forced([]) == [b, c]


@pytest.mark.parametrize(
    ("spec", "key", "sentence"),
    [
        ({}, (), "a constraint must have exactly one of the keys"),
        ({"json": {}, "regex": "a"}, (), "a constraint must have exactly one of the keys"),
        ({"json": {"type": "strin"}}, ("json",), "Invalid type: strin"),
        (
            {"json": {"type": "object", "properties": {"a": {"items": {"type": "array", "uniqueItems": True}}}}},
            ("json", "properties", "a", "items"),
            "uniqueItems",
        ),
        (
            {"json": {"$defs": {"ok": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/ok"}, {"not": {}}]}},
            ("json", "anyOf", "1"),
            "not",
        ),
        (
            {"json": {"properties": {"a": {"minProperties": 2, "additionalProperties": {"type": "null"}}}}},
            ("json", "properties", "a"),
            "minProperties must be at most 1, or required as many, if keys may be others .*, got 2",
        ),
        ({"regex": "(a"}, ("regex",), "unclosed group"),
        ({"json": "{"}, ("json",), "EOF while parsing"),
        ({"json": True}, ("json",), "must be a schema, got True"),
        ({"json_object": False}, ("json_object",), "must be true, got False"),
        ({"regex": 3}, ("regex",), "must be a text, got 3"),
        ({"choice": "yes"}, ("choice",), "must be a list of one or more texts, got 'yes'"),
        ({"choice": []}, ("choice",), "must be a list of one or more texts, got \\[\\]"),
    ],
)
def test_what_cannot_be_read_is_named(spec: dict[str, Any], key: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConstraintError, match=sentence) as error:
        constraint_by(spec)
    assert error.value.key == key
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": {"type": "null"}, "minProperties": 1},
        {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "minProperties": 2},
        {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "additionalProperties": False, "minProperties": 2},
    ],
)
def test_a_least_number_of_keys_is_taken_where_no_key_can_repeat(schema: dict[str, Any]) -> None:
    constraint_by({"json": {"type": "object", **schema}})


def test_a_vocabulary_is_prepared_once_for_a_tokenizer() -> None:
    assert vocabulary_of(TOKENIZER, len(TOKENIZER), EOS) is vocabulary_of(TOKENIZER, len(TOKENIZER), EOS)
