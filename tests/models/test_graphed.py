"""``pair.mode: graphed`` on a CPU: the captured code under replayers that do to it what a graph would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checked_replay import CheckedReplay, addresses
from helpers.drawn_trees import random_shape
from helpers.fake_cuda import fake_cuda, on_fake_cuda
from helpers.small_models import FULL_ATTENTION, build, sliding_model

from specexp.base.kernels import CannotRunError
from specexp.builders import Chain, KConfig, TokenRecyclingTree
from specexp.core.context import Context
from specexp.core.contracts import DeterministicVerifier
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder, Decoding, Drafting, Lane
from specexp.core.parts import Parts, join_target
from specexp.core.runtime import Growth, Runtime, TokenRequest
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import DraftModel, TokenRecycling
from specexp.models.graphed import GraphedModel, check_device
from specexp.models.static_draft import DraftStep
from specexp.models.static_slots import ATTENTIONS, StaticSlots
from specexp.models.static_step import (
    GRAPH_BYTES,
    MOVES,
    GraphReplay,
    Replayer,
    Shape,
    Step,
    TokenChoice,
    TreeStep,
    Window,
)
from specexp.testing.runtimes import RuntimeContract
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling

LONG = 700
MISTRAL = {**FULL_ATTENTION["Llama"], "sliding_window": None, "num_key_value_heads": 1}
MODELS = FULL_ATTENTION | {"Mistral": MISTRAL}
LAWS = {"greedy": Greedy(), "keyed": KeyedSampling(0.8, top_k=20, top_p=0.95)}


def model(name: str = "Llama", positions: int = LONG) -> Any:
    settings = {**MODELS[name], "max_position_embeddings": positions}
    if name == "GPT2":
        settings = {**MODELS[name], "n_positions": positions}
    return build(name, settings, dtype=torch.float32)


def checked(name: str = "Llama") -> GraphedModel:
    return GraphedModel(model(name), CheckedReplay)


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(2, 60, count).tolist()


def random_tree(nodes: int, seed: int) -> TokenTree:
    return TokenTree(random_shape(nodes + 1, np.random.default_rng(seed)), np.array(tokens(nodes + 1, seed)))


def chain(length: int, seed: int = 0) -> TokenTree:
    return TokenTree(TreeShape(range(-1, length), [-1, *[0] * length]), np.array(tokens(length + 1, seed)))


@pytest.mark.parametrize("replayer", [Replayer, CheckedReplay])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.variants(2, "name")
class TestGraphed(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str, replayer: type[Replayer]) -> None:
        self.model, self.replayer = build(name, MODELS[name], dtype=torch.float32), replayer

    def runtime(self) -> Runtime:
        return GraphedModel(self.model, self.replayer)


@pytest.mark.parametrize("name", ["Gemma2", "Gemma3Text", "GptOss", "Mistral"])
@pytest.mark.variants(1, "name")
class TestGraphedWithWindows(RuntimeContract):
    @pytest.fixture(autouse=True)
    def _model(self, name: str) -> None:
        self.model = sliding_model(name)

    def runtime(self) -> Runtime:
        return GraphedModel(self.model, CheckedReplay)


# Edges: each is told to the graphed model and to the model's own code, which must agree.


def same(story: Callable[[Runtime], list[torch.Tensor]]) -> None:
    graphed, own = story(checked()), story(LanguageModel(model()))
    assert len(graphed) == len(own) > 0
    for one, other in zip(graphed, own, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.variants(6)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 63, 64, 65])
@pytest.mark.parametrize("past", [20, 500, 508])
def test_buckets_of_rows_and_keys_have_no_edge(rows: int, past: int) -> None:
    def story(runtime: Runtime) -> list[torch.Tensor]:
        runtime.prefill(0, tokens(past))
        first = runtime.tree_pass([0], [random_tree(rows - 1, seed=1)]).logits[0].clone()
        runtime.commit(0, [0])
        return [first, runtime.tree_pass([0], [random_tree(rows - 1, seed=2)]).logits[0].clone()]

    same(story)


def committed(runtime: Runtime) -> None:
    """Leave a commit that moves rows to be done by the next pass of slot 0."""
    runtime.prefill(0, tokens(20))
    runtime.tree_pass([0], [TokenTree(TreeShape([-1, 0, 0, 1, 2], [-1, 0, 1, 0, 0]), np.array(tokens(5)))])
    runtime.commit(0, [0, 2, 4])


def truncated(runtime: Runtime) -> None:
    committed(runtime)
    runtime.cache.truncate(0, 22)


def forked(runtime: Runtime) -> None:
    runtime.prefill(1, tokens(9, seed=4))
    committed(runtime)
    runtime.cache.fork(0, 1, 23)
    runtime.tree_pass([1], [chain(2)])
    runtime.commit(1, [0, 1])


def prefilled(runtime: Runtime) -> None:
    committed(runtime)
    runtime.prefill(0, tokens(5, seed=9))


def left(runtime: Runtime) -> None:
    """Another slot's passes lie between a commit and the next pass of its own slot."""
    runtime.prefill(2, tokens(11, seed=3))
    committed(runtime)
    runtime.tree_pass([2], [chain(4)])


