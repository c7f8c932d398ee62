"""The network of EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840) and of P-EAGLE, in the published file layouts.

Each row fuses the hidden states of three target layers with the embedding of the next token. Published heads differ in
a few switches, which have the same names here as in ``config.json``. The layouts of SafeAILab (also used by SpecForge
and SGLang) and of speculators (also used by vLLM) contain the same tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CONFIG_MAPPING, DynamicCache, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from typing_extensions import override

from specexp.base.messages import first_line
from specexp.core.language_model import final_logits
from specexp.core.packed import FILE, unpack
from specexp.drafters.networks import KeyValues

_IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", FILE)
Network = TypeVar("Network", bound="HeadNetwork")
_SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")


@dataclass(frozen=True)
class Eagle3Config:
    """The contents of a head's ``config.json``."""

    layer: PretrainedConfig  # Llama or Qwen3, of the draft's layers: sizes, RoPE, and the target's vocab_size V
    target_hidden_size: int  # width of the target's hidden states
    draft_vocab_size: int  # number of tokens that the head can draft, at most V
    # hidden states of the target that the head reads, as indices into transformers' hidden_states (0: embeddings, k:
    # after k layers). None selects 2, N/2 and N - 3 for N layers
    state_layers: tuple[int, ...] | None = None
    states: int = 3  # number of hidden states that the head reads
    norm_before_fc: bool = False  # normalize the concatenated states (gpt-oss)
    fc_norm: bool = False  # normalize each state separately (EAGLE-3.1)
    norm_before_residual: bool = False  # the first layer's residual is the normalized state
    norm_output: bool = False  # the next row reads the normalized state (EAGLE-3.1)
    fc_bias: bool = False  # the layer `fc` has a bias
    mask_token_id: int | None = None  # token in all rows after the first, so that one pass drafts all depths (P-EAGLE)

    @classmethod
    def of(cls, content: Mapping[str, Any], where: object) -> Eagle3Config:
        """Parse the contents of a ``config.json``. Raises ``ValueError`` if they do not describe an EAGLE-3 head."""
        layer = dict(content.get("transformer_layer_config") or content)
        kind = layer.pop("model_type", "llama")
        if kind not in ("llama", "qwen3"):
            raise ValueError(f"{where}: model_type of an EAGLE-3 head must be llama or qwen3, got {kind!r}")
        missing = [name for name in ("hidden_size", "vocab_size", "num_attention_heads") if name not in layer]
        if missing:
            raise ValueError(f"{where}: {missing[0]} is missing, which an EAGLE-3 head must have")
        layers = content.get("eagle_aux_hidden_state_layer_ids") or content.get("aux_hidden_state_layer_ids")
        inner = content.get("eagle_config") or {}
        # ids count from the first layer's output
        if layers is None and inner.get("eagle_aux_hidden_state_layer_ids"):
            layers = [one + 1 for one in inner["eagle_aux_hidden_state_layer_ids"]]
        # vLLM assumes a missing switch to be true in speculators' EAGLE-3 files, and false in SafeAILab's
        residual = content.get("speculators_model_type") == "eagle3"
        switches = {name: bool(content.get(name, residual and name == "norm_before_residual")) for name in _SWITCHES}
        return cls(
            CONFIG_MAPPING[kind](**layer),
            content.get("target_hidden_size") or layer["hidden_size"],
            content.get("draft_vocab_size") or layer["vocab_size"],
            None if layers is None else tuple(sorted(layers)),
            3 if layers is None else len(layers),
            mask_token_id=content.get("mask_token_id"),
            **switches,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of a ``config.json`` that engines can read."""
        return {
            **self.layer.to_diff_dict(),
            **{name: getattr(self.layer, name) for name in ("model_type", "vocab_size", "num_hidden_layers")},
            "architectures": ["LlamaForCausalLMEagle3"],
            **{name: getattr(self, name) for name in ("target_hidden_size", "draft_vocab_size")},
            **({"eagle_aux_hidden_state_layer_ids": list(self.state_layers)} if self.state_layers else {}),
            **{name: getattr(self, name) for name in _SWITCHES},
            **({} if self.mask_token_id is None else {"mask_token_id": self.mask_token_id}),
        }


class HeadNetwork(nn.Module):
    """A network with :class:`DecoderLayer` modules in ``layers``."""

    layers: Any

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the parameters as views of the fused parameters, keyed by their names in files."""
        found: dict[str, Any] = dict(self.named_parameters())
        for number, layer in enumerate(self.layers):
            layer_name = f"layers.{number}."
            for fused, parts in layer.parts().items():
                found |= {layer_name + name: part for name, part in parts.items()}
                del found[layer_name + fused]
        return found


class Eagle3Network(HeadNetwork):
    """An EAGLE-3 head.

    Args:
        config: the head's sizes and switches.
        kept: ``[Vd]`` target ids of the draft vocabulary, ascending; None keeps all.
        own_head: whether it has its own output weights; otherwise it uses the target's output rows for ``kept``.
        own_embeddings: whether it has its own token embeddings; otherwise it uses the target's.

    Example:
        Training for a target with ``hidden_states``, a tuple of ``[batch, m, Ht]``, and ``logits`` ``[batch, m, V]``::

            network = Eagle3Network(Eagle3Config(LlamaConfig(...), Ht, 16_000, (2, 15, 27)), kept)
            network.share(target)
            states = torch.cat([hidden_states[layer] for layer in (2, 15, 27)], dim=-1)
            embedded = network.embed(tokens[:, 1:])  # one token ahead of the states
            for step, made in enumerate(network.unroll(embedded, states[:, :-1], steps=3)):
                drafted = network.logits(made)  # [batch, m - 1 - step, Vd]
                wanted = logits[:, step + 1 :, network.kept]  # the same shape
            network.save("folder")
    """

    def __init__(
        self,
        config: Eagle3Config,
        kept: torch.Tensor | None = None,
        own_head: bool = True,
        own_embeddings: bool = False,
    ) -> None:
        super().__init__()
        layer, eps = config.layer, config.layer.rms_norm_eps
        width, fused = layer.hidden_size, config.states * config.target_hidden_size
        self.config = config
        self.fc = nn.Linear(fused, width, bias=config.fc_bias)
        self.input_norm = nn.RMSNorm(fused, eps=eps) if config.norm_before_fc else None
        norms = (nn.RMSNorm(config.target_hidden_size, eps=eps) for _ in range(config.states))
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.layers = nn.ModuleList(
            DecoderLayer(layer, number, number == 0, config.norm_before_residual)
            for number in range(layer.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(width, eps=eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False) if own_head else None
        self.embed_tokens = nn.Embedding(layer.vocab_size, width) if own_embeddings else None
        self.mask_hidden = None if config.mask_token_id is None else nn.Parameter(torch.zeros(1, 1, fused))
        self._rotation = Rotation(layer)
        self.kept: torch.Tensor
        kept = torch.arange(config.draft_vocab_size) if kept is None else kept
        self.register_buffer("kept", kept, persistent=False)
        # in a tuple, since the target's embeddings and output layer are not parameters of the head
        self._shared: tuple[Any, Any] = (self.embed_tokens, self.lm_head)

    def share(self, target: Any) -> None:
        """Use a model's embeddings and logits where the head does not have its own."""
        logits: Any = self.lm_head
        if logits is None:
            rows = target.get_output_embeddings().weight[self.kept].to(self.fc.weight)
            logits = partial(final_logits, target, output=partial(F.linear, weight=rows))
        self._shared = self.embed_tokens or target.get_input_embeddings(), logits

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings ``[..., H]`` of token ids, in the head's dtype."""
        embedded: torch.Tensor = self._shared[0](tokens)
        return embedded.to(self.fc.weight.dtype)

    def logits(self, made: torch.Tensor) -> torch.Tensor:
        """Return logits ``[..., Vd]`` over the draft vocabulary, given states from :meth:`forward`."""
        logits: torch.Tensor = self._shared[1](self.norm(made))
        return logits

    def fuse_states(self, states: torch.Tensor) -> torch.Tensor:
        """Fuse the target layers' hidden states ``[..., states * Ht]``, in layer order, into inputs ``[..., H]``."""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: torch.Tensor = self.fc(states)
        return fused

    def again(self, made: torch.Tensor) -> torch.Tensor:
        """Return the next row's input, given a drafted row's state from :meth:`forward`."""
        return self.norm(made) if self.config.norm_output else made

    @override
    def forward(
        self,
        embedded: torch.Tensor,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor | None = None,
        cache: KeyValues | None = None,
    ) -> torch.Tensor:
        """Return ``[..., m, H]`` states, from which :meth:`logits` predicts the tokens after the given ones.

        Args:
            embedded: ``[..., m, H]`` embeddings of tokens. This and the last two arguments are as in
                :class:`~specexp.drafters.networks.EagleHead`.
            inputs: ``[..., m, H]`` inputs for the preceding positions, from :meth:`fuse_states` or :meth:`again`.
            positions: ``[m]`` indices of these positions.
        """
        x, turn = inputs, self._rotation.turn(positions, inputs)
        for layer in self.layers:
            x = layer(x, embedded, turn, visible, cache)
        return x

    def unroll(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> Iterator[torch.Tensor]:
        """Yield the states ``[batch, m - step, H]`` of each draft step. Each step reads the states of the previous one.

        This is EAGLE-3's training-time test (section 3.2). Row ``i`` of a step attends to rows up to ``i`` of the first
        step, which read the target's states. It also attends to row ``i`` of every step since then.

        Args:
            embedded: ``[..., m, H]`` embeddings of the tokens after ``states``.
            states: ``[batch, m, states * Ht]`` hidden states of the target's layers.
        """
        count = embedded.shape[1]
        positions = torch.arange(count, device=embedded.device)
        cache, inputs = DynamicCache(), self.fuse_states(states)
        visible = torch.empty(count, 0, dtype=torch.bool, device=embedded.device)
        for step in range(steps):
            rows = count - step
            own = positions[:rows, None] == positions[None, :rows]
            own = positions[:rows, None] >= positions[None, :rows] if step == 0 else own
            visible = torch.cat((visible[:rows], own), dim=1)
            made = self(embedded[:, step:], inputs, positions[step:], visible, cache)
            yield made
            inputs = self.again(made)[:, :-1]

    @classmethod
    def load(cls, folder: str | Path) -> Eagle3Network:
        """Load a published head from its folder. Raises ``ValueError``, naming the file and tensor at fault."""
        content, given, file = read_head(folder)
        config = Eagle3Config.of(content, file.with_name("config.json"))
        given = {name.replace("midlayer.", "layers.0."): one for name, one in given.items()}
        config = replace(config, fc_bias="fc.bias" in given)
        wide, vocabulary = config.layer.vocab_size, config.draft_vocab_size
        shifts = given.pop("d2t", None)
        if shifts is None and vocabulary != wide:
            raise ValueError(f"{file}: d2t is missing, a head with {vocabulary} of {wide} tokens must have it")
        kept = None if shifts is None else torch.arange(len(shifts)) + shifts.long()
        if kept is not None and (
            len(kept) != vocabulary or (kept.diff() <= 0).any() or kept[0] < 0 or kept[-1] >= wide
        ):
            raise ValueError(
                f"{file}: d2t must have {vocabulary} differences between ascending ids below {wide} and their places"
            )
        own_head, own_embeddings = "lm_head.weight" in given, "embed_tokens.weight" in given
        for name in _IGNORED:
            given.pop(name, None)
        return filled(lambda: cls(config, kept, own_head, own_embeddings), given, file)

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` in SafeAILab's layout, which engines can read."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        first = "midlayer." if len(self.layers) == 1 else "layers.0."
        tensors = {
            name.replace("layers.0.", first): tensor.detach().contiguous().cpu()
            for name, tensor in self.tensors().items()
        }
        kept = self.kept.cpu()
        if len(kept) < self.config.layer.vocab_size:
            tensors["d2t"] = kept - torch.arange(len(kept))
            tensors["t2d"] = torch.zeros(self.config.layer.vocab_size, dtype=torch.bool)
            tensors["t2d"][kept] = True
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        (path / "config.json").write_text(json.dumps(self.config.to_dict(), indent=2) + "\n", encoding="utf-8")


def read_head(folder: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Path]:
    """Return the contents of ``config.json``, the tensors and their file. Raises ``ValueError`` if one is unusable."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ValueError(f"{path}: config.json is missing, a head's folder must have it")
    file = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
    if file is None:
        raise ValueError(f"{path}: model.safetensors is missing, a head's folder must have it")
    try:
        if file.suffix == ".bin":
            given = torch.load(file, map_location="cpu", weights_only=True)
        elif file.name == FILE:
            given = unpack(str(path))
        else:
            given = load_file(file)
        content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except Exception as error:  # safetensors, pickle and zip files have errors of their own
        name = "config.json" if isinstance(error, json.JSONDecodeError) else file.name
        raise ValueError(f"{path / name} cannot be read ({first_line(error)}): copy it again") from error
    return content, given, file


def filled(make: Callable[[], Network], given: Mapping[str, torch.Tensor], file: Path) -> Network:
    """Build a network from the tensors in a file. Raises ``ValueError`` if names or shapes do not match."""
    with torch.device("meta"):
        shape = make().tensors()
    for name, tensor in shape.items():
        found = given.get(name)
        if found is None:
            raise ValueError(f"{file}: {name} is missing, which config.json requires")
        if found.shape != tensor.shape:
            raise ValueError(f"{file}: {name} must be {list(tensor.shape)}, got {list(found.shape)}")
    unknown = sorted(given.keys() - shape.keys())
    if unknown:
        raise ValueError(f"{file}: {unknown[0]} is not a tensor of the head that config.json describes")
    made = make().to(given["fc.weight"].dtype)
    with torch.no_grad():
        for name, tensor in made.tensors().items():
            tensor.copy_(given[name])
    made.eval().requires_grad_(False)
    return made


class Rotation:
    """Rotary position embeddings for the queries and keys of :class:`DecoderLayer`."""

    def __init__(self, layer: PretrainedConfig) -> None:
        rotary = LlamaRotaryEmbedding(layer)
        self._rates, self._scale = rotary.inv_freq, rotary.attention_scaling  # rates: [head_dim / 2]

    def turn(self, positions: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[m, head_dim]`` for positions ``[m]``. Sines in the first half are negated."""
        angles = positions[:, None].float() * self._rates.to(positions.device)
        cosine, sine = angles.cos() * self._scale, angles.sin() * self._scale
        return torch.cat((cosine, cosine), dim=-1).to(like), torch.cat((-sine, sine), dim=-1).to(like)


class DecoderLayer(nn.Module):
    """A decoder layer with fused projections.

    Args:
        layer: a Llama or Qwen3 configuration.
        number: the layer's index in the cache.
        first: whether its input is an embedding joined with the preceding state, as in EAGLE-3's first layer.
        norm_before_residual: whether the residual is the normalized state; only used if ``first``.
    """

    def __init__(
        self, layer: PretrainedConfig, number: int, first: bool = False, norm_before_residual: bool = False
    ) -> None:
        super().__init__()
        width, heads, eps = layer.hidden_size, layer.num_attention_heads, layer.rms_norm_eps
        self.number = number
        self.first = first
        self.norm_before_residual = norm_before_residual
        self.heads = heads
        self.kv_heads = layer.num_key_value_heads
        self.size = getattr(layer, "head_dim", None) or width // heads
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        if first:
            self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.qkv = nn.Linear((1 + first) * width, (heads + 2 * self.kv_heads) * self.size, bias=False)
        self.self_attn: Any = nn.Module()
        self.self_attn.o_proj = nn.Linear(heads * self.size, width, bias=False)
        self.normed = layer.model_type == "qwen3"
        if self.normed:
            self.self_attn.q_norm, self.self_attn.k_norm = (nn.RMSNorm(self.size, eps=eps) for _ in range(2))
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)
        self.gate_up = nn.Linear(width, 2 * layer.intermediate_size, bias=False)
        self.mlp: Any = nn.Module()
        self.mlp.down_proj = nn.Linear(layer.intermediate_size, width, bias=False)

    def parts(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return, for each fused parameter, views of its parts, keyed by their names in files."""
        sizes = [self.heads * self.size, self.kv_heads * self.size, self.kv_heads * self.size]
        names = (
            [f"self_attn.{name}_proj.weight" for name in "qkv"],
            ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        )
        return {
            "qkv.weight": dict(zip(names[0], torch.split(self.qkv.weight, sizes), strict=True)),
            "gate_up.weight": dict(zip(names[1], self.gate_up.weight.chunk(2), strict=True)),
        }

    def projected(
        self, normed: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values ``[..., heads, m, head_dim]`` for normalized inputs ``[..., m, width]``."""
        # [..., heads + 2 kv_heads, m, size]
        mixed = self.qkv(normed).unflatten(-1, (-1, self.size)).transpose(-2, -3)
        turned = mixed[..., : -self.kv_heads, :, :]
        v = mixed[..., -self.kv_heads :, :, :]
        if self.normed:
            q, k = turned[..., : self.heads, :, :], turned[..., self.heads :, :, :]
            turned = torch.cat((self.self_attn.q_norm(q), self.self_attn.k_norm(k)), dim=-3)
        turned = torch.addcmul(turned * turn[0], turned.roll(self.size // 2, -1), turn[1])
        return turned[..., : self.heads, :, :], turned[..., self.heads :, :, :], v

    @override
    def forward(
        self,
        x: torch.Tensor,
        embedded: torch.Tensor | None,
        turn: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor | None,
        cache: KeyValues | None,
    ) -> torch.Tensor:
        if self.first:
            normed = self.hidden_norm(x)
            x = normed if self.norm_before_residual else x
            assert embedded is not None
            normed = torch.cat((self.input_layernorm(embedded), normed), dim=-1)  # the embedding first
        else:
            normed = self.input_layernorm(x)
        q, k, v = self.projected(normed, turn)
        if cache is not None:
            k, v = cache.update(k, v, self.number)
        groups = self.heads != self.kv_heads
        causal = visible is None and k.shape[-2] == q.shape[-2]  # not for one row after cached ones
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=causal, enable_gqa=groups)
        x = x + self.self_attn.o_proj(mixed.transpose(-2, -3).flatten(-2))
        gate, up = self.gate_up(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        made: torch.Tensor = x + self.mlp.down_proj(F.silu(gate) * up)
        return made
