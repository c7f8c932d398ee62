"""Acceptance by position of a chain: Model-Optimizer's ``speculation_profile.json``, and settings that make engines
simulate it in benchmarks of speed alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.core.messages import first_line
from specexp.deploy.export.export_format import ExportedFile, Format, Given
from specexp.engines.settings import VllmSettings

_LONGEST = 64
_TOLERANCE = 0.02


class AcceptanceProfile(Format):
    """Acceptance of a recording (``python -m specexp.record``) with a draft model.

    Besides Model-Optimizer's fields, ``synthetic_acceptance`` holds settings with which vLLM, llama.cpp, SGLang and
    TensorRT-LLM simulate the same acceptance: the output is then wrong, and only its speed is meaningful.
    """

    name = "acceptance-profile"
    read_for = "Model-Optimizer's schema 1.0, vLLM 0.32.0, llama.cpp 00dc8057, SGLang and TensorRT-LLM of autumn 2026"
    options = ("length",)
    deployment = 'vllm serve MODEL --speculative-config "$(jq -c .synthetic_acceptance.vllm {file})"'

    @override
    def make(self, given: Given) -> ExportedFile:
        from specexp.replay.format.trie import RecordingError

        source = Path(given.source)
        text = given.options.get("length", "5")
        if not text.isdecimal() or not 1 <= int(text) <= _LONGEST:
            raise ArtifactError(f"--length must be an integer from 1 to {_LONGEST}, got {text!r}")
        length = int(text)
        try:
            counts = _replayed(source, length)
        except RecordingError as error:
            raise ArtifactError(first_line(error).removeprefix("recording: ")) from error
        if not counts:
            raise ArtifactError(f"{source} holds no step that drafted anything, so it has no acceptance")
        return ExportedFile(
            profile_of(counts, length),
            "acceptance-profile: dropped which prompts and which tokens, since a profile is a mean over steps",
        )


def profile_of(counts: dict[int, int], length: int) -> dict[str, Any]:
    """Return the file for steps of ``length`` drafted tokens, counted by how many of these they accepted."""
    steps = sum(counts.values())
    marginal = [
        sum(number for accepted, number in counts.items() if accepted > place) / steps
        for place in range(length)
    ]
    before = [1.0, *marginal]
    conditional = [
        rate / earlier if earlier else 0.0 for rate, earlier in zip(marginal, before, strict=False)
    ]
    mean = 1 + sum(accepted * number for accepted, number in counts.items()) / steps
    rounded = [round(rate, 6) for rate in marginal]
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": "draft_model",
        "num_speculative_tokens": length,
        "max_supported_k": length,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [round(rate, 6) for rate in conditional],
        "marginal_accept_rates": rounded,
        "mean_accept_length": round(mean, 6),
        "accept_length_model": "chain_analytic",
        "accept_length_by_k": {str(length): round(mean, 6)},
        "acceptance_length_histogram": {str(accepted + 1): number for accepted, number in counts.items()},
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(1 + sum(marginal), 6),
                "reported_mean_accept_length": round(mean, 6),
                "tolerance": _TOLERANCE,
                "passed": abs(1 + sum(marginal) - mean) <= _TOLERANCE,
            }
        },
        "synthetic_acceptance": {
            "vllm": VllmSettings(
                "draft_model",
                length,
                "DRAFT",
                rejection_sample_method="synthetic",
                synthetic_acceptance_rates=rounded,
            ).deployed(),
            "llama-cpp": f"--spec-synth-rates {','.join(f'{rate:g}' for rate in rounded)}",
            "sglang": {
                "SGLANG_SIMULATE_ACC_LEN": round(mean, 3),
                "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
                "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
            },
            "trtllm": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": round(mean - 1)},
        },
    }


def _replayed(folder: Path, length: int) -> dict[int, int]:
    """Steps of a chain on a recording, by what they accepted; those near the end, where less fits, left out."""
    from specexp.replay.format.recording import Recording
    from specexp.replay.play.ranks import RankTable

    recording = Recording(folder)
    turns = [turn for conversation in recording.turns.values() for turn in conversation]
    manifest = recording.manifest
    table = RankTable(
        turns, manifest.made_of["generation"]["max_new_tokens"], manifest.context_limits["target"]
    )
    counts: dict[int, int] = {}
    start = 0
    for size in table.sizes:
        at = start
        while at + length < start + size and table.room[at] >= length:
            ranks = table.ranks[at : at + length].tolist()
            accepted = next((place for place, rank in enumerate(ranks) if rank), length)
            counts[accepted] = counts.get(accepted, 0) + 1
            at += accepted + 1
        start += size
    return dict(sorted(counts.items()))
