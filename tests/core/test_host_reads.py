"""Reading logits: the host waits once a target pass and once a draft pass, and unusable logits are reported.

The logits of these models are on the CPU. They are taken for a device's, where every read makes the host wait.
"""

import sys
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from torch.overrides import TorchFunctionMode

from specexp.base.kernels import CannotRunError
from specexp.builders import Chain, DySpecGreedy, KConfig, StaticTree
from specexp.core.context import Context
from specexp.core.language_model import LanguageModel
from specexp.core.loop import Decoder
from specexp.core.sampling import LogitsError, check_logits
from specexp.drafters import DraftModel, TokenRecycling
from specexp.testing.fakes import FakeCausalLM, bigram_model, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling, SampleMatch

VOCABULARY = 12
NAN, INF = float("nan"), float("inf")
_CONVERSIONS = {"__bool__", "__int__", "__float__", "__index__", "__array__"}
_READS = {"item", "tolist", "numpy", "cpu", "nonzero", *_CONVERSIONS}


class Reads(TorchFunctionMode):
    """Counts what a host must wait for."""

    def __init__(self):
        super().__init__()
        self.count, self.paused = 0, False

    def __torch_function__(self, function, types, args=(), kwargs=None):
        by_mask = function is torch.Tensor.__getitem__ and getattr(args[1], "dtype", None) == torch.bool
        if not self.paused and (by_mask or getattr(function, "__name__", "") in _READS):
            self.count += 1
        return function(*args, **(kwargs or {}))

    @contextmanager
    def aside(self):
        """Not counted: a model's own."""
        before, self.paused = self.paused, True
        yield
        self.paused = before


@pytest.fixture
def on_a_device(monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("specexp.") and hasattr(module, "on_host"):
            monkeypatch.setattr(module, "on_host", lambda tensor: False)


def decode(parts, reads, tokens=40):
    """The result, and what was read from one step to the next."""
    drafter, builder, verifier = parts()
    if isinstance(drafter, DraftModel):
        drafter.use_draft_model(LanguageModel(hashed_model(VOCABULARY, 1), self_check=False))
    steps = []
    decoder = Decoder(LanguageModel(hashed_model(VOCABULARY, 0), self_check=False), drafter, builder, verifier)
    forward = LanguageModel._forward

    def counted(*args, **kwargs):
        with reads.aside():
            return forward(*args, **kwargs)

    with reads, patch.object(LanguageModel, "_forward", counted):
        result = decoder.generate(
            [1, 2, 3], max_new_tokens=tokens, seed=0, observers=[lambda _: steps.append(reads.count)]
        )
    return result, [after - before for before, after in pairwise(steps)]


PARTS = {
    "plain": (lambda: (None, None, Greedy()), 0),
    "plain keyed": (lambda: (None, None, KeyedSampling(0.7)), 0),
    "top-k and top-p": (lambda: (TokenRecycling(), Chain(3), KeyedSampling(0.7, top_k=5, top_p=0.9)), 0),
    "token recycling": (lambda: (TokenRecycling(), StaticTree([[0], [1], [0, 0], [1, 0]]), Greedy()), 0),
    "coupled recycling": (lambda: (TokenRecycling(coupled=True), KConfig([3, 2]), KeyedSampling(0.7)), 2),
    "draft chain": (lambda: (DraftModel(), Chain(3), Greedy()), 3),
    "coupled draft tree": (lambda: (DraftModel(coupled=True), KConfig([3, 2, 1]), KeyedSampling(0.7)), 3),
    "DySpec": (lambda: (DraftModel(), DySpecGreedy(8, candidates="top-k"), KeyedSampling(0.7)), None),
}


@pytest.mark.variants(3)
@pytest.mark.parametrize(("parts", "draft_passes"), PARTS.values(), ids=PARTS)
def test_the_host_reads_a_device_once_a_pass(on_a_device, parts, draft_passes):
    result, counts = decode(parts, Reads())
    assert counts
    if draft_passes is None:  # a dynamic builder requests more of the same answers, which costs no pass
        assert sum(counts) <= len(counts) + 2 * result.draft_passes
    else:
        assert max(counts) <= 1 + draft_passes


@pytest.mark.variants(3)
@pytest.mark.parametrize(("parts", "draft_passes"), PARTS.values(), ids=PARTS)
def test_one_read_gives_the_same_tokens_as_reads_row_by_row(request, parts, draft_passes):
    by_row, _ = decode(parts, Reads())
    request.getfixturevalue("on_a_device")
    assert decode(parts, Reads())[0].token_ids == by_row.token_ids


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("wrong", [NAN, INF])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_unusable_logits_are_found_in_that_read(request, place, wrong, role):
    if place == "device":
        request.getfixturevalue("on_a_device")
    good, bad = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [wrong, 0.0]]
    target, draft = (
        LanguageModel(bigram_model(bad if role == one else good), self_check=False) for one in ("target", "draft")
    )
    decoder = Decoder(target, DraftModel(draft), Chain(2), KeyedSampling(0.7))
    with pytest.raises(LogitsError, match=f"the {role} model gave {'NaN' if wrong != wrong else 'infinite'} logits"):
        decoder.generate([0], max_new_tokens=5)


@pytest.mark.parametrize("use", [Decoder, DraftModel])
def test_nan_logits_are_found_by_the_self_check(use):
    sentence = "the model gives NaN logits in a pass without a tree: check its weights, or set another dtype"
    with pytest.raises(CannotRunError, match=f"^{sentence}$"):
        use(bigram_model([[0.0, 1.0], [NAN, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([0.0, NAN, 1.0], "NaN"),
        ([NAN, INF, 1.0], "NaN"),
        ([-INF, INF, 1.0], "infinite"),
        ([-INF] * 3, "only -inf"),
    ],
)
def test_unusable_logits_are_reported_with_model_step_and_prompt(row, found, dtype):
    context = Context([1] * 4, sequence="HumanEval/3#0")
    context.steps = 2
    for rows in ([row, [1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], row]):
        with pytest.raises(LogitsError) as refusal:
            check_logits(torch.tensor(rows, dtype=dtype), "draft", context)
        assert str(refusal.value) == (
            f"the draft model gave {found} logits in step 3 of prompt 'HumanEval/3#0' (after 4 tokens): check its "
            "weights, dtype and attention implementation"
        )


@pytest.mark.parametrize("row", [[0.0, -INF, 1.0], [-INF, -INF, -3e38], [3e38, -3e38, 0.0]])
def test_impossible_tokens_and_large_numbers_are_no_fault(row):
    check_logits(torch.tensor([row, row]), "target", Context([1]))


@pytest.mark.parametrize("verifier", [Greedy(), KeyedSampling(1.0), RejectionSampling(), SampleMatch()])
def test_plain_decoding_stops_at_the_step_that_went_wrong(verifier):
    """The fourth new token of a prompt of ten."""

    def next_logits(tokens):
        return [NAN] * 5 if len(tokens) == 13 else [0.0, 1.0, 2.0, 1.0, 0.0]

    decoder = Decoder(FakeCausalLM(next_logits, 5), verifier=verifier)
    with pytest.raises(ValueError, match=r"NaN logits in step 4 of prompt 7 \(after 13 tokens\)"):
        decoder.generate([1] * 10, max_new_tokens=9, sequence=7, seed=0)
    assert len(decoder.generate([1] * 10, max_new_tokens=3, sequence=7, seed=0).token_ids) == 3