def begun_anew(runtime: Runtime) -> None:
    """A staged move is no business of the next sequence of its slot."""
    committed(runtime)
    runtime.cache.truncate(0, 0)
    runtime.prefill(0, tokens(30, seed=5))


def grown_room(runtime: Runtime) -> None:
    committed(runtime)
    runtime.cache.reserve(600, 2)


def far(runtime: Runtime) -> None:
    """More rows are kept than a step moves."""
    runtime.prefill(0, tokens(20))
    length = MOVES + 4
    shape = TreeShape([-1, 0, 0, *range(2, length)], [-1, 0, 1, *[0] * (length - 2)])
    runtime.tree_pass([0], [TokenTree(shape, np.array(tokens(length + 1)))])
    runtime.commit(0, [0, *range(2, length + 1)])


@pytest.mark.parametrize("event", [committed, truncated, forked, prefilled, left, begun_anew, grown_room, far])
def test_a_deferred_commit_survives(event: Callable[[Runtime], None]) -> None:
    def story(runtime: Runtime) -> list[torch.Tensor]:
        event(runtime)
        lengths = [torch.tensor([float(runtime.length(0))])]
        slots = [0, 1] if event is forked else [0]
        answers = runtime.tree_pass(slots, [random_tree(6, seed=7 + slot) for slot in slots])
        return lengths + [answer.clone() for answer in answers.logits]

    same(story)


def test_a_stop_inside_an_accepted_path_keeps_the_tokens_before_it() -> None:
    """The output ends at a token that was drafted, and a continued conversation goes on behind it."""
    own, prompt = model(), tokens(20)
    plain = Decoder(LanguageModel(own)).generate(prompt, max_new_tokens=24).token_ids
    for runtime in (LanguageModel(own), GraphedModel(own, CheckedReplay)):
        decoder = Decoder(runtime, TokenRecycling(), TokenRecyclingTree())
        first = decoder.generate(prompt, max_new_tokens=24, eos_token_id=plain[9]).token_ids
        assert first == plain[: plain.index(plain[9]) + 1]
        more = decoder.generate([*prompt, *first, 5, 6], max_new_tokens=8, continue_conversation=True)
        expected = Decoder(LanguageModel(own)).generate([*prompt, *first, 5, 6], max_new_tokens=8)
        assert more.token_ids == expected.token_ids


# What comes with a pass.


@pytest.mark.parametrize("verifier", LAWS.values(), ids=LAWS)
def test_the_tokens_of_a_pass_are_those_of_its_logits(verifier: Any) -> None:
    runtime, prompt, tree = checked(), tokens(12), random_tree(9, seed=3)
    context = Context([*prompt, int(tree.tokens[0])], seed=7, noise_temperature=verifier.noise_temperature)
    runtime.prefill(0, prompt)
    runtime.request_tokens(0, TokenRequest(context, verifier, learned=4))
    ((logits, _, computed),) = runtime.tree_pass([0], [tree]).by_tree()
    positions = len(context) + tree.shape.depths
    expected = [verifier.target_token(context, row, int(at)) for row, at in zip(logits, positions, strict=True)]
    assert computed.tokens.tolist() == expected


