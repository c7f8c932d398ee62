"""Fields of other servers' requests: what they do, and that neutral values do nothing."""

import math
from random import Random

import httpx
import pytest
from transformers import LogitsProcessorList

from specexp.deploy.processed_sampling import CountPenalties
from specexp.deploy.server.request_schema import ChatRequest
from specexp.deploy.server.texts import Texts

from .conftest import chunks_of, generated

PROMPT = "The quick brown fox"


def post(address, path="completions", **fields):
    body = {"prompt": PROMPT} if path == "completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    body |= {"max_tokens": 12, "temperature": 0}
    body = {name: value for name, value in (body | fields).items() if value != "absent"}
    answer = httpx.post(f"{address}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(answer):
    choice = answer["choices"][0]
    return choice.get("text", choice.get("message", {}).get("content"))


@pytest.mark.variants(2)
@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"presence_penalty": 1.5, "frequency_penalty": -0.5}, {"logits_processor": [CountPenalties(19, 1.5, -0.5)]}),
        ({"logit_bias": {"65": 3, "66": 2.5}}, {"sequence_bias": [[[65], 3.0], [[66], 2.5]]}),
        ({"ignore_eos": True}, {"eos_token_id": None}),
        ({"min_tokens": 30}, {"min_new_tokens": 30}),
    ],
)
def test_greedy_output_equals_generate_with_the_same_processors(address, tiny, fields, settings, speculative):
    if "logits_processor" in settings:
        settings = {"logits_processor": LogitsProcessorList(settings["logits_processor"])}
    expected, text = generated(tiny, PROMPT, 40, **settings)
    answer = post(address, max_tokens=40, speculative=speculative, **fields)
    assert text_of(answer) == text
    assert answer["usage"]["completion_tokens"] == len(expected)
    assert text_of(answer) != text_of(post(address, max_tokens=40)) or fields.keys() & {"ignore_eos", "min_tokens"}


@pytest.mark.variants(1)
@pytest.mark.parametrize("fields", [{"min_p": 0.2}, {"presence_penalty": 1.0, "top_p": 0.9}, {"logit_bias": {"65": 4}}])
def test_sampling_with_processors_does_not_depend_on_drafts(address, fields):
    given = {"temperature": 1, "seed": 4, "max_tokens": 60, **fields}
    answers = [post(address, speculative=on, **given) for on in (True, False, 1)]
    assert len({text_of(one) for one in answers}) == 1
    assert text_of(answers[0]) != text_of(post(address, temperature=1, seed=4, max_tokens=60))


