#!/usr/bin/env bash
# llguidance 1.9.1: a key that "properties" does not name may come twice, and counts twice for minProperties.
# {"a": 1, "a": 2} is taken for a schema of at least two properties. A JSON parser keeps one of them, so the parsed answer
# does not fit the schema.
# One would have guessed that a constrained answer validates against its schema.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet llguidance==1.9.1 jsonschema==4.26.0
"$folder/venv/bin/python" <<'PYTHON'
import json

import jsonschema
from llguidance import LLMatcher, LLTokenizer


def taken(schema, text):
    """Return whether the constraint takes a text as a whole answer."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    assert not matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


number, text = {"type": "integer"}, '{"a":1,"a":2}'
schema = {"type": "object", "additionalProperties": number, "minProperties": 2}
fits = jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
found = {"taken": taken(schema, text), "fits": fits}
print(found)
assert found == {"taken": True, "fits": False}
PYTHON