def test_a_verifier_without_scores_chooses_its_tokens_itself() -> None:
    class Last(DeterministicVerifier):
        law = "last"

        def target_token(self, context: Context, logits: torch.Tensor, position: int) -> int:
            return logits.shape[0] - 1

    result = Decoder(checked(), verifier=Last()).generate(tokens(8), max_new_tokens=3)
    assert result.token_ids == [60, 60, 60]


def test_requests_of_different_verifiers_share_a_pass_that_computes_no_tokens() -> None:
    runtime = checked()
    for slot, verifier in enumerate(LAWS.values()):
        runtime.prefill(slot, tokens(8, seed=slot))
        runtime.request_tokens(slot, TokenRequest(Context(tokens(9, seed=slot)), verifier, learned=0))
    result = runtime.tree_pass([0, 1], [chain(2), chain(3)])
    assert [len(logits) for logits in result.logits] == [3, 4]
    assert not any(result.tokens)
    runtime.request_tokens(1, None)
    assert all(runtime.tree_pass([0], [chain(2)]).tokens)


@pytest.mark.variants(1)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_agrees_with_the_models_own(name: str) -> None:
    runtime, tree = checked(), random_tree(9, seed=3)
    runtime.attention = name
    runtime.prefill(0, tokens(12))
    own = LanguageModel(model())
    own.prefill(0, tokens(12))
    answers = [one.tree_pass([0], [tree]).logits[0] for one in (runtime, own)]
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-4)


def test_the_fastest_attention_that_agrees_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timed(Replayer):
        measures = True

    wrong = {"wrong": lambda query, key, value, mask, scale: torch.zeros_like(query)}
    monkeypatch.setattr("specexp.models.graphed.ATTENTIONS", {**ATTENTIONS, **wrong})
    monkeypatch.setitem(ATTENTIONS, "wrong", wrong["wrong"])
    runtime = GraphedModel(model(), Timed)
    runtime.prefill(0, tokens(12))
    runtime.tree_pass([0], [chain(3)])
    assert runtime.fastest
    assert set(runtime.fastest.values()) <= {"packed", "explicit", "flex"}
    assert set(runtime.provenance()["attention"].split(", ")) == set(runtime.fastest.values())


def test_the_share_of_replayed_steps_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specexp.models.graphed.MOST_ROWS", 8)  # larger passes run uncaptured
    runtime = checked()
    assert runtime.provenance()["replayed"] == "no step yet"
    runtime.prefill(0, tokens(12))
    for nodes in (3, 3, 3, 20):
        runtime.tree_pass([0], [chain(nodes)])
    assert runtime.provenance()["replayed"] == "75% of 4 steps"


# Nothing waits for the device, nothing is traced anew, memory is known before it is taken.


@pytest.mark.variants(3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("verifier", LAWS.values(), ids=LAWS)
def test_a_step_never_waits_for_the_device(name: str, verifier: Any) -> None:
    with torch.device("meta"):
        on_meta = build(name, MODELS[name], dtype=torch.bfloat16)
    with fake_cuda():
        runtime = GraphedModel(on_fake_cuda(on_meta), Replayer, self_check=False)
        runtime.cache.reserve(100, 2)
        choice = TokenChoice(verifier.law, learned=4, positions=4 if verifier.noise_temperature else 0)
        step = TreeStep(Shape(Window(0, 2, 512), 8, 8, hidden=True), runtime, choice, verifier)
        step.send()
        step.run()
        assert step.logits.device == torch.device("cuda:0")


@pytest.mark.slow
def test_a_thousand_trees_are_one_captured_step() -> None:
    class Compiled(Replayer):
        def __init__(self, step: Step) -> None:
            super().__init__(step)
            self._run = torch.compile(step.run, fullgraph=True, backend="aot_eager", dynamic=False)

        def replay(self) -> None:
            self.step.send()
            self._run()

    compiled, eager = GraphedModel(model(), Compiled, self_check=False), GraphedModel(model(), Replayer)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for runtime in (compiled, eager):
            runtime.prefill(0, tokens(15))
        for seed in range(1000):
            tree = random_tree(15, seed)
            answers = [runtime.tree_pass([0], [tree]).logits[0] for runtime in (compiled, eager)]
            torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-4)
    assert len(compiled._replayers) == 1


