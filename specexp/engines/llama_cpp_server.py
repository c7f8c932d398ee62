"""llama.cpp's own server, on GGUF files: chains of a draft model, and n-grams."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from typing_extensions import override

from specexp.engines.engine import EngineError
from specexp.engines.http_engine import HttpEngine, Seconds
from specexp.engines.settings.llama_cpp import LlamaCppSettings
from specexp.pairs.gguf import is_gguf

if TYPE_CHECKING:
    from specexp.pairs.pair import ModelPair

_PLAIN = LlamaCppSettings("none")


class LlamaCppServer(HttpEngine):
    """``llama-server``, a program that llama.cpp's builds have and its Python package has not.

    Args:
        settings: Its speculation flags with underscores; ``spec_draft_model`` is the draft's GGUF file.
        target: The target's GGUF file; ``pair.target`` where that is one. ``specexp.export --to gguf`` writes both.
        program: Name or path of the program.
        threads: Of the CPU.
        start_seconds: How long it may take to start.
        answer_seconds: How long an answer may take.

    Example:
        >>> engine = LlamaCppServer(LlamaCppSettings("ngram-simple", spec_ngram_simple_size_n=4), "target.gguf")
    """

    exported_as = "llama-cpp"

    def __init__(
        self,
        settings: LlamaCppSettings = _PLAIN,
        target: str | None = None,
        program: str = "llama-server",
        threads: Annotated[int, Field(ge=1)] = 1,
        start_seconds: Seconds = 120,
        answer_seconds: Seconds = 120,
    ) -> None:
        self.settings = settings
        self.target = target
        self.program = program
        self.threads = threads
        self.start_seconds, self.answer_seconds = start_seconds, answer_seconds

    @override
    def plain(self) -> LlamaCppServer:
        return LlamaCppServer(
            _PLAIN, self.target, self.program, self.threads, self.start_seconds, self.answer_seconds
        )

    @override
    def deployed_settings(self) -> dict[str, Any]:
        return self.settings.given()

    @property
    @override
    def version(self) -> str:
        return "as installed"

    @property
    @override
    def restart_key(self) -> Hashable:
        return self.settings, self.target, self.program, self.threads

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        target = self.target or pair.name
        if not is_gguf(target):
            raise EngineError(
                f"LlamaCppServer runs GGUF files, and the target is {target!r}: give target, a file that "
                "specexp.export --to gguf writes"
            )
        flags = [
            word
            for name, value in self.settings.given().items()
            for word in (f"--{name.replace('_', '-')}", f"{value}")
        ]
        place = ["--host", "127.0.0.1", "--port", f"{port}", "--threads", f"{self.threads}"]
        return [self.program, "--model", target, *place, *flags]
