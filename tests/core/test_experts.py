"""Mixture-of-experts targets: how many experts a pass reads."""

import pytest
import torch
from helpers.small_models import FULL_ATTENTION, build

from specexp.artifacts.fingerprint import fingerprint
from specexp.core.latency import distinct_experts, experts_sentence
from specexp.profile.roofline import limit_samples

MODELS = {
    "Qwen3Moe": {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 16},
    "Mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
}


@pytest.fixture(params=MODELS)
def model(request):
    return build(request.param, {**FULL_ATTENTION["Llama"], **MODELS[request.param]}, dtype=torch.float32)


@pytest.fixture
def reads(model):
    """The chosen experts ``[rows, k]`` of each layer, in the order of the passes."""
    chosen, routers = [], [one for name, one in model.named_modules() if name.endswith("mlp.gate")]
    for router in routers:
        router.register_forward_hook(lambda router, given, result: chosen.append(result[-1]))
    model.routers = routers
    return chosen


def mean_distinct(chosen):
    return sum(one.unique().numel() for one in chosen) / len(chosen)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16])
def test_independent_rows_read_as_many_experts_as_expected(rows, model, reads):
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        for router in model.routers:
            router(torch.randn(rows, model.config.hidden_size, generator=generator))
    experts = 16 if "Qwen" in type(model).__name__ else 8
    assert mean_distinct(reads) == pytest.approx(distinct_experts(experts, 2, rows), rel=0.1)


def test_a_pass_over_more_rows_reads_more_experts(model, reads):
    found = []
    with torch.inference_mode():
        for rows in (1, 2, 4, 8, 16):
            reads.clear()
            for number in range(20):
                model(torch.randperm(61, generator=torch.Generator().manual_seed(number))[None, :rows])
            found.append(mean_distinct(reads))
    assert found[0] == 2
    assert found == sorted(set(found))
    assert found[-1] > 2 * found[0]


def test_the_sentence_comes_from_the_configuration_or_the_fingerprint(model):
    sentence = experts_sentence(model.config.to_dict())
    assert sentence.startswith(f"Each row uses 2 of {16 if 'Qwen' in type(model).__name__ else 8} experts, so passes")
    assert experts_sentence(fingerprint(model)["model"]) == sentence
    assert "beyond 9 rows" in experts_sentence({"num_local_experts": 8, "num_experts_per_tok": 2})
    assert experts_sentence(FULL_ATTENTION["Llama"]) is None
    assert limit_samples(model) is None  # a row does not multiply all weights
