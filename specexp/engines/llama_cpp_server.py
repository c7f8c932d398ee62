"""llama.cpp's own server, on GGUF files: chains of a draft model, and n-grams."""

from __future__ import annotations

import subprocess
from collections.abc import Hashable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from typing_extensions import override

from specexp.core.cache import context_limit
from specexp.engines.engine import EngineError
from specexp.engines.http_engine import HttpEngine, Requests, Seconds
from specexp.engines.settings import LlamaCppSettings
from specexp.models.gguf import is_gguf

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair

_PLAIN = LlamaCppSettings("none")


class LlamaCppServer(HttpEngine):
    """``llama-server``, a program that llama.cpp's builds have and its Python package has not.

    Prompts and answers are token ids, and no prompt is taken from the server's cache. Of a target in
    float32 it keeps keys and values so, too, for both models.

    Args:
        settings: Its speculation flags with underscores; ``spec_draft_model`` is the draft's GGUF file.
        target: The target's GGUF file, ``pair.target`` by default. llama.cpp's ``convert_hf_to_gguf.py`` writes one.
        program: Name or path of the program.
        threads: CPU threads.
        start_seconds: Limit for its start.
        answer_seconds: Limit for an answer.
        concurrency: Number of requests at once, with the measured one.

    Example:
        >>> engine = LlamaCppServer(LlamaCppSettings("ngram-simple", spec_ngram_simple_size_n=4), "target.gguf")
    """

    exported_as = "llama-cpp"
    takes_token_ids: ClassVar[bool] = True
    path: ClassVar[str] = "/completion"

    def __init__(
        self,
        settings: LlamaCppSettings = _PLAIN,
        target: str | None = None,
        program: str = "llama-server",
        threads: Annotated[int, Field(ge=1)] = 1,
        start_seconds: Seconds = 120,
        answer_seconds: Seconds = 120,
        concurrency: Requests = 1,
    ) -> None:
        self.settings = settings
        self.target = target
        self.program = program
        self.threads = threads
        self.start_seconds, self.answer_seconds = start_seconds, answer_seconds
        self.concurrency = concurrency

    @override
    def plain(self) -> LlamaCppServer:
        other = copy(self)
        other.settings = _PLAIN
        return other

    @override
    def deployed_settings(self) -> dict[str, Any]:
        return self.settings.given()

    @property
    @override
    def version(self) -> str:
        try:
            result = subprocess.run(
                [self.program, "--version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return "not installed"
        lines = (result.stdout + result.stderr).splitlines()
        return next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("version")), "unknown"
        )

    @property
    @override
    def restart_key(self) -> Hashable:
        return self.settings, self.target, self.program, self.threads, self.concurrency

    @override
    def fields(self, eos: frozenset[int]) -> Mapping[str, Any]:
        return {"cache_prompt": False, "return_tokens": True, "ignore_eos": not eos}

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        target = self.target or pair.name
        if not is_gguf(target):
            raise EngineError(
                f"LlamaCppServer runs GGUF files, and the target is {target!r}: give target, a file that "
                "llama.cpp's convert_hf_to_gguf.py writes"
            )
        given = {
            "model": target,
            "host": "127.0.0.1",
            "port": port,
            "threads": self.threads,
            "parallel": self.concurrency,
        }
        if pair.target.dtype == torch.float32:
            both = ("", "spec-draft-") if self.settings.spec_draft_model else ("",)
            given |= {f"{model or 'cache-'}type-{kind}": "f32" for model in both for kind in "kv"}
        if self.concurrency > 1:  # every request has the whole context
            given["ctx-size"] = self.concurrency * context_limit(pair.target.config)
        given |= {name.replace("_", "-"): value for name, value in self.settings.given().items()}
        return [self.program, *(word for name, value in given.items() for word in (f"--{name}", f"{value}"))]
