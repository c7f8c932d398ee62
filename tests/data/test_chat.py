"""Chat messages: files and the server read the same ones, and templates take arguments."""

import json

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from specexp.data import OwnPrompts, PromptSetError, Workload
from specexp.data.chat import read_messages, rendered
from specexp.deploy.server.request_schema import ChatRequest

pytestmark = pytest.mark.unit

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "3", "tool_call_id": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.name }}({{ call.function.arguments.x }}){% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}{% if enable_thinking is false %}<think></think>{% endif %}answer:{% endif %}"
)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (USER, None),
        ({**USER, "id": 3, "opts": {"visible": False}, "name": None}, None),
        ({"role": "user", "content": [{"type": "text", "text": "Hi"}]}, None),
        ({"role": "system", "content": ""}, None),
        (CALLS, None),
        ({**USER, "content": " "}, "content must be a text that is not blank"),
        ({"role": "user", "content": [IMAGE]}, "0.content.0.type must be 'text'"),
        ({"role": "assistant", "content": None}, "0.content is missing"),
        ({"role": "wizard", "content": "Hi"}, "0.role must be"),
        ({"role": "assistant", "tool_calls": [{}]}, "tool_calls.0.function is missing"),
        ({"role": "user", "content": 3}, "0.content must be a text, got 3"),
        ({**USER, "images": ["aGk="]}, r"0.images is not supported, got \['aGk='\]; leave it out"),
        ({"role": "assistant", "content": "", "audio": {"id": "a{}"}}, "0.audio is not supported"),
        ({"role": "assistant", "content": "", "function_call": {"name": "f"}}, "0.function_call is not supported"),
        ({**USER, "images": [], "audio": None}, None),
    ],
)
def test_a_file_and_the_server_read_the_same_messages(tmp_path, message, why):
    path, body = tmp_path / "my.jsonl", {"messages": [message, USER]}
    path.write_text(json.dumps(body))
    if why is None:
        (row,) = OwnPrompts(str(path)).load()
        asked = [one.message() for one in ChatRequest(**body).messages]
        assert [*row["context"], {"role": "user", "content": "Hi"}] == asked
        return
    with pytest.raises(PromptSetError, match=why):
        OwnPrompts(str(path)).load()
    with pytest.raises((ValidationError, RequestValidationError)):
        ChatRequest(**body)


def test_a_tool_call_is_rendered_with_its_arguments_or_refused(chat_tokenizer):
    messages = read_messages([USER, CALLS, RESULT])
    with pytest.raises(ValueError, match="does not render tool calls"):
        rendered(chat_tokenizer, messages)
    chat_tokenizer.chat_template = TOOLS + "{# tool #}"
    assert rendered(chat_tokenizer, messages) == "user:Hi;assistant:add(1);tool:3;answer:"


def test_a_last_message_of_the_assistant_is_continued(chat_tokenizer):
    messages = read_messages([USER, {"role": "assistant", "content": "Sure"}])
    assert rendered(chat_tokenizer, messages) == "<|user|>Hi<|end|><|assistant|>Sure"


def test_arguments_reach_the_template_and_idle_ones_are_refused(chat_tokenizer, write):
    prompts = OwnPrompts(write("my.jsonl", [{"prompt": ["Hi", "Why?"]}]))
    chat_tokenizer.chat_template = TOOLS
    workload = Workload(prompts, chat_template_kwargs={"enable_thinking": False})
    (prompt,) = workload.load(chat_tokenizer)
    assert chat_tokenizer.decode(prompt.token_ids) == "user:Hi;<think></think>answer:"
    assert chat_tokenizer.decode(prompt.turn_ids(chat_tokenizer, 1, [1])[1:]).endswith("<think></think>answer:")
    for name, sentence in (
        ("enable_thinkin", "has no effect.*did you mean 'enable_thinking'"),
        ("answer", "has no effect, since the tokenizer's chat template does not use it"),
        ("endfor", "has no effect, since the tokenizer's chat template does not use it"),
        ("add_generation_prompt", "must be left out, since specexp sets it"),
    ):
        idle = Workload(prompts, unusable="skip", chat_template_kwargs={name: False})
        with pytest.raises(PromptSetError, match=sentence) as refused:
            idle.load(chat_tokenizer)
        assert refused.value.key == ("chat_template_kwargs",)


def test_a_template_of_several_is_named(chat_tokenizer, write):
    chat_tokenizer.chat_template = {"tool_use": "{{ tools }}", "default": chat_tokenizer.chat_template}
    workload = Workload(OwnPrompts(write("my.jsonl", [{"prompt": "Hi"}])))
    workload.load(chat_tokenizer)
    assert workload.preparation.chat_template()[0].startswith("Chat template 'default': 1 of 1 prompt")
    del chat_tokenizer.chat_template["default"]
    with pytest.raises(PromptSetError, match=r"no default specified.*tool_use"):
        workload.load(chat_tokenizer)
