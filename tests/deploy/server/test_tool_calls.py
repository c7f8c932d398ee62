"""Tools: a required call validates, drafts and chunks do not change it, and calls that a model marks are read."""

import json
from random import Random

import httpx
import jsonschema
import openai
import pytest
from helpers.running_server import running

from specexp.deploy.server.request_schema import ChatRequest
from specexp.deploy.server.tool_calls import CallText
from specexp.testing.fakes import FakeCausalLM

from .conftest import chunks_of, serve

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Rome"]}},
}
TIMER = {
    "type": "object",
    "properties": {"minutes": {"enum": [5, 10]}},
    "required": ["minutes"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "set_timer": TIMER, "stop": {"type": "object", "additionalProperties": False}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
USER = [{"role": "user", "content": "Weather in Oslo?"}]


TURNS = "{% for m in messages %}{{ m.content }}{% endfor %}"
SHORT = "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}" + TURNS


@pytest.fixture(autouse=True)
def _template_of_few_tokens(tiny, monkeypatch):
    monkeypatch.setattr(tiny[1], "chat_template", SHORT)


def ask(address, **fields):
    body = {"messages": USER, "tools": TOOLS, "temperature": 0, "max_tokens": 120, **fields}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=60)


def call_of(answer):
    """The only call of an answer, as its name and its arguments, and why the answer ended."""
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call.keys() == {"id", "type", "function"}
    return call["function"]["name"], call["function"]["arguments"], choice["finish_reason"]


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_validates_and_does_not_depend_on_drafts(address, seed):
    given = {"tool_choice": "required", "temperature": 1, "seed": seed}
    name, arguments, reason = call_of(ask(address, **given))
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert reason == "tool_calls"
    assert call_of(ask(address, **given, speculative=False)) == (name, arguments, reason)


def test_a_named_function_is_called(address):
    name, arguments, reason = call_of(ask(address, tool_choice=NAMED))
    assert (name, reason) == ("get_weather", "stop")
    jsonschema.validate(json.loads(arguments), WEATHER)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_chunks_of_a_call_are_the_call(address, choice):
    chunks = [chunk["choices"][0] for chunk in chunks_of(ask(address, tool_choice=choice, stream=True))]
    calls = [call for one in chunks for call in one["delta"].get("tool_calls", ())]
    whole = call_of(ask(address, tool_choice=choice))
    assert calls[0]["function"]["name"] == whole[0]
    assert calls[0]["id"].startswith("call_")
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == whole[1]
    assert chunks[-1]["finish_reason"] == whole[2]


def test_the_type_of_a_tool_may_be_left_out(address):
    untyped = [{"function": one["function"]} for one in TOOLS]
    assert call_of(ask(address, tools=untyped, tool_choice="required")) == call_of(ask(address, tool_choice="required"))


def test_tools_that_must_not_be_called_change_nothing(address):
    none, without = ask(address, tool_choice="none"), ask(address, tools=None)
    assert none.json()["choices"] == without.json()["choices"]


F = '<tool_call>{"name": "f"}</tool_call>'
G = '<tool_call>{"name": "g", "arguments": {"é": [1]}}</tool_call>'
TEXTS = {
    "no call": ("Fine < today, <tool", "Fine < today, <tool", []),
    "one call": (
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"x": "}"}}\n</tool_call>\n',
        "Let me see.\n",
        [("f", {"x": "}"})],
    ),
    "two calls": (f"{F}\n{G}", "", [("f", {}), ("g", {"é": [1]})]),
    "text behind a call": (f"{F}\n That is \n all.", "That is \n all.", [("f", {})]),
    "no JSON": ("<tool_call>{name: f}</tool_call> So", "<tool_call>{name: f}</tool_call> So", []),
    "no JSON, then a call": (f"<tool_call>f()</tool_call>\n{G}", "<tool_call>f()</tool_call>\n", [("g", {"é": [1]})]),
    "no object": ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
    "not closed": ('<tool_call>{"name": "f"}', "", [("f", {})]),
    "cut": ('So <tool_call>{"name": "f", "argu', 'So <tool_call>{"name": "f", "argu', []),
}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("text", "content", "calls"), TEXTS.values(), ids=TEXTS)
def test_marked_calls_are_read_from_chunks_of_any_length(text, content, calls, seed):
    random, reader, found, given = Random(seed), CallText("auto"), [], ""
    rest = text
    while rest:
        length = random.randint(1, len(rest))
        delta = reader.add(rest[:length], None if length < len(rest) else "stop")
        rest = rest[length:]
        found += [one["function"] for one in delta.get("tool_calls", ())]
        given += delta.get("content") or ""
    assert given == content
    assert [(one["name"], json.loads(one["arguments"])) for one in found] == calls


