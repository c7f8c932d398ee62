#!/usr/bin/env bash
# xgrammar 0.2.8: keywords that it cannot enforce are dropped without an error, so an answer need not fit its schema.
# These are not, if and then, dependentRequired, uniqueItems, all but the first of allOf, and required for a key that
# "properties" does not name. llguidance refuses such a schema or enforces it.
# One would have guessed that a schema that a library takes is a schema that its answers fit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgrammar==0.2.8 torch==2.13.0 llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" <<'PYTHON' 2>/dev/null
import json

import jsonschema
import xgrammar
from llguidance import LLMatcher, LLTokenizer
from xgrammar.testing import _is_grammar_accept_string

whole, both = {"type": "integer"}, {"a": {"type": "integer"}, "b": {"type": "integer"}}
one_then_b = {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}
WRONG = {
    "not": ({**whole, "not": {"const": 3}}, "3"),
    "if, then": ({"type": "object", "properties": both, **one_then_b}, '{"a": 1}'),
    "dependentRequired": ({"type": "object", "properties": both, "dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    "uniqueItems": ({"type": "array", "items": whole, "uniqueItems": True}, "[1, 1]"),
    "allOf": ({"allOf": [{**whole, "minimum": 3}, {"maximum": 5}]}, "7"),
    "required": ({"type": "object", "properties": {}, "required": ["z"]}, "{}"),
}


def by_llguidance(schema, text):
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    if matcher.get_error():
        return "refused"
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


found = {}
for name, (schema, text) in WRONG.items():
    assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    taken = _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(json.dumps(schema)), text)
    found[name] = taken, by_llguidance(schema, text)
    print(name, *found[name])
assert all(taken for taken, _ in found.values())
assert [other for _, other in found.values()] == ["refused"] * 4 + [False] * 2
PYTHON
