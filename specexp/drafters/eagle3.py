"""EAGLE-3: a head that reads hidden states of several target layers (Li et al. 2025, arXiv 2503.01840)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.core.runtime import Growth, Runtime
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters.draft_vocabulary import DraftVocabulary
from specexp.drafters.eagle import StatesDrafter
from specexp.drafters.ranking import Temperature, TopK, TopP

if TYPE_CHECKING:
    from specexp.drafters.eagle3_network import Eagle3Network

log = logging.getLogger(__name__)
_JOINED: WeakKeyDictionary[Any, dict[Any, tuple[Eagle3Network, tuple[int, ...]]]] = WeakKeyDictionary()
_CHAINS, _LENGTH = 8, 25  # number and length of the chains that show which layers a head reads


class Eagle3(StatesDrafter):
    """Drafts with an EAGLE-3, EAGLE-3.1 or P-EAGLE head that was published for the target.

    It loads files from SafeAILab, SpecForge and speculators, which number layers differently. The layers named in the
    file are therefore compared with those one before and one after, on 200 tokens sampled from the target. The best
    match is used. The draft's distribution covers only the head's vocabulary, which may be smaller than the target's.

    Args:
        head: folder with ``config.json`` and ``model.safetensors`` (or ``pytorch_model.bin``), or a hub id;
            ``smollm2:eagle3`` is the embedded head for SmolLM2-135M-Instruct.
        layers: hidden states to read, numbered as in transformers' ``hidden_states`` (k: after k layers). If given, no
            comparison is made.
        temperature: this, the remaining arguments and the errors are as in :class:`~specexp.drafters.DraftModel`.
    """

    def __init__(
        self,
        head: str,
        layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None,
        temperature: Temperature | None = None,
        top_k: TopK | None = None,
        top_p: TopP | None = None,
        coupled: bool = False,
    ) -> None:
        super().__init__(temperature, top_k, top_p, coupled)
        self._head = head
        self._layers = layers

    @override
    def use_target(self, target: Runtime) -> None:
        from specexp.drafters.eagle_source import EagleSource
        from specexp.drafters.parallel import ParallelEagleSource

        known = _JOINED.setdefault(target.model, {})
        key = self._head, tuple(self._layers or ()), target.dtype, target.device
        if key not in known:
            known[key] = self._joined(target)
        network, self.wants_hidden = known[key]
        width = len(self.wants_hidden) * network.config.target_hidden_size
        kind = EagleSource if network.mask_hidden is None else ParallelEagleSource
        source = kind(network, network.embed, network.logits, width, target.vocab_size, target.context_limit)
        source.vocabulary = DraftVocabulary(network.kept, target.vocab_size)
        self.draft_with(source)

    def _joined(self, target: Runtime) -> tuple[Eagle3Network, tuple[int, ...]]:
        """Return the head combined with the target's weights, and the layers that it reads."""
        from specexp.drafters.eagle3_network import Eagle3Network

        network = Eagle3Network.load(folder_of(self._head))
        config, own = network.config, target.model.config.get_text_config()
        depth = own.num_hidden_layers
        layers = tuple(self._layers or config.state_layers or (2, depth // 2, depth - 3))
        wrong = {
            "vocab_size": (config.layer.vocab_size, own.vocab_size),
            "target_hidden_size": (config.target_hidden_size, own.hidden_size),
            "number of hidden states": (config.states, len(layers)),
        }
        for name, (has, wanted) in wrong.items():
            if has != wanted:
                raise ValueError(f"{self._head}: {name} of the head must be {wanted} for this target, got {has}")
        if not 0 <= min(layers) <= max(layers) <= depth:
            raise ValueError(f"{self._head}: layers must be from 0 to {depth}, got {list(layers)}")
        network = network.to(device=target.device, dtype=target.dtype)
        network.share(target.model)
        if self._layers or target.device.type == "meta":  # a dry run has no weights
            return network, layers
        scores = scores_of(network, target, layers)
        best = max(scores, key=lambda chosen: round(scores[chosen], 2))  # the file's if about equal
        if best != layers:
            log.warning(
                "%s: reading the hidden states %s instead of the file's %s, because %.0f %% instead of %.0f %% "
                "of the target's own text would be accepted; set layers to choose",
                *(self._head, list(best), list(layers), 100 * scores[best], 100 * scores[layers]),
            )
        return network, best


def folder_of(head: str) -> Path:
    """Find a head's folder, given an embedded head's name, a folder or a hub id. Raises ``ValueError`` if not found."""
    family, _, name = head.partition(":")
    embedded = Path(__file__).parents[1] / "models" / family / name
    if Path(head).is_dir() or (name and embedded.is_dir()):
        return Path(head) if Path(head).is_dir() else embedded
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(head, allow_patterns=["config.json", "*.safetensors", "*.bin"]))
    except Exception as error:  # the errors depend on the client's version
        raise ValueError(f"{head} does not exist as a folder, and the hub has no such head: {error}") from error


def scores_of(network: Eagle3Network, target: Runtime, layers: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Return the share of the target's own text that a head's drafts would match, for each choice of layers to read.

    The text is a tree of several chains, sampled from the target. The share is the distributions' mean overlap.
    """
    import torch

    depth = target.model.config.get_text_config().num_hidden_layers
    offers = [tuple(one + offset for one in layers) for offset in (0, -1, 1)]  # the file's come first
    offers = [offer for offer in offers if min(offer) >= 0 and max(offer) <= depth]
    every = tuple(sorted({one for offer in offers for one in offer}))
    passes, scores = target.passes, {}
    target.conversation = None
    text = _sampled(target)
    target.keep_hidden(every)
    result = target.tree_pass([0], [text])
    wanted = result.logits[0][1:].float().softmax(-1)[:, network.kept]
    hidden = torch.split(result.hidden[0], network.config.target_hidden_size, dim=-1)
    target.keep_hidden(False)
    target.passes = passes
    parents, device = text.shape.parents[1:], target.device
    visible = torch.from_numpy(text.shape.ancestor_mask[1:, 1:]).to(device)
    positions = torch.from_numpy(text.shape.depths[1:] - 1).to(device)
    with torch.inference_mode():
        embedded = network.embed(torch.from_numpy(text.tokens[1:]).to(device))
        for offer in offers:
            states = torch.cat([hidden[every.index(one)][parents] for one in offer], dim=-1).to(embedded)
            made = network(embedded, network.fuse_states(states), positions, visible)
            drafted = network.logits(made).float().softmax(-1)
            scores[offer] = float(torch.minimum(wanted, drafted).sum(-1).mean())
    return scores


def _sampled(target: Runtime) -> TokenTree:
    """Return chains of tokens below one root, sampled from the target with a fixed seed."""
    import torch

    length = min(_LENGTH, target.context_limit - 2)
    paths = [[chain, *[0] * depth] for depth in range(length) for chain in range(_CHAINS)]
    shape = TreeShape.from_rank_paths(paths)
    random = torch.Generator().manual_seed(0)
    tokens = [target.model.config.get_text_config().bos_token_id or 0]
    target.cache.reserve(shape.parents.size)
    target.cache.truncate(0, 0)
    for depth in range(length):
        rows = np.flatnonzero(shape.depths == depth)
        growth = Growth(np.array(tokens)[rows], shape.depths[rows], shape.ancestor_mask[rows, : rows[-1] + 1])
        law = target.grow([0], [growth]).logits[0].float().softmax(-1).cpu()
        tokens += torch.multinomial(law, 1 if depth else _CHAINS, generator=random).flatten().tolist()
    target.cache.truncate(0, 0)
    return TokenTree(shape, np.array(tokens))