def test_an_answer_ends_at_a_stop_token_and_not_before_the_least_number_of_tokens(address, tiny):
    free, _ = generated(tiny, PROMPT, 40, eos_token_id=None)
    stop = next(token for token in free[8:] if token not in free[:8])
    at = free.index(stop)
    for ids in ([stop], [stop, 3]):
        answer = post(address, max_tokens=40, stop_token_ids=ids, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == at + 1
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert text_of(answer) == tiny[1].decode(free[:at], skip_special_tokens=True)
    least = post(address, max_tokens=40, stop_token_ids=[stop], ignore_eos=True, min_tokens=at + 3)
    assert least["usage"]["completion_tokens"] >= at + 3


def test_all_tokens_are_given_if_eos_is_ignored(address):
    for fields in ({"temperature": 1, "seed": 2}, {"temperature": 0}, {"logit_bias": {"256": 100}}):
        assert post(address, max_tokens=50, ignore_eos=True, **fields)["usage"]["completion_tokens"] == 50


def test_a_special_token_as_stop_string_ends_the_answer(address, tiny):
    end = tiny[1].eos_token
    fields = {"max_tokens": 30, "ignore_eos": True, "logit_bias": {str(tiny[1].eos_token_id): 6}}
    free = post(address, **fields)
    stopped = post(address, stop=[end], **fields)
    assert free["usage"]["completion_tokens"] == 30
    assert stopped["usage"]["completion_tokens"] < 30
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert text_of(free).startswith(text_of(stopped))
    shown = post(address, skip_special_tokens=False, **fields)
    assert text_of(shown).replace(end, "") == text_of(free)
    assert end in text_of(shown)


def test_stop_strings_are_not_searched_before_the_least_number_of_tokens(address):
    text = text_of(post(address, max_tokens=30, ignore_eos=True))
    answer = post(address, max_tokens=30, ignore_eos=True, stop=text[2], min_tokens=10)
    assert answer["usage"]["completion_tokens"] > 10
    assert text_of(answer).startswith(text[:9])


NEUTRAL = {
    "completions": {"logprobs": [None, False], "best_of": [1], "suffix": ["", None], "echo": [False]},
    "chat/completions": {
        "logprobs": [False, None], "top_logprobs": [0, None], "max_completion_tokens": [12, None],
        "tool_choice": ["none"], "function_call": ["none", None], "response_format": [{"type": "text"}],
        "reasoning_effort": ["none", None], "modalities": [["text"]], "verbosity": ["medium"],
    },
}  # fmt: skip
SHARED = {
    "top_k": [-1, 0, None], "top_p": [1, None], "min_p": [0, 0.0], "presence_penalty": [0], "frequency_penalty": [0.0],
    "repetition_penalty": [1, 1.0], "logit_bias": [{}, None], "stop": ["", [], [""], None],
    "stop_token_ids": [[], None], "ignore_eos": [False], "min_tokens": [0, None],
    "skip_special_tokens": [True], "use_beam_search": [False],
    "length_penalty": [1, 1.0], "early_stopping": [False], "include_stop_str_in_output": [False], "n": [1],
    "spaces_between_special_tokens": [True], "user": ["me"], "stream_options": [{"include_obfuscation": False}, None],
    "seed": [3, None], "parallel_tool_calls": [True], "detokenize": [True], "tools": [[], None], "sequence": [None],
    "prompt_logprobs": [None, 0], "request_id": ["a"], "priority": [0], "guided_json": [None], "typical_p": [1],
    "metadata": [{"a": "b"}], "store": [False], "service_tier": ["auto"], "truncate_prompt_tokens": [None, -1],
    "temperature": [0, 1e-6, "absent"], "unknown_field_without_a_value": [None],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("path", NEUTRAL)
def test_neutral_values_never_change_the_answer(address, path):
    expected = post(address, path)
    fields = SHARED | NEUTRAL[path]
    sampled = {name: values for name, values in fields.items() if name not in ("temperature", "seed")}
    for number in range(6):
        random = Random(number)
        given = {name: random.choice(values) for name, values in fields.items() if random.random() < 0.6}
        if given.get("temperature") == "absent":
            given["temperature"] = 0
        if given.get("tool_choice") == "none":
            given["tools"] = [{"type": "function", "function": {"name": "f"}}]
        assert text_of(post(address, path, **given)) == text_of(expected), given
        given = {name: random.choice(values) for name, values in sampled.items() if random.random() < 0.6}
        own = {"temperature": 1.0, "seed": 9}
        assert text_of(post(address, path, **given, **own)) == text_of(post(address, path, **own)), given


def test_the_smallest_top_p_and_temperature_are_greedy_decoding(address):
    greedy = text_of(post(address, max_tokens=40))
    for fields in ({"top_p": 0}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        assert text_of(post(address, max_tokens=40, **{"temperature": 1, "seed": 1, **fields})) == greedy


def test_every_chunk_has_the_counts_so_far_if_they_are_requested(address):
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "stream": True, "stream_options": options}
    chunks = chunks_of(httpx.post(f"{address}/v1/completions", json=body, timeout=60))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert 0 < counts[0] <= counts[-1] <= 20


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/tiny"])
def test_a_client_may_ask_for_the_head_of_what_can_be_read(address, path):
    answer = httpx.head(f"{address}{path}")
    assert (answer.status_code, answer.content) == (200, b"")


UNSUPPORTED = [
    ({"echo": True}, "echo is not supported by this server, got True; leave it out"),
    ({"tools": [{"type": "function"}]}, "tools is not supported"),
    ({"web_search_options": {}}, "web_search_options is not supported"),
    ({"top_k": -2}, "top_k must be >= -1, got -2"),
    ({"top_p": 1.5}, "top_p must be <= 1, got 1.5"),
    ({"min_p": math.pi}, "min_p must be <= 1"),
    ({"repetition_penalty": 0}, "repetition_penalty must be > 0, got 0"),
    ({"stop": 5}, "stop must be a text or a list of texts, got 5"),
    ({"stop": ["x", 3]}, "stop.1 must be a text, got 3"),
    ({"sequence": 1.5}, "sequence must be a text or an integer, got 1.5"),
    ({"sequence": 3}, "seed must be given if sequence is set"),
    ({"stream_options": {"include_usage": True}}, "stream must be true if stream_options are set"),
    ({"guided_json": {}}, "guided_json is not supported by this server, got {}; use structured_outputs: {json: ...}"),
    ({"messages": []}, "messages does not belong here; send it to /v1/chat/completions"),
    ({"completely_different": 1}, "completely_different is unknown; allowed are"),
]


@pytest.mark.parametrize(("fields", "sentence"), UNSUPPORTED)
def test_what_would_change_the_answer_is_named_and_nothing_absurd_is_proposed(address, fields, sentence):
    answer = httpx.post(f"{address}/v1/completions", json={"prompt": "a", **fields})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert sentence in message
    assert "did you mean" not in message


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
    "{{ c.function.arguments.x }}>{% endfor %}|{% endfor %}{% if add_generation_prompt %}[assistant]"
    "{% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
USER = {"role": "user", "content": "Who?"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 3}'}}
ANSWER = {
    "role": "assistant", "content": "Me.", "refusal": None, "annotations": None, "audio": None, "function_call": None,
    "tool_calls": None,
}  # fmt: skip


@pytest.fixture
def ids(served, tiny, monkeypatch):
    """The text of a chat's prompt."""
    monkeypatch.setattr(tiny[1], "chat_template", TEMPLATE)

    def text(messages, **fields):
        request = ChatRequest(messages=messages, **fields)
        (found,) = served[0].texts.prompts(request)
        return tiny[1].decode(found)

    return text


def test_turns_are_rendered_as_the_template_has_them(ids):
    assert ids([USER]) == "[user]Who?|[assistant]"
    assert ids([USER, ANSWER, USER]) == "[user]Who?|[assistant]Me.|[user]Who?|[assistant]"
    assert ids([USER, {"role": "assistant", "content": "I am"}]) == "[user]Who?|[assistant]I am"
    tool = {"role": "tool", "tool_call_id": "1", "content": "9"}
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    assert ids([USER, calls, tool]) == "[user]Who?|[assistant]<f 3>|[tool]9|[assistant]"
    assert ids([{"id": 1, "opts": {"visible": False}, **USER}]) == "[user]Who?|[assistant]"
    assert ids([USER, {"role": "system", "content": "Brief."}]) == "[user]Who?|[system]Brief.|[assistant]"


def test_template_arguments_come_from_the_server_and_the_request(ids, served, tiny, monkeypatch):
    off = {"enable_thinking": False}
    assert ids([USER], chat_template_kwargs=off) == "[user]Who?|[assistant]<think></think>"
    monkeypatch.setattr(served[0], "texts", Texts(tiny[1], off))
    assert ids([USER]) == "[user]Who?|[assistant]<think></think>"
    assert ids([USER], chat_template_kwargs={"enable_thinking": True}) == "[user]Who?|[assistant]"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"chat_template_kwargs": {"enable_thinkin": False}}, "did you mean 'enable_thinking'?"),
        ({"enable_thinking": False}, "did you mean 'chat_template_kwargs'?"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content must be a text, got null"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content must be a text, got 3"),
        ({"continue_final_message": True}, "continue_final_message must be false if the last message has the role"),
        ({"max_completion_tokens": 5}, "must not differ, got 12 and 5"),
        ({"images": []}, "images is unknown; allowed are"),
        ({"system": "Be brief"}, "system is unknown; allowed are"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused_in_a_sentence(address, tiny, monkeypatch, fields, sentence):
    monkeypatch.setattr(tiny[1], "chat_template", TEMPLATE)
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": [USER], "max_tokens": 12, **fields})
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]["message"]
