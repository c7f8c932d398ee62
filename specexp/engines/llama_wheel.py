"""``python -m specexp.engines.llama_wheel --model FILE --port PORT ...``: llama.cpp's server in the wheel xllamacpp.

The wheel holds the server as a library. This program takes the flags of ``llama-server`` that
:class:`~specexp.engines.http_engines.LlamaCppServer` sets. It imports nothing else of specexp.
"""

from __future__ import annotations

import signal
import sys
from operator import attrgetter
from typing import Any

_FIELDS = {
    "host": "hostnames",
    "model": "model.path",
    "threads": "cpuparams.n_threads",
    "parallel": "n_parallel",
    "ctx-size": "n_ctx",
    "spec-type": "speculative.types",
    "spec-draft-model": "speculative.draft.mparams.path",
    "spec-draft-type-k": "speculative.draft.cache_type_k",
    "spec-draft-type-v": "speculative.draft.cache_type_v",
}
_GROUPS = ("draft", "ngram-simple", "ngram-map-k4v", "ngram-map-k", "ngram-mod")
_THREADS = ("cpuparams_batch", "speculative.draft.cpuparams", "speculative.draft.cpuparams_batch")


def field_of(flag: str) -> str:
    """Return the path of a flag's field in the wheel's ``CommonParams``."""
    for group in _GROUPS:
        if flag.startswith(f"spec-{group}-") and flag not in _FIELDS:
            name = flag.removeprefix(f"spec-{group}-")
            return f"speculative.{group}.{name}".replace("-", "_")
    return _FIELDS.get(flag, flag.replace("-", "_"))


def main(words: list[str]) -> None:
    """Serve with the given flags until the process is ended."""
    import xllamacpp

    def value(flag: str, text: str, default: Any) -> Any:
        if isinstance(default, xllamacpp.ggml_type):
            return xllamacpp.ggml_type[f"GGML_TYPE_{text.upper()}"]
        if flag == "--spec-type":
            return [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{text.replace('-', '_').upper()}"]]
        return [text] if isinstance(default, list) else type(default)(text)

    made = xllamacpp.CommonParams()
    for flag, text in zip(words[::2], words[1::2], strict=True):
        holder, _, name = field_of(flag.removeprefix("--")).rpartition(".")
        part = attrgetter(holder)(made) if holder else made
        setattr(part, name, value(flag, text, getattr(part, name)))
    for holder in _THREADS:  # the program uses one number for all of them
        attrgetter(holder)(made).n_threads = made.cpuparams.n_threads
    server = xllamacpp.Server(made)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
