"""Products by tiles: one order of sums, whichever rows share a pass. Instructions are emulated, on every machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.emulated_tiles import WIDTHS, emulated_tiles
from helpers.small_families import FAMILIES, family_model
from helpers.small_models import VOCABULARY
from numpy.typing import NDArray

from specexp.base.kernels import library
from specexp.builders import ParametricTree
from specexp.config.artifacts import load_artifact
from specexp.core.loop import Decoder
from specexp.core.runtime import Runtime
from specexp.core.tree import TokenTree, TreeShape
from specexp.data import EverydayTasks, Workload
from specexp.drafters import TokenRecycling
from specexp.models import llama_weights
from specexp.models.compiled import CompiledModel
from specexp.models.llama_weights import Products
from specexp.models.pair import load_pair
from specexp.testing.runtimes import RuntimeContract
from specexp.verifiers import Greedy, KeyedSampling

SIZES = {**WIDTHS, "initializer_range": 0.1}
COUNTS = (1, 2, 15, 16, 17, 31, 33, 79, 80)
TEXT = torch.randint(2, VOCABULARY, (80,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture
def _emulated() -> Iterator[None]:
    with emulated_tiles():
        yield


def tiled(name: str = "Llama", **settings: object) -> CompiledModel:
    runtime = CompiledModel(family_model(name, torch.bfloat16, **{**SIZES, **settings}))
    assert runtime._weights.products == Products.TILES
    return runtime


def flat(rows: int) -> TreeShape:
    """A root with ``rows - 1`` children."""
    return TreeShape(np.array([-1] + [0] * (rows - 1)), np.arange(-1, rows - 1))


@pytest.mark.variants(1, "name")
@pytest.mark.parametrize("name", FAMILIES)
class TestTiles(RuntimeContract):
    """A row has the same bits alone, in a tree, in a batch and in a prefill."""

    tolerance = 0.0

    @pytest.fixture(autouse=True)
    def _model(self, name: str, _emulated: None) -> None:
        self.model = tiled(name).model

    def runtime(self) -> Runtime:
        return CompiledModel(self.model)


@pytest.mark.usefixtures("_emulated")
def test_a_row_has_the_same_bits_in_every_number_of_rows() -> None:
    runtime = tiled()
    runtime.prefill(0, TEXT[:20], all_logits=False)
    tokens: NDArray[np.int64] = np.array(TEXT)
    alone = runtime.tree_pass([0], [TokenTree(flat(1), tokens[:1])]).logits[0]
    most = runtime.tree_pass([0], [TokenTree(flat(80), tokens)]).logits[0]
    assert torch.equal(alone[0], most[0])
    for rows in COUNTS:
        logits = runtime.tree_pass([0], [TokenTree(flat(rows), tokens[:rows])]).logits[0]
        assert torch.equal(logits, most[:rows]), rows


@pytest.mark.usefixtures("_emulated")
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.variants(4)
def test_logits_are_closer_to_exact_ones_than_those_of_the_models_own_code(name: str) -> None:
    runtime = tiled(name)
    logits = runtime.prefill(0, TEXT, all_logits=True).logits[0]
    exact = family_model(name, torch.bfloat16, **SIZES).float()
    assert logits is not None
    with torch.inference_mode():
        expected = exact(torch.tensor([TEXT])).logits[0]
        own = runtime.model(torch.tensor([TEXT])).logits[0]
    error, own_error = ((one.float() - expected).square().mean() for one in (logits, own))
    assert error < 0.7 * own_error


@pytest.mark.parametrize("setting", [{"intermediate_size": 80}, {"head_dim": 16}, {"hidden_size": 48}])
@pytest.mark.usefixtures("_emulated")
def test_widths_that_are_no_multiple_of_a_tile_take_other_products(setting: dict[str, int]) -> None:
    runtime = CompiledModel(family_model("Llama", torch.bfloat16, **{**SIZES, **setting}))
    assert runtime._weights.products in (Products.WORDS, Products.PAIRS)


def summed(inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum products as ``tdpbf16ps`` does: of 32 inputs, even ones and odd ones in two chains from zero."""
    total = torch.zeros(inputs.shape[0], weights.shape[0])
    for first in range(0, inputs.shape[1], 32):
        chains = torch.zeros(2, *total.shape)
        for k in range(32):  # exact in float64, so it is rounded once, as by a fused multiply-add
            products = inputs[:, first + k, None].double() * weights[None, :, first + k].double()
            chains[k % 2] = (chains[k % 2].double() + products).float()
        total += chains[0] + chains[1]
    return total


@pytest.mark.variants(1)
@pytest.mark.parametrize("lanes", [8, 16], ids=["one tile a panel", "two tiles a panel"])
def test_sums_have_the_order_of_the_instructions(lanes: int) -> None:
    include = f"-I{llama_weights._SOURCE.parent}"
    kernels = library(
        Path(__file__).with_name("tile_product.cpp"), ("-O1", "-DEMULATED_TILES", f"-DLANES={lanes}", include)
    )
    width, panel = 160, kernels.panel()
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3 * panel, width, generator=generator).bfloat16()
    packed = weights.view(3, panel, width // 2, 2).transpose(1, 2).contiguous()  # [panel, input / 2, output, 2]
    for rows in COUNTS:
        for panels in (1, 3):  # inputs of several panels are copied into tiles
            inputs = torch.zeros(rows + 16, width).bfloat16()  # tiles read beyond the last row
            inputs[:rows] = torch.randn(rows, width, generator=generator)
            out = torch.zeros(rows, panels * panel)
            given = (ctypes.c_void_p(one.data_ptr()) for one in (packed, inputs, out))
            sizes = map(ctypes.c_int64, (16, rows, width, panels))
            first, x, to = given
            bits, *rest = sizes
            kernels.multiply(first, bits, x, *rest, to)
            assert torch.equal(out, summed(inputs[:rows], weights[: panels * panel])), (rows, panels)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("_emulated")
def test_outputs_of_smollm2_on_held_out_prompts_are_those_of_plain_decoding() -> None:
    """Greedy and sampled, with the shipped tree and with a tree of 40 nodes, which fills three tiles of rows."""
    pair = load_pair("smollm2", mode="compiled")
    target = pair.target_runtime()
    assert isinstance(target, CompiledModel)
    assert target._weights.products == Products.TILES
    shipped = load_artifact("smollm2:tree")
    workload = Workload(EverydayTasks(), max_prompts=8, offset=40, max_prompt_tokens=160, too_long="keep-last")
    for number, prompt in enumerate(workload.load(pair.tokenizer)):
        verifier = KeyedSampling(0.8) if number % 2 else Greedy()
        drafts = (TokenRecycling(), ParametricTree(40)) if number % 4 > 1 else shipped.parts[:2]
        decoders = Decoder(target, verifier=verifier), Decoder(target, *drafts, verifier)
        plain, drafted = (
            decoder.generate(prompt.token_ids, max_new_tokens=24, seed=number).token_ids for decoder in decoders
        )
        assert drafted == plain, prompt.prompt_id