def test_memory_is_what_the_meta_device_predicts() -> None:
    """Of the cache and of the buffers of every step, before any of it is taken."""
    used = checked()
    used.cache.reserve(600, 3)
    used.prefill(0, tokens(20))
    for nodes in (1, 5, 20):
        used.tree_pass([0], [chain(nodes)])
    with torch.device("meta"):
        predicted = GraphedModel(model(), Replayer, self_check=False)
    predicted.cache.reserve(600, 3)
    for shape, reading in used._replayers:  # type: ignore[misc]
        predicted._replayer((shape, reading), partial(TreeStep, shape, predicted, reading))
    assert predicted.nbytes() == used.nbytes() > used.cache.nbytes() > 0


def test_memory_is_held_for_graphs_before_the_cache_is_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    class Holding(Replayer):
        @classmethod
        def reserve(cls, device: torch.device) -> None:
            taken.append("graphs")

    init = StaticSlots.__init__
    monkeypatch.setattr(StaticSlots, "__init__", lambda slots, own: (taken.append("cache"), init(slots, own))[1])
    GraphedModel(model(), Holding, self_check=False)
    assert taken == ["graphs", "cache"]
    monkeypatch.setattr(GraphReplay, "_reserved", None)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (60 * GRAPH_BYTES, 80 * GRAPH_BYTES))
    GraphReplay.reserve(torch.device("meta"))
    GraphReplay.reserve(torch.device("meta"))  # once, whatever the number of models
    assert [block.nbytes for block in GraphReplay._reserved or ()] == [GRAPH_BYTES] * 3


def test_rejection_sampling_moves_few_numbers_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities of drafted tokens, and rows of the vocabulary only where a first child is rejected."""
    for name in ("specexp.core.loop", "specexp.verifiers.rejection_sampling"):
        monkeypatch.setattr(f"{name}.on_host", lambda tensor: False)
    moved: list[int] = []
    size, to_numpy = 60, torch.Tensor.numpy

    def counted(tensor: torch.Tensor, **given: Any) -> Any:
        moved.append(tensor.numel())
        return to_numpy(tensor, **given)

    draft = DraftModel(model())
    decoder = Decoder(checked(), draft, KConfig([3, 2, 2], candidates="drawn"), RejectionSampling(0.8))
    steps: list[tuple[int, int]] = []

    def observe(outcome: Any) -> None:
        steps.append((sum(moved), len(outcome.accepted)))
        moved.clear()

    def verify(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "numpy", counted)
            return VERIFY(*given)

    monkeypatch.setattr(RejectionSampling, "verify", verify)
    decoder.generate(tokens(6) * 4, max_new_tokens=40, seed=3, observers=[observe])
    nodes = 22  # and the root
    assert len(steps) > 5
    # a row of V for each rejected first child on the path, and for the bonus token
    assert all(numbers <= nodes + (accepted + 1) * (size + 1) for numbers, accepted in steps)
    assert min(numbers for numbers, _ in steps) <= nodes + size + 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verifier", LAWS.values(), ids=LAWS)
def test_outputs_are_those_of_the_models_own_code(verifier: Any) -> None:
    own = model()
    graphed = Decoder(GraphedModel(own, Replayer), TokenRecycling(), TokenRecyclingTree(), verifier)
    plain = Decoder(LanguageModel(own), verifier=verifier)
    for seed in range(200):
        prompt = tokens(10 + seed % 40, seed)
        outputs = [one.generate(prompt, max_new_tokens=128, seed=seed).token_ids for one in (graphed, plain)]
        assert outputs[0] == outputs[1], seed


# Planted bugs of engines with trees in graphs: each must be found by what follows.


def decoded(target: Runtime, draft: Runtime) -> list[Any]:
    """Outputs and steps of a few short tasks that use everything a graphed model does."""
    found: list[Any] = []
    prompt = tokens(6) * 4
    for drafter, builder, verifier in (
        (TokenRecycling(), TokenRecyclingTree(), Greedy()),
        (TokenRecycling(), KConfig([3, 2, 1]), KeyedSampling(0.7)),
        (DraftModel(draft), Chain(4), Greedy()),
    ):
        result = Decoder(target, drafter, builder, verifier).generate(prompt, max_new_tokens=40, seed=3)
        found += [result.token_ids, result.steps]
    target.cache.truncate(0, 0)
    target.cache.reserve(0, 2)
    target.prefill(0, prompt[:-1])
    target.tree_pass([0], [TokenTree(TreeShape([-1, 0, 0, 2], [-1, 0, 1, 0]), np.array([prompt[-1], 3, 4, 5]))])
    target.commit(0, [0, 2, 3])
    target.cache.fork(0, 1, target.length(0))
    lanes = []
    decoding = Decoding(target)
    for slot in (0, 1):
        own = Parts(TokenRecycling(), KConfig([2, 2]))
        join_target(own, target)
        context = own.context([*prompt, 4, 5, 7 + slot], 0, slot)
        lanes.append(Lane(context, target, own.verifier, Drafting(own, context), slot=slot, max_new_tokens=20))
        decoding.start(lanes[-1])
    while decoding.lanes:
        decoding.step()
    return [*found, *(lane.result.token_ids for lane in lanes)]


VERIFY = RejectionSampling.verify
RUN, FILL = TreeStep.run, TreeStep.fill
COMMIT, FORK = StaticSlots.commit, StaticSlots.fork


def stale_inputs(step: Step) -> None:
    """The copy of the inputs is left out once in a while."""
    step._sent = getattr(step, "_sent", 0) + 1  # type: ignore[attr-defined]
    if step._sent % 3:  # type: ignore[attr-defined]
        step._inputs.send()


def accepted_rows_stay_where_they_were(slots: StaticSlots, slot: int, rows: Any) -> None:
    COMMIT(slots, slot, rows)
    slots.moves.pop(slot, None)


def moves_one_after_the_other(step: Step) -> None:
    """A row is read after another one was written over it."""
    given, storage = step._inputs.device, step.cache.storage
    for lane in range(step.window.lanes):
        for place in reversed(range(MOVES)):
            source, target = (int(given[name][lane, place]) for name in ("moved", "moved_to"))
            storage[:, step.window.first + lane, :, target] = storage[:, step.window.first + lane, :, source]
        given["moved"][lane] = given["moved_to"][lane] = step.cache.storage.shape[3] - 1
    RUN(step)


def mask_off_by_one(step: Step) -> None:
    step._inputs.device["base"] += 1
    RUN(step)


def depths_from_places(step: TreeStep, lane: int, past: int, growth: Growth) -> None:
    """A position is taken from a row's place in the pass."""
    FILL(step, lane, past, replace(growth, depths=np.arange(growth.tokens.size)))


