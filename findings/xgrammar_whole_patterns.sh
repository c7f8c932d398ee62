#!/usr/bin/env bash
# xgrammar 0.2.8: a pattern must match the whole string, and an escape does not fit a string of bounded length.
# In JSON schema a pattern may match anywhere: "abc" has the pattern "b". xgrammar takes "b" alone, so a model that is
# constrained by the schema cannot give many right answers. It also refuses "\n" as a string of at most one character.
# llguidance takes all of them.
# One would have guessed that two libraries for one standard take the same strings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xgrammar==0.2.8 torch==2.13.0 llguidance==1.9.1
"$folder/venv/bin/python" <<'PYTHON' 2>/dev/null
import json

import xgrammar
from llguidance import LLMatcher, LLTokenizer
from xgrammar.testing import _is_grammar_accept_string


def taken(schema, text):
    """Return whether xgrammar and llguidance take a text as a whole answer."""
    schema = json.dumps({"type": "string", **schema})
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(schema), log_level=0)
    whole = matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()
    return _is_grammar_accept_string(xgrammar.Grammar.from_json_schema(schema), text), whole


found = {
    "anywhere": taken({"pattern": "b"}, '"abc"'),
    "at the start": taken({"pattern": "^b"}, '"bc"'),
    "whole": taken({"pattern": "^b$"}, '"b"'),
    "one letter": taken({"maxLength": 1}, '"a"'),
    "one escape": taken({"maxLength": 1}, r'"\n"'),
}
print(found)
both, one = (True, True), (False, True)
assert found == {"anywhere": one, "at the start": one, "whole": both, "one letter": both, "one escape": one}
PYTHON
