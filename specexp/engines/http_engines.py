"""Engines behind an OpenAI-compatible API: servers that are started by a command or are already running."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from specexp.base.kernels import has_amx
from specexp.base.messages import counted, restated
from specexp.engines.engine import NOT_INSTALLED, EngineAnswer, EngineError, ForeignEngine, RunningEngine
from specexp.engines.openai_client import COMPLETIONS, Streamed, accepted_in, complete, model_of, wrong_address
from specexp.engines.server import StartedServer, filled, free_port
from specexp.engines.settings import LlamaCppSettings
from specexp.models.gguf import gguf_metadata, is_gguf
from specexp.models.sources import PairError, check_source, sources_of

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair

Seconds = Annotated[float, Field(gt=0, le=3600)]
Requests = Annotated[int, Field(ge=1, le=1024)]
Loads = Requests | Annotated[list[Requests], Field(min_length=1)]
_ENDING_SECONDS = 3.0  # after a failed request, wait this long for a crashed server to exit
_NO_SPECULATION = LlamaCppSettings("none")
_OWN_FIELDS = ("model", "prompt", "max_tokens", "temperature", "stream", "stream_options")
_PROGRAM = "llama-server"
_WHEEL = "specexp.engines.llama_wheel"


def options(given: Mapping[str, Any]) -> list[str]:
    """Return command-line options as words."""
    return [word for name, value in given.items() for word in (f"--{name}", f"{value}")]


@contextmanager
def background_requests(
    ask: Callable[[Sequence[int], Callable[[], bool]], object], token_ids: Sequence[int], others: int
) -> Iterator[None]:
    """Keep ``others`` concurrent requests running, each made by ``ask(prompt, stopped)``.

    The n-th one repeats the prompt without its last n tokens. All settings are therefore measured under the same load.
    No two concurrent prompts are equal, in case the server caches prompts.
    """
    ended = threading.Event()

    def keep_asking(shortened: Sequence[int]) -> None:
        while not ended.is_set():
            try:
                ask(shortened, ended.is_set)
            except EngineError:  # the measured request will report the same error
                return

    with ThreadPoolExecutor(max(1, others)) as pool:
        for number in range(1, others + 1):
            pool.submit(keep_asking, token_ids[: max(1, len(token_ids) - number)])
        try:
            yield
        finally:
            ended.set()


class HttpEngine(ForeignEngine):
    """An engine behind an OpenAI-compatible API.

    Attributes:
        takes_token_ids: whether prompts are sent as token ids, which avoids tokenizing them again.
        path: URL path of the requests.
        url: address of a running server; None to start one with the command :meth:`words`.
        body: fields added to every request.
        model: model name in requests; None for the server's only model.
    """

    takes_token_ids: ClassVar[bool] = False
    path: ClassVar[str] = COMPLETIONS
    url: str | None = None
    body: Mapping[str, Any] = {}
    model: str | None = None
    start_seconds: float = 120
    answer_seconds: float = 120

    def set_loads(self, concurrency: int | Sequence[int]) -> None:
        """Set :attr:`loads`, in ascending order, and :attr:`load` to the first of them."""
        self.loads = sorted({concurrency} if isinstance(concurrency, int) else set(concurrency))
        self.load = self.loads[0]

    def fields(self, eos: frozenset[int]) -> Mapping[str, Any]:
        """Return additional fields for every request. :attr:`body` overrides them."""
        return {}

    @abstractmethod
    def words(self, port: int, pair: ModelPair) -> list[str]:
        """Return the command that starts the server, as a list of words."""

    @override
    def start(self, pair: ModelPair) -> RunningEngine:
        return _Endpoint(self, pair)


class _Endpoint(RunningEngine):
    def __init__(self, engine: HttpEngine, pair: ModelPair) -> None:
        self._tokenizer = pair.tokenizer
        self._server: StartedServer | None = None
        self.url = (engine.url or "").rstrip("/").removesuffix("/v1")
        if engine.url is None:
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            self._server = StartedServer(engine.words(port, pair), self.url, engine.start_seconds)
        try:
            self.model = model_of(self.url, engine.model, engine.answer_seconds)
        except EngineError:
            self.close()
            raise

    @override
    def answer(
        self, engine: ForeignEngine, token_ids: Sequence[int], max_new_tokens: int, eos: frozenset[int]
    ) -> EngineAnswer:
        assert isinstance(engine, HttpEngine)
        fields = {"max_tokens": max_new_tokens, "temperature": 0, **engine.fields(eos), **engine.body}

        def ask(token_ids: Sequence[int], stopped: Callable[[], bool] = lambda: False) -> Streamed:
            prompt: Any = list(token_ids)
            if not engine.takes_token_ids:
                bos = [self._tokenizer.bos_token_id]
                added = prompt[:1] == self._tokenizer("").input_ids[:1] == bos  # a server adds it to any text
                prompt = self._tokenizer.decode(prompt[1:] if added else prompt)
            body = {"model": self.model, "prompt": prompt, **fields}
            return complete(self.url, body, engine.answer_seconds, stopped, engine.path)

        try:
            with background_requests(ask, token_ids, engine.load - 1):
                found = ask(token_ids)
            if self._server is not None:
                self._server.rest()
        except EngineError as error:
            if self._server is not None and self._server.ended(_ENDING_SECONDS):
                raise EngineError(f"the server {self._server.end()}: {error}") from error
            # vLLM lives a few seconds longer than its engine's processes
            if self._server is not None and (last := self._server.last_error()):
                raise EngineError(f"{error}; the last error in its output is {last}") from error
            raise
        tokens = found.token_ids or self._tokenizer(found.text, add_special_tokens=False).input_ids
        if not tokens or not found.times:
            raise EngineError(f"{self.url}: the answer is empty")
        # without counts, each arrival counts as a step, and all but one of its tokens as accepted drafts; an EOS token
        # has no text, so its arrival has no time
        arrivals = len(found.times) + (bool(found.token_ids) and tokens[-1] in eos)
        speculation = found.speculation
        accepted = speculation.get("num_accepted_draft_tokens", max(0, len(tokens) - arrivals))
        accepted = accepted_in(len(tokens), speculation.get("num_spec_steps", 0), accepted)
        count, first = found.tokens or len(tokens), 1
        if not found.token_ids:  # token ids arrive one by one, but text in pieces of several tokens
            first = round(self._tokens_within(found.first, found.text) * count / len(tokens))
        prefill_seconds, decode_seconds = found.split(count, max(1, first))
        reason = "length" if found.finish_reason == "length" else "eos"
        ends = self._tokenizer.eos_token_id
        if reason == "eos" and ends in eos and tokens[-1] not in eos:  # streams omit the EOS token
            tokens = [*tokens, ends]
        return EngineAnswer(
            list(tokens),
            reason,
            prefill_seconds=prefill_seconds,
            decode_seconds=decode_seconds,
            decode_tokens=count - 1 if decode_seconds else 0,  # the first token is part of the prefill
            # a server's own count may leave out steps without a draft
            steps=max(1, len(tokens) - accepted) if speculation else arrivals,
            accepted_drafts=accepted,
            drafted_nodes=speculation.get("num_draft_tokens", 0),
            memory_bytes=self.memory_bytes(),
            start_seconds=None if self._server is None else self._server.start_seconds,
        )

    def _tokens_within(self, first: str, text: str) -> float:
        """Return the number of tokens of ``text`` in its beginning ``first``; one that ends later counts in part."""
        if not self._tokenizer.is_fast:  # without offsets
            return len(self._tokenizer(first, add_special_tokens=False).input_ids)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans: list[tuple[int, int]] = [
            (begin, end) for begin, end in found.offset_mapping if begin < min(end, len(first))
        ]
        return sum(min(1.0, (len(first) - begin) / (end - begin)) for begin, end in spans)

    @override
    def memory_bytes(self) -> int | None:
        return None if self._server is None else self._server.memory_bytes()

    @override
    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class OpenAIEndpoint(HttpEngine):
    """A server with OpenAI's API, such as vLLM, SGLang, TensorRT-LLM, ``transformers serve`` or ``specexp.serve``.

    The command is a template: ``{port}`` is replaced by a free port, ``{target}`` by the pair's target, and any other
    name by the setting with that name. The command runs without a shell, and its processes are killed at the end of the
    study. Changing a setting in the command requires a restart; changing one in ``body`` does not.

    Args:
        command: command that starts the server with speculation, e.g. ``vllm serve {target} --port {port}
            --speculative-config '{{"method": "ngram", "num_speculative_tokens": {tokens}}}'``.
        plain_command: command that starts the server without speculation; if null, ``command``.
        url: address of a server that is already running, e.g. ``http://127.0.0.1:8000``, instead of ``command``.
        plain_url: address of a running server without speculation; if null, ``url``.
        settings: values for the names in the command.
        body: fields of every request, e.g. ``{speculative: true}``.
        plain_body: fields that turn speculation off in a request, e.g. ``{speculative: false}``.
        model: name of the model in requests; if null, the server's only model.
        concurrency: number of concurrent requests, including the measured one. With a list, every prompt is answered
            under each of these loads.

    Raises:
        EngineError: not exactly one of ``command`` and ``url`` is given, or every ``plain_`` argument is missing.
            Also if ``plain_command`` or ``plain_url`` lacks its counterpart, or if ``{port}`` or a value is missing.
    """

    exported_as = "endpoint"
    varied = (*HttpEngine.varied, "command", "url", "body", "plain_command", "plain_url", "plain_body")

    def __init__(
        self,
        command: str | None = None,
        plain_command: str | None = None,
        url: str | None = None,
        plain_url: str | None = None,
        settings: Mapping[str, int | float | str] | None = None,
        body: Mapping[str, Any] | None = None,
        plain_body: Mapping[str, Any] | None = None,
        model: str | None = None,
        start_seconds: Seconds = 120,
        answer_seconds: Seconds = 120,
        concurrency: Loads = 1,
    ) -> None:
        for name, address in (("url", url), ("plain_url", plain_url)):
            if address is not None and (why := wrong_address(address)):
                raise EngineError(f"OpenAIEndpoint: {name} {why}")
        for name, fields in (("body", body), ("plain_body", plain_body)):
            if taken := [one for one in fields or () if one in _OWN_FIELDS]:
                raise EngineError(f"OpenAIEndpoint: {name} must leave {taken[0]} out, which specexp sets")
        if (command is None) == (url is None):
            raise EngineError("OpenAIEndpoint: exactly one of command and url must be set")
        if command is not None and "{port}" not in command:
            raise EngineError("OpenAIEndpoint: command must contain {port}, the port to listen on")
        if (plain_command is not None and command is None) or (plain_url is not None and url is None):
            raise EngineError("OpenAIEndpoint: plain_command needs command, and plain_url needs url")
        if plain_command is None and plain_url is None and plain_body is None:
            raise EngineError("OpenAIEndpoint: plain_command, plain_url or plain_body must be set")
        self.settings = dict(settings or {})
        if url is not None and self.settings:
            why = "which only a command contains; a running server's settings are fields of body"
            raise EngineError(f"OpenAIEndpoint: settings must be left out with url, {why}, got {self.settings}")
        # a name without a value is an error here, not when the server is started
        given = {"port": 0, "target": ""}
        filled(command or "", {**self.settings, **given}, "OpenAIEndpoint: command")
        filled(plain_command or "", given, "OpenAIEndpoint: plain_command")
        if command is not None:
            if unused := [name for name in self.settings if f"{{{name}" not in command]:
                raise EngineError(f"OpenAIEndpoint: command must contain {{{unused[0]}}}, which settings give")
            if command == plain_command:
                raise EngineError("OpenAIEndpoint: plain_command must be another command, without speculation")
        if plain_command is None and plain_url is None and {**(body or {}), **(plain_body or {})} == (body or {}):
            raise EngineError("OpenAIEndpoint: plain_body must turn speculation off, but it changes nothing in body")
        self.command = command
        self.plain_command = plain_command
        self.url = url
        self.plain_url = plain_url
        self.body = dict(body or {})
        self.plain_body = plain_body
        self.model = model
        self.start_seconds = start_seconds
        self.answer_seconds = answer_seconds
        self.set_loads(concurrency)

    @override
    def plain(self) -> OpenAIEndpoint:
        other = copy(self)
        other.command = (self.plain_command or self.command) if self.command else None
        other.url = (self.plain_url or self.url) if self.url else None
        other.settings = self.settings if self.command and not self.plain_command else {}
        other.body = {} if self.plain_body is None else {**self.body, **self.plain_body}
        return other

    @override
    def deployed_settings(self) -> dict[str, Any]:
        values = {"command": self.command, "url": self.url, **self.settings, "body": self.body or None}
        return {name: value for name, value in values.items() if value is not None}

    @property
    @override
    def version(self) -> str:
        return "as installed"

    @property
    @override
    def restart_key(self) -> Hashable:
        named = [(name, value) for name, value in self.settings.items() if f"{{{name}" in (self.command or "")]
        return self.command, self.url, tuple(sorted(named))

    @override
    def lacks(self) -> str:
        for name, command in (("command", self.command), ("plain_command", self.plain_command)):
            program = next(iter(shlex.split(command or "")), "")
            if program and shutil.which(program) is None:
                return f"cannot be started: engine.init_args.{name} must begin with a program, got {program!r}"
        return ""

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        return filled(self.command or "", {**self.settings, "port": port, "target": pair.name})


class LlamaCppServer(HttpEngine):
    """llama.cpp's server: the program ``llama-server`` or, if it is not on the path, the wheel ``xllamacpp``.

    Prompts and answers are token ids, and the server's prompt cache is off. With a float32 target, the KV caches of
    both models are float32 too. On processors with AMX, the program is started with ``--no-repack``.

    Args:
        settings: the server's speculation flags with underscores; ``spec_draft_model`` is the draft's GGUF file.
        target: the target's GGUF file, as written by llama.cpp's ``convert_hf_to_gguf.py``; if null, ``pair.target``.
            ``smollm2.gguf`` names the file of ``smollm2``.
        program: name or path of the program; only the default is replaced by the wheel.
        concurrency: number of concurrent requests, including the measured one. With a list, every prompt is answered
            under each of these loads.

    Example:
        >>> engine = LlamaCppServer(LlamaCppSettings("ngram-simple", spec_ngram_simple_size_n=4), "target.gguf")
    """

    exported_as = "llama-cpp"
    takes_token_ids: ClassVar[bool] = True
    path: ClassVar[str] = "/completion"

    def __init__(
        self,
        settings: LlamaCppSettings = _NO_SPECULATION,
        target: str | None = None,
        program: str = _PROGRAM,
        threads: Annotated[int, Field(ge=1)] = 1,
        start_seconds: Seconds = 120,
        answer_seconds: Seconds = 120,
        concurrency: Loads = 1,
    ) -> None:
        self.settings = settings
        self.target = target
        self.program = program
        self.threads = threads
        self.start_seconds = start_seconds
        self.answer_seconds = answer_seconds
        self.set_loads(concurrency)

    @override
    def plain(self) -> LlamaCppServer:
        other = copy(self)
        other.settings = _NO_SPECULATION
        return other

    @property
    @override
    def version(self) -> str:
        if self._by_wheel():
            return f"xllamacpp {version('xllamacpp')}"
        try:
            result = subprocess.run(
                [self.program, "--version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return NOT_INSTALLED
        lines = (result.stdout + result.stderr).splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("version")), "unknown")

    @property
    @override
    def restart_key(self) -> Hashable:
        return self.settings, self.target, self.program, self.threads, max(self.loads)

    @property
    @override
    def files(self) -> Sequence[str]:
        return [sources_of(file)[0] for file in (self.target, self.settings.spec_draft_model) if file is not None]

    @override
    def lacks(self) -> str:
        if self.program != _PROGRAM and self.version == NOT_INSTALLED:
            known = f"must be the name or path of {_PROGRAM}"
            return f"is not installed here: engine.init_args.program {known}, got {self.program!r}"
        if absent := super().lacks():
            return absent
        try:
            for file in self.files:
                check_source("model", file)
        except PairError as error:
            return f"cannot load a file, since {error}"
        return ""

    @override
    def check(self, pair: ModelPair, longest: int) -> None:
        self.words(0, pair)

    @override
    def fields(self, eos: frozenset[int]) -> Mapping[str, Any]:
        # at temperature 0 alone, its sort for top_k decides between equal logits; top_k 1 takes the lowest id
        return {"cache_prompt": False, "return_tokens": True, "ignore_eos": not eos, "top_k": 1}

    @override
    def words(self, port: int, pair: ModelPair) -> list[str]:
        target = sources_of(self.target or pair.name)[0]
        if not is_gguf(target):
            raise EngineError(
                f"LlamaCppServer: target must be a GGUF file, got {target!r}; convert the model with llama.cpp's "
                "convert_hf_to_gguf.py"
            )
        if Path(target).is_file():
            self._check_tokens(target, pair)
        at = {"host": "127.0.0.1", "port": port}
        given = {"model": target, **at, "threads": self.threads, "parallel": max(self.loads)}
        if str(pair.target.dtype) == "torch.float32":
            # llama.cpp rounds keys and values to float16 by default, which can change the tokens
            both = ("", "spec-draft-") if self.settings.spec_draft_model else ("",)
            given |= {f"{model or 'cache-'}type-{kind}": "f32" for model in both for kind in "kv"}
        if max(self.loads) > 1:  # the server divides ctx-size among its parallel requests
            from specexp.core.cache import context_limit

            given["ctx-size"] = max(self.loads) * context_limit(pair.target.config)
        given |= {name.replace("_", "-"): value for name, value in self.settings.given().items()}
        program = [sys.executable, "-m", _WHEEL] if self._by_wheel() else [self.program]
        if program == [_PROGRAM] and shutil.which(_PROGRAM) is None:
            raise EngineError(
                f"LlamaCppServer: there is no program {_PROGRAM} on the path and no package xllamacpp: "
                "pip install 'specexp[llama-server]'"
            )
        # builds for the processor at hand use AMX, and those of some compilers die of it; the wheel is built without
        no_tiles = ["--no-repack"] if len(program) == 1 and has_amx() else []
        return [*program, *options(given), *no_tiles]

    def _check_tokens(self, target: str, pair: ModelPair) -> None:
        """Raise EngineError if the target's file is damaged, or of a model with another tokenizer than the pair's."""
        with restated(ValueError, lambda error: EngineError(f"LlamaCppServer: target: {error}")):
            tokens = _tokens_of(target)
        own = pair.tokenizer.get_vocab()
        wrong = sum(own.get(token) != number for number, token in enumerate(tokens))
        if 2 * wrong > len(tokens):
            raise EngineError(
                f"LlamaCppServer: target must be a file of pair.target's model, {pair.name}, but {target} has another "
                f"tokenizer: {wrong} of its {counted(len(tokens), 'token')} differ"
            )

    def _by_wheel(self) -> bool:
        return self.program == _PROGRAM and shutil.which(_PROGRAM) is None and find_spec("xllamacpp") is not None


@cache  # a study checks every candidate, and reading takes a second
def _tokens_of(file: str) -> Sequence[str]:
    return tuple(gguf_metadata(file)[0].get("tokenizer.ggml.tokens", ()))