def padding_over_the_first_row(step: TreeStep) -> None:
    CLEAR(step)
    step._inputs.host["written"].fill(0)


def a_length_baked_in(step: Step) -> None:
    step._inputs.device["base"].fill_(step.cache.lengths[step.window.first])
    RUN(step)


def draft_rows_over_each_other(step: TreeStep, lane: int, past: int, growth: Growth) -> None:
    """What a draft model wrote in the passes before, of the same tree, is lost."""
    FILL(step, lane, past, growth)
    step._inputs.host["written"][lane, : growth.tokens.size] = past + np.arange(growth.tokens.size)


def fork_without_the_staged_move(slots: StaticSlots, source: int, target: int, length: int) -> None:
    staged = slots.moves.pop(source, [])
    FORK(slots, source, target, length)
    slots.moves[source] = staged


def noise_of_the_position_before(context: Context, position: int, *rest: Any) -> torch.Tensor:
    return NOISE(context, position - 1, *rest)


def answers_of_the_pass_before(step: Step, lane: int, rows: int, context: Context) -> Any:
    """What was read is looked at before the device has written it."""
    before = getattr(step, "_before", None)
    now = TOKENS(step, lane, rows, context)
    step._before = now._replace(tokens=now.tokens.copy())  # type: ignore[attr-defined]
    return now if before is None or before.tokens.size != rows else now._replace(tokens=before.tokens)


def storage_taken_anew(slots: StaticSlots, slot: int, rows: Any) -> None:
    """The cache moves to other memory, and graphs go on with the old one."""
    COMMIT(slots, slot, rows)
    slots.storage.set_(slots.storage.clone())  # type: ignore[call-overload]


