"""A draft tree in one replay: the same trees as pass by pass, with one wait a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.checked_replay import CheckedReplay
from helpers.fake_cuda import fake_cuda, on_fake_cuda
from helpers.small_models import FULL_ATTENTION, build

from specexp.builders import BeamRerank, Chain, DySpecGreedy, KConfig, StaticTree
from specexp.core.contracts import TreeBuilder, Verifier
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder, Decoding, Drafting, Lane
from specexp.core.parts import Parts, join_target
from specexp.core.runtime import Runtime
from specexp.drafters import DraftModel
from specexp.drafters.ranking import Scoring
from specexp.models.graphed import GraphedModel
from specexp.models.static_draft import DraftLevel, DraftPlan, DraftStep
from specexp.models.static_step import Replayer, Step, Window
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

PROMPT = [5, 6, 7, 8] * 4
TREES: dict[str, tuple[TreeBuilder, dict[str, Any], Verifier]] = {
    "chain": (Chain(5), {}, Greedy()),
    "sharpened chain": (Chain(4), {"temperature": 0.0}, Greedy()),
    "levels": (KConfig([3, 2, 2]), {}, Greedy()),
    "beam": (BeamRerank(20, 4, 4), {}, Greedy()),
    "beam of few tokens": (BeamRerank(10, 3, 3), {"top_k": 20, "temperature": 0.7}, Greedy()),
    "coupled tree": (KConfig([3, 2, 2]), {"coupled": True}, KeyedSampling(0.8)),
}


def model(name: str, positions: int = 700) -> Any:
    key = "n_positions" if name == "GPT2" else "max_position_embeddings"
    return build(name, {**FULL_ATTENTION[name], key: positions}, dtype=torch.float32)


def drafted(
    runtime: Runtime, tree: tuple[TreeBuilder, dict[str, Any], Verifier], tokens: int = 40
) -> tuple[list[Any], DraftModel]:
    """Output, trees and draft passes of every step, with ``runtime`` as the draft."""
    builder, settings, verifier = tree
    steps: list[Any] = []
    drafter = DraftModel(runtime, **settings)
    decoder = Decoder(LanguageModel(model("Qwen2")), drafter, builder, verifier)
    for seed in (3, 4):
        result = decoder.generate(
            PROMPT,
            max_new_tokens=tokens,
            seed=seed,
            observers=[
                lambda step: steps.append(
                    (step.tree.tokens.tolist(), step.tree.shape.parents.tolist(), step.pass_tokens)
                )
            ],
        )
        steps.append(result.token_ids)
    return steps, drafter


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.variants(1)
def test_a_tree_in_one_replay_is_the_tree_of_its_passes(tree: Any) -> None:
    own, _ = drafted(LanguageModel(model("Llama")), tree)
    found, drafter = drafted(GraphedModel(model("Llama"), CheckedReplay), tree)
    assert found == own
    runtime = drafter.models[0]
    assert isinstance(runtime, GraphedModel)
    # pass by pass only in the first two steps and the last ones of an output, where trees are cut
    assert runtime._runs.total() < len(own) + 30 < runtime.passes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tree", ["beam of few tokens", "coupled tree"])
def test_a_draft_is_traced_once_without_a_break(tree: str) -> None:
    """Nothing in it depends on values: this is what a capture needs."""

    class Compiled(Replayer):
        def __init__(self, step: Step) -> None:
            super().__init__(step)
            step.run()  # as before a capture
            self._run = torch.compile(step.run, fullgraph=True, backend="eager", dynamic=False)

        def replay(self) -> None:
            self.step.send()
            (self._run if isinstance(self.step, DraftStep) else self.step.run)()

    torch._dynamo.reset()  # steps of other shapes share the code
    own, _ = drafted(LanguageModel(model("Llama")), TREES[tree], tokens=20)
    with torch._dynamo.config.patch(recompile_limit=64):
        found, _ = drafted(GraphedModel(model("Llama"), Compiled, self_check=False), TREES[tree], tokens=20)
    assert found == own


OTHERS: dict[str, tuple[TreeBuilder, dict[str, Any], Verifier]] = {
    "static tree": (StaticTree([[0], [1], [2], [0, 0], [1, 0], [0, 0, 0], [1, 0, 1]]), {}, Greedy()),
    "greedy tree": (DySpecGreedy(16, candidates="top-k"), {}, Greedy()),
    "drawn tree": (DySpecGreedy(16), {}, RejectionSampling(0.8)),
    "beam of fewer tokens than wide": (BeamRerank(10, 3, 3), {"top_p": 0.9}, Greedy()),
}


@pytest.mark.parametrize("tree", OTHERS.values(), ids=OTHERS)
@pytest.mark.slow
def test_a_tree_with_nodes_that_no_step_drafts_is_unchanged(tree: Any) -> None:
    own, _ = drafted(LanguageModel(model("Llama")), tree)
    assert drafted(GraphedModel(model("Llama"), CheckedReplay), tree)[0] == own


@pytest.mark.parametrize("positions", [40, 41, 42])
@pytest.mark.slow
def test_no_position_beyond_the_drafts_context_is_fed(positions: int) -> None:
    own, _ = drafted(LanguageModel(model("GPT2", positions)), TREES["chain"])
    assert drafted(GraphedModel(model("GPT2", positions), CheckedReplay), TREES["chain"])[0] == own


def test_sequences_draft_in_shared_replays() -> None:
    found = []
    for draft in (LanguageModel(model("Llama")), GraphedModel(model("Llama"), CheckedReplay)):
        target, first = LanguageModel(model("Qwen2")), DraftModel(draft)
        decoding, lanes = Decoding(target), []
        target.cache.reserve(0, 3)
        for slot in range(3):
            parts = Parts(first if slot == 0 else first.for_new_sequence(), KConfig([2, 2]))
            join_target(parts, target)
            context = parts.context([*PROMPT, *range(slot + 1)], 0, slot)
            drafting = Drafting(parts, context)
            lanes.append(Lane(context, target, parts.verifier, drafting, slot=slot, max_new_tokens=20 + 10 * slot))
            decoding.start(lanes[-1])
        while decoding.lanes:
            decoding.step()
        found.append([(lane.result.token_ids, lane.result.steps) for lane in lanes])
        runtime = first.models[0]
    assert found[0] == found[1]
    assert isinstance(runtime, GraphedModel)
    shapes = [one.step.window.lanes for one in runtime._replayers.values() if isinstance(one.step, DraftStep)]
    assert max(shapes) == 4  # three lanes, padded


BEAM = (DraftLevel(4, 4), DraftLevel(8, 4), DraftLevel(8, 4))
PLANS = {
    "chain": DraftPlan((DraftLevel(1, 1),) * 3, 1, Scoring(), 1.0),
    "beam": DraftPlan(BEAM, 4, Scoring(top_k=20), 0.7),
    "coupled": DraftPlan(BEAM, 4, Scoring(coupled=True), 0.7),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_draft_never_waits_for_the_device(plan: DraftPlan) -> None:
    with torch.device("meta"):
        on_meta = build("Llama", FULL_ATTENTION["Llama"], dtype=torch.bfloat16)
    with fake_cuda():
        runtime = GraphedModel(on_fake_cuda(on_meta), Replayer, self_check=False)
        runtime.cache.reserve(100, 2)
        step = DraftStep(Window(0, 2, 512), 2, plan, runtime)
        step.send()
        step.run()
        assert step.logits.shape == (2, step.nodes, runtime.vocab_size)
