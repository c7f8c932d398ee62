"""Multi-token-prediction layers in the published layout, against a plain reading of the recipe."""

import pytest
import torch
from helpers.contracts import contract_of
from helpers.on_llama import OnLlama, begun_on, check_log_probs
from helpers.requests import chain_request
from helpers.small_models import small_model
from helpers.small_mtp import HEADS, KEYS, SIZE, THETA, VOCABULARY, known, loaded, published
from torch.nn.functional import linear, silu

from specexp.core.language_model import LanguageModel
from specexp.drafters import Mtp
from specexp.testing.drafters import DrafterContract, DrawingDrafterContract


class OnMellum(OnLlama):
    def make_target(self):
        return LanguageModel(known()[0])


TestMtp = contract_of(DrawingDrafterContract, Mtp, OnMellum)
TestCoupled = pytest.mark.slow(contract_of(DrafterContract, lambda: Mtp(coupled=True), OnMellum))


def recipe(tensors, embedded, states, count):
    """Return logits after the last ``count`` of some tokens; the first has no state, so it is not read.

    Args:
        embedded: ``[m, d]`` of the tokens.
        states: ``[n, d]`` of the target, each before the token of its row; rows after them read their own output.
    """

    def rms(name, x):
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * tensors[f"mtp.{name}.weight"]

    def product(name, x):
        return linear(x, tensors[f"mtp.{name}.weight"])

    def turned(x, position):
        rates = THETA ** (-torch.arange(0, SIZE, 2).double() / SIZE)
        turn = torch.polar(torch.ones(SIZE // 2).double(), position * rates)
        pairs = torch.complex(x[..., : SIZE // 2], x[..., SIZE // 2 :]) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1)

    keys, found, layer = [], [], "layers.0"
    for row, token in enumerate(embedded):
        state = states[row] if row < len(states) else found[-1]
        both = rms("pre_fc_norm_embedding", token), rms("pre_fc_norm_hidden", state)
        x = product("fc", torch.cat(both))
        normed = rms(f"{layer}.input_layernorm", x)
        q, k, v = (product(f"{layer}.self_attn.{one}_proj", normed).view(-1, SIZE) for one in "qkv")
        q, k = (rms(f"{layer}.self_attn.{name}_norm", one) for name, one in (("q", q), ("k", k)))
        keys.append((turned(k, row), v))
        mixed = []
        for head in range(HEADS):
            pair = head * KEYS // HEADS
            scores = torch.stack([turned(q[head], row) @ k[pair] for k, _ in keys]) / SIZE**0.5
            mixed.append(scores.softmax(0) @ torch.stack([v[pair] for _, v in keys]))
        x = x + product(f"{layer}.self_attn.o_proj", torch.cat(mixed))
        inner = rms(f"{layer}.post_attention_layernorm", x)
        gate = silu(product(f"{layer}.mlp.gate_proj", inner)) * product(f"{layer}.mlp.up_proj", inner)
        found.append(rms("norm", x + product(f"{layer}.mlp.down_proj", gate)))
    return torch.stack(found[-count:])


def test_a_published_layer_drafts_by_its_recipe():
    model, tensors = known()
    text, chain = [3, 1, 4, 1, 5, 9], (7, 8)
    drafter = Mtp()
    context = begun_on(LanguageModel(model), drafter, text)
    found = drafter.propose(context, chain_request(context, chain, VOCABULARY, rows=[0, 1, 2]))
    with torch.no_grad():
        states = model.model(torch.tensor([text[:-1]])).last_hidden_state[0]
        embedded = model.get_input_embeddings()(torch.tensor([*text[1:], *chain]))
        expected = model.lm_head(recipe(tensors, embedded, states, 3)).log_softmax(-1)
    check_log_probs(found, expected)


def test_a_target_without_such_a_layer_is_refused():
    sentence = "the configuration of the target must have num_mtp_layers, but that of LlamaForCausalLM has none"
    with pytest.raises(ValueError, match=f"Mtp: {sentence}"):
        Mtp().use_target(LanguageModel(small_model("Llama")))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"without": "mtp.fc.weight"}, r"cannot be read: .*weights are missing.*eh_proj"),
        ({"kind": "sliding_attention"}, r"must have full attention, but it has sliding_attention"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_in_one_sentence(tmp_path, change, sentence):
    published(tmp_path, **change)
    with pytest.raises(ValueError, match=rf"^Mtp: the layer of {tmp_path} {sentence}") as caught:
        Mtp().use_target(LanguageModel(loaded(tmp_path)))
    assert "\n" not in str(caught.value)
