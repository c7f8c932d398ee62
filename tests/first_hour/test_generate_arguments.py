"""Wrong arguments of ``decoder.generate`` and of ``model.generate(custom_generate=...)``.

Each raises a ValueError of one sentence, and the next call works. Arguments that ``generate`` of Hugging Face obeys are
obeyed too, or refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build
from transformers import GenerationConfig, PreTrainedModel

from specexp.builders import StaticTree
from specexp.config.artifacts import save_artifact
from specexp.core.loop import Decoder
from specexp.deploy.hugging_face.custom_generate import custom_generate
from specexp.deploy.hugging_face.request import OBEYED, REFUSED, WITHOUT_EFFECT
from specexp.drafters import TokenRecycling

PROMPT = [5, 6, 7, 5, 6, 8]


@pytest.fixture(scope="module")
def model():
    return build("Llama", {**FULL_ATTENTION["Llama"], "vocab_size": 40}).eval()


def generate(model: PreTrainedModel, **arguments: Any) -> torch.Tensor:
    return model.generate(torch.tensor([PROMPT]), **arguments)


def parts() -> tuple[TokenRecycling, StaticTree]:
    return TokenRecycling(k=2), StaticTree([[0], [1], [0, 0]])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((StaticTree([[0]]), TokenRecycling()), "the drafter must be a Drafter, got a StaticTree"),
        (
            (TokenRecycling, StaticTree([[0]])),
            "the drafter must be a Drafter, got the class TokenRecycling",
        ),
        ((TokenRecycling(),), "the composition has no builder"),
    ],
    ids=["swapped", "a class", "one alone"],
)
def test_parts_in_wrong_places_are_refused(model, given, message):
    with pytest.raises(ValueError, match=message):
        Decoder(model, *given)
    with pytest.raises(ValueError, match=message):
        custom_generate(given)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_beams": 2}, "num_beams=2 is not supported: use num_beams=1"),
        ({"num_return_sequences": 2, "do_sample": True}, "pass one prompt and num_return_sequences=1"),
        ({"assistant_model": "self"}, "assistant_model is not supported: pass a draft model as custom_gen"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 is not supported: leave it out"),
        ({"use_cache": False}, "use_cache=False is not supported: leave it out"),
        ({"cache_implementation": "static"}, "the loop has its own cache"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate=True is not supported"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "use greedy search or sampling"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])}, "pass it without padding"),
        ({"position_ids": torch.arange(6)[None] + 3}, "position_ids must start at 0"),
        ({"negative_prompt_ids": torch.tensor([[5]])}, "has no effect without guidance_scale"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_of_custom_generate_are_one_sentence(model, arguments, sentence):
    if "assistant_model" in arguments:
        arguments = {"assistant_model": model}
    fast = custom_generate(parts())
    with pytest.raises(ValueError) as caught:
        generate(model, max_new_tokens=4, custom_generate=fast, **arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert generate(model, max_new_tokens=2, custom_generate=fast).shape == (1, 8)


def test_every_field_of_the_generation_config_is_obeyed_without_effect_or_refused():
    config = GenerationConfig()
    fields = {name for name in vars(config) | config._get_default_generation_params() if name[0] != "_"}
    tables = [*OBEYED, *WITHOUT_EFFECT, *REFUSED]
    assert fields - set(tables) == set(), "transformers has a new field: say what becomes of it"
    assert len(tables) == len(set(tables))


def test_a_field_of_a_later_transformers_is_refused_once_it_is_set(model, monkeypatch):
    made = GenerationConfig.__init__

    def later(self: GenerationConfig, **given: Any) -> None:
        made(self, **{name: value for name, value in given.items() if name != "look_ahead"})
        self.look_ahead = given.get("look_ahead")

    monkeypatch.setattr(GenerationConfig, "__init__", later)
    fast = custom_generate(parts())
    assert generate(model, max_new_tokens=2, custom_generate=fast).shape == (1, 8)
    config = GenerationConfig(max_new_tokens=2, look_ahead=3)
    with pytest.raises(ValueError, match="look_ahead=3 is not supported: leave it out, since this version of"):
        generate(model, generation_config=config, custom_generate=fast)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"guidance_scale": 1.5},
        {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[9, 3]])},
        {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 3, "pad_token_id": 0},
        {"sequence_bias": [[[7], 4.0]]},
        {"forced_eos_token_id": 3},
        {"watermarking_config": {"bias": 2.5, "seeding_scheme": "lefthash"}},
        {"prefix_allowed_tokens_fn": lambda row, ids: [2, 3, 4, 5 + len(ids) % 3]},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_obeyed_settings_give_the_tokens_of_plain_generate(model, settings):
    settings = {"max_new_tokens": 16, "do_sample": False, **settings}
    ours = generate(model, custom_generate=custom_generate(parts()), **settings)
    assert torch.equal(ours, generate(model, **settings))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [(("stdlib",), "str, 'stdlib'"), ((None,), "NoneType, None"), (("model", "x"), "str, 'x'")],
)
def test_an_artifact_needs_models(model, given, sentence, tmp_path):
    payloads = {"tree.json": [[0]], "parts.json": {"drafter": {"class_path": "TokenRecycling"}}}
    artifact = save_artifact(tmp_path, "static-tree", payloads)
    with pytest.raises(ValueError, match=f"a model was expected, got a {sentence}: load one with specexp.load_p"):
        artifact.decoder(*(model if one == "model" else one for one in given))
