"""Answers of a given form, from OpenAI's and vLLM's fields: they validate, with drafts as without, streamed or not."""

import json

import httpx
import jsonschema
import pytest

from .conftest import chunks_of

SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "size", "strict": True, "schema": SCHEMA}}


def ask(address, **fields):
    body = {"messages": [{"role": "user", "content": "How large?"}], "temperature": 0, "max_tokens": 120, **fields}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)


def text_of(answer):
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_validates_and_does_not_depend_on_drafts(address, temperature):
    given = {"response_format": FORM, "temperature": temperature, "seed": 5}
    text = text_of(ask(address, **given))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text_of(ask(address, **given, speculative=False)) == text


def test_a_streamed_answer_is_the_same(address):
    whole = text_of(ask(address, response_format=FORM))
    chunks = chunks_of(ask(address, response_format=FORM, stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole


@pytest.mark.parametrize(
    ("spec", "texts"),
    [({"choice": ["yes", "no"]}, {"yes", "no"}), ({"regex": "[ab]{2}c"}, {"aac", "abc", "bac", "bbc"})],
)
def test_vllms_field_takes_other_forms(address, spec, texts):
    assert text_of(ask(address, structured_outputs=spec)) in texts


def test_penalties_apply_to_what_is_allowed(address):
    fields = {"structured_outputs": {"choice": ["aaaa", "bbbb"]}, "frequency_penalty": 2, "presence_penalty": 2}
    assert text_of(ask(address, **fields)) in {"aaaa", "bbbb"}


def test_every_output_has_a_constraint_of_its_own(address):
    answer = ask(address, response_format=FORM, n=3, temperature=1, seed=1).json()
    for choice in answer["choices"]:
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


NESTED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize(
    ("fields", "key", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "must be {type: text}"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": NESTED}}},
            "response_format.json_schema.schema.properties.a",
            "uniqueItems must be left out of the schema: not supported here",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs", "exactly one of the keys"),
        ({"structured_outputs": {"regex": "a"}, "response_format": FORM}, "response_format", "must be left out"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "must be left out"),
    ],
)
def test_a_form_that_cannot_be_read_is_named(address, fields, key, words):
    answer = ask(address, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == key
    assert words in answer.json()["error"]["message"]