READS_TOOLS = "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}{% if tools %}<tool_call>{% endif %}"
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def writing(tiny):
    """The address of a server of a model that writes the text of :data:`TEXTS` with the number that the user gives."""
    tokenizer = tiny[1]
    scripts = [tokenizer(text, add_special_tokens=False).input_ids for text, _, _ in TEXTS.values()]
    (mark,) = tokenizer("?", add_special_tokens=False).input_ids

    def next_logits(tokens):
        start = tokens.index(mark) + 1 if mark in tokens else len(tokens)
        script = scripts[int(tokenizer.decode(tokens[start - 2])) if mark in tokens else 0]
        written = [*script, tokenizer.eos_token_id][min(len(tokens) - start, len(script))]
        return [50.0 * (token == written) for token in range(len(tokenizer))]

    with running(serve((FakeCausalLM(next_logits, len(tokenizer)), tokenizer))) as address:
        yield address


@pytest.mark.parametrize("name", TEXTS)
def test_calls_that_a_model_marks_reach_answers_and_streams(writing, tiny, monkeypatch, name):
    monkeypatch.setattr(tiny[1], "chat_template", READS_TOOLS + TURNS)
    _, content, calls = TEXTS[name]
    user = [{"role": "user", "content": f"{list(TEXTS).index(name)}?"}]
    (choice,) = ask(writing, messages=user, tool_choice="auto").json()["choices"]
    found = [one["function"] for one in choice["message"].get("tool_calls", ())]
    assert (choice["message"]["content"] or "") == content
    assert [(one["name"], json.loads(one["arguments"])) for one in found] == calls
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    client = openai.OpenAI(base_url=f"{writing}/v1", api_key="none", max_retries=0)
    fields = {"model": "tiny", "messages": user, "tools": TOOLS, "temperature": 0}
    with client.chat.completions.stream(**fields, max_tokens=120) as stream:
        (streamed,) = stream.get_final_completion().choices
    found = [one.function for one in streamed.message.tool_calls or ()]
    assert (streamed.message.content or "") == content
    assert [(one.name, json.loads(one.arguments)) for one in found] == calls
    assert streamed.finish_reason == choice["finish_reason"]


@pytest.mark.parametrize(("reads", "choice"), [(True, "auto"), (True, "required"), (False, "required")])
def test_the_prompt_describes_the_tools(served, tiny, monkeypatch, reads, choice):
    monkeypatch.setattr(tiny[1], "chat_template", READS_TOOLS + ROLES if reads else ROLES)
    request = ChatRequest(messages=[{"role": "system", "content": "Brief."}, *USER], tools=TOOLS, tool_choice=choice)
    (ids,) = served[0].texts.prompts(request)
    text = tiny[1].decode(ids)
    if reads:
        assert text == "(get_weather)(set_timer)(stop)<tool_call>[system]Brief.[user]Weather in Oslo?"
    else:
        assert text.startswith("[system]Brief.\n\nYou can call")
        assert all(f'"name": "{name}"' in text for name in SCHEMAS)
        assert text.endswith("[user]Weather in Oslo?")


def with_parameters(schema):
    return [TOOLS[0], {"type": "function", "function": {"name": "f", "parameters": schema}}]


@pytest.mark.parametrize(
    ("fields", "key", "words"),
    [
        ({"tool_choice": "always"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name", "got 'f'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "is missing"),
        (
            {"tools": [{"function": {"name": "no good"}}]},
            "tools.0.function.name",
            "must be a text that matches '^[A-Za-z0-9_-]{1,64}$', got 'no good'",
        ),
        ({"tools": [], "tool_choice": "required"}, "tools", "must not be empty"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "left out"),
        (
            {"tool_choice": "required", "tools": with_parameters({"properties": {"a": {"uniqueItems": True}}})},
            "tools.1.function.parameters.properties.a",
            "uniqueItems",
        ),
        ({"tools": TOOLS}, "tool_choice", "must be none, required or a function"),
    ],
)
def test_what_cannot_be_called_is_named(address, fields, key, words):
    answer = ask(address, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == key
    assert words in answer.json()["error"]["message"]