def draft_nodes_never_written(step: DraftStep, fed: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The levels of a captured draft see no node above them in the cache (MUSA #43)."""
    first_pass = rows < step._inputs.device["base"] + step.pending
    return rows.masked_fill(~(fed & first_pass), step.cache.capacity)


def draft_nodes_of_the_tree_before(step: DraftStep, lane: int) -> Any:
    """Results are read before the device has written them."""
    before, now = getattr(step, "_before", None), DRAFTED(step, lane)
    step._before = (now[0].copy(), now[1].copy(), now[2])  # type: ignore[attr-defined]
    return before or now


DRAFTED = DraftStep.outputs_of
CLEAR, NOISE, TOKENS = TreeStep.clear, Context.target_noise, TreeStep.tokens
PLANTS: dict[Callable[..., Any], tuple[type, str]] = {
    stale_inputs: (Step, "send"),
    accepted_rows_stay_where_they_were: (StaticSlots, "commit"),
    moves_one_after_the_other: (TreeStep, "run"),
    mask_off_by_one: (TreeStep, "run"),
    depths_from_places: (TreeStep, "fill"),
    padding_over_the_first_row: (TreeStep, "clear"),
    a_length_baked_in: (TreeStep, "run"),
    draft_rows_over_each_other: (TreeStep, "fill"),
    fork_without_the_staged_move: (StaticSlots, "fork"),
    noise_of_the_position_before: (Context, "target_noise"),
    answers_of_the_pass_before: (TreeStep, "tokens"),
    storage_taken_anew: (StaticSlots, "commit"),
    draft_nodes_never_written: (DraftStep, "_written"),
    draft_nodes_of_the_tree_before: (DraftStep, "outputs_of"),
}


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return decoded(LanguageModel(model()), LanguageModel(model()))


def test_without_a_bug_everything_is_as_by_the_models_own_code(expected: list[Any]) -> None:
    assert decoded(checked(), checked()) == expected


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@pytest.mark.variants(2)
def test_a_planted_bug_is_found(
    plant: Callable[..., Any], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = checked(), checked()
    owner, name = PLANTS[plant]
    monkeypatch.setattr(owner, name, plant)
    try:
        found = decoded(target, draft)
    except (AssertionError, TypeError, ValueError, IndexError, RuntimeError):
        return
    assert found != expected


def test_a_model_that_cannot_be_captured_runs_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(step: Step) -> None:
        raise RuntimeError("no capture")

    monkeypatch.setattr(TreeStep, "run", failing)
    with pytest.raises(CannotRunError, match=r"the llama model cannot run graphed passes \(RuntimeError: no capture\)"):
        checked()


def test_a_step_that_cannot_be_captured_runs_by_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a verifier or a drafter may wait for the device; the passes of the model are still captured."""
    warnings: list[str] = []
    monkeypatch.setattr("specexp.models.graphed.tell_once", warnings.append)
    monkeypatch.setattr(CheckedReplay, "__init__", cannot_capture_readings)
    runtime, own = checked(), model()
    found = Decoder(runtime, TokenRecycling(), TokenRecyclingTree()).generate(tokens(9), max_new_tokens=8)
    assert found.token_ids == Decoder(LanguageModel(own)).generate(tokens(9), max_new_tokens=8).token_ids
    assert runtime.provenance()["replayed"].startswith("0% of")
    assert warnings
    assert set(warnings) == {"a step of the llama model runs uncaptured (RuntimeError: it waits)"}


def cannot_capture_readings(replayer: CheckedReplay, step: Step) -> None:
    if isinstance(step, TreeStep) and step.choice is not None:
        raise RuntimeError("it waits")
    replayer.step, replayer._addresses = step, addresses(step)


def test_a_device_is_checked_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device(torch.device("cpu"), CheckedReplay)
    monkeypatch.setattr(StaticSlots, "commit", accepted_rows_stay_where_they_were)
    with pytest.raises(CannotRunError, match="differ from the model's own code"):
        check_device(torch.device("cpu"), CheckedReplay)


def test_a_device_that_cannot_capture_is_one_sentence() -> None:
    class Broken(Replayer):
        def replay(self) -> None:
            raise RuntimeError("capture failed")

    with pytest.raises(CannotRunError, match=r"do not run on cpu \(RuntimeError: capture failed\)"):
        check_device(torch.device("cpu"), Broken)
