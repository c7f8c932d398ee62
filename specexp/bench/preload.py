"""Token Recycling, or a phrase cache, that starts every prompt from what other prompts taught it, and controllers that
start a run from what they taught them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specexp.artifacts import fingerprint, save_artifact
from specexp.config import ComposedArm, ConfigError, build_data, build_generation
from specexp.core.parts import Parts
from specexp.data import PromptSetError

if TYPE_CHECKING:
    from specexp.core.language_model import LanguageModel
    from specexp.core.parts import Drafter
    from specexp.pairs.pair import ModelPair


def preloaded_drafter(arm: ComposedArm, parts: Parts, model: LanguageModel, pair: ModelPair) -> Drafter:
    """Decode an arm's ``preload`` prompts, keep what the drafter learned as an artifact, and start from it.

    Args:
        arm: with ``preload``.
        parts: of the arm; its drafter and its controller learn here.
        model: the target.
        pair: the target's tokenizer, and the draft model for a drafter that needs one.

    Returns:
        The drafter preloaded from ``<output>/<name>/preloaded/<arm>``. What drafts inside a phrase cache keeps its own
        state policy. The drafter itself where only the controller learns.

    Raises:
        ConfigError: nothing learns: the drafter is neither Token Recycling nor a phrase cache that carries its state,
            and the controller keeps no state; or the prompts cannot be read.
    """
    from specexp.bench.decoder_arm import DecoderArm
    from specexp.core.decoder import Decoder
    from specexp.drafters import PhraseCache, TokenRecycling

    assert arm.preload is not None
    where = f"{arm.config.source_of(('arms',))}: arms.{arm.name}.preload"
    learner = parts.drafter
    drafter_learns = isinstance(learner, TokenRecycling | PhraseCache) and learner.state == "carry"
    if not drafter_learns and (parts.controller is None or not parts.controller.state_dict()):
        raise ConfigError(
            f"{where} needs a TokenRecycling or PhraseCache drafter with state 'carry', or a controller that learns "
            "from the prompts"
        )
    data = build_data(arm.preload, pair.tokenizer)
    try:
        data.setup("test")
    except PromptSetError as error:
        raise ConfigError(f"{where}: {error}") from error
    teacher = DecoderArm(arm.name, Decoder(model, *parts), pair.tokenizer, build_generation(arm.config))
    for prompt in data.prompts:
        teacher.decode(prompt)
    assert learner is not None
    if not drafter_learns:
        return learner
    if isinstance(learner, PhraseCache):
        kind, payload, learned = "phrase-cache", "phrases.safetensors", learner.store.state_dict()
    else:
        kind, payload, learned = "adjacency-matrix", "matrix.safetensors", learner.state_dict()
    drafter = save_artifact(
        Path(arm.config.get("output")) / arm.config.get("name") / "preloaded" / arm.name,
        kind,
        {payload: learned, "parts.json": {family: arm.config.get(family) for family in Parts._fields}},
        {"study": arm.config.get("name"), "config": arm.preload.to_dict()},
        fingerprint(pair.target, pair.tokenizer),
    ).drafter
    drafter.use_draft_model(pair.draft)
    return drafter
