"""Acceptance rates by position in a chain: Model-Optimizer's ``speculation_profile.json``, and settings with which
engines simulate them in speed benchmarks.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.base.messages import first_line
from specexp.deploy.export.export_format import ExportedFile, ExportFormat, ExportRequest
from specexp.engines.settings import VllmSettings

_LONGEST = 64
_TOLERANCE = 0.02


class AcceptanceProfile(ExportFormat):
    """Acceptance rates of a draft model, from a recording (``python -m specexp.record``).

    In addition to Model-Optimizer's fields, ``synthetic_acceptance`` holds settings with which vLLM, llama.cpp, SGLang
    and TensorRT-LLM simulate these rates. The simulated output is wrong; only its speed is meaningful.
    """

    name = "acceptance-profile"
    read_for = "Model-Optimizer's schema 1.0, vLLM 0.32.0, llama.cpp 00dc8057, SGLang and TensorRT-LLM of autumn 2026"
    options = ("length",)
    deployment = 'vllm serve MODEL --speculative-config "$(jq -c .synthetic_acceptance.vllm {file})"'

    @override
    def make(self, request: ExportRequest) -> ExportedFile:
        from specexp.replay.format.trie import RecordingError

        text = request.options.get("length", "5")
        if not text.isdecimal() or not 1 <= int(text) <= _LONGEST:
            raise ArtifactError(f"--length must be an integer from 1 to {_LONGEST}, got {text!r}")
        try:
            counts = _accepted_counts(Path(request.source), int(text))
        except RecordingError as error:
            raise ArtifactError(first_line(error).removeprefix("recording: ")) from error
        if not counts:
            raise ArtifactError(
                f"{request.source}: no output has room for a draft of {text} tokens: record longer outputs, or set a "
                "smaller --length"
            )
        return ExportedFile(
            _profile(counts, int(text)),
            "acceptance-profile: dropped the differences between prompts and tokens (a profile is a mean over steps)",
        )


def _profile(counts: dict[int, int], length: int) -> dict[str, Any]:
    """Return the profile of steps with ``length`` drafted tokens; ``counts`` maps accepted tokens to steps."""
    accepted = np.repeat(list(counts), list(counts.values()))  # [steps]
    # reached[k] is the share of steps that accept at least k tokens
    reached = np.array([1.0, *((accepted > place).mean() for place in range(length))])
    # acceptance rate at each position, given that all earlier positions are accepted; 0 if no step got there
    conditional = np.divide(reached[1:], reached[:-1], out=np.zeros(length), where=reached[:-1] > 0)
    marginal = [round(float(rate), 6) for rate in reached[1:]]
    mean, implied = 1 + float(accepted.mean()), float(reached.sum())
    vllm = VllmSettings(
        "draft_model",
        length,
        "DRAFT",
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=marginal,
    )
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": "draft_model",
        "num_speculative_tokens": length,
        "max_supported_k": length,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(float(rate), 6) for rate in conditional],
        "marginal_accept_rates": marginal,
        "mean_accept_length": round(mean, 6),
        "accept_length_model": "chain_analytic",
        "accept_length_by_k": {str(length): round(mean, 6)},
        "acceptance_length_histogram": {str(number + 1): steps for number, steps in counts.items()},
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(implied, 6),
                "reported_mean_accept_length": round(mean, 6),
                "tolerance": _TOLERANCE,
                "passed": abs(implied - mean) <= _TOLERANCE,
            }
        },
        "synthetic_acceptance": {
            "vllm": vllm.deployed(),
            "llama-cpp": f"--spec-synth-rates {','.join(f'{rate:g}' for rate in marginal)}",
            "sglang": {
                "SGLANG_SIMULATE_ACC_LEN": round(mean, 3),
                "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
                "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
            },
            "trtllm": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": round(mean - 1)},
        },
    }


def _accepted_counts(folder: Path, length: int) -> dict[int, int]:
    """Replay a chain on a recording; returns the number of steps by the number of accepted tokens.

    Steps at the end of an output are left out if fewer than ``length`` tokens fit.
    """
    from specexp.replay.format.recording import Recording
    from specexp.replay.play.ranks import RankTable

    recording = Recording(folder)
    turns = [turn for conversation in recording.turns.values() for turn in conversation]
    limit = recording.manifest.made_of["generation"]["max_new_tokens"]
    table = RankTable(turns, limit, recording.manifest.context_limits["target"])
    counts: Counter[int] = Counter()
    start = 0
    for size in table.sizes:
        at = start
        while at + length < start + size and table.room[at] >= length:
            # a chain is accepted up to the first token that is not the draft's argmax (rank 0)
            ranks = table.ranks[at : at + length].tolist()
            accepted = next((place for place, rank in enumerate(ranks) if rank), length)
            counts[accepted] += 1
            at += accepted + 1
        start += size
    return dict(sorted(counts.items()))
