"""The embedded prompts: beginnings of standard library functions, from modules the embedded models have not seen."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.training_text import (
    Document,
    Split,
    documents_of,
    fingerprint,
    is_test_module,
    python_files,
    split_of,
)

if TYPE_CHECKING:
    from datasets import Dataset

# About 3.3 characters make a token of the embedded tokenizer: prompts of 32 to 128 tokens, 48 or more left to write.
MIN_PROMPT_CHARACTERS = 110
MAX_PROMPT_CHARACTERS = 420
MIN_REST_CHARACTERS = 160


class StdlibFunctions(PromptSet):
    """Openings of standard library functions; needs no network and no file.

    Args:
        split: Splits share no module. A search uses ``validation`` and the confirmed figures come from ``test``;
            the embedded models were trained on ``train``.

    Example::

        StdlibFunctions("test").load()[0]["turns"]  # ["def ..."], one turn
    """

    def __init__(self, split: Literal["train", "validation", "test"] = "test") -> None:
        self.split: Split = split

    @override
    def load(self) -> Dataset:
        return prompt_rows(openings(self.split), where=f"StdlibFunctions({self.split!r})")


@cache  # a search, its confirmation and its counts read the same files, which do not change meanwhile
def openings(split: Split, root: Path | None = None) -> tuple[PromptRow, ...]:
    """Return prompts from functions of the standard library without its tests, in one fixed shuffled order.

    A prompt is the signature, the docstring and the first part of the body, cut after a line break (the embedded
    tokenizer joins a line break with the punctuation before it). The category is the module.

    Args:
        split: The split of the modules.
        root: The folder of the standard library, by default the running interpreter's own.

    Raises:
        PromptSetError: The library's source is not there.
    """
    folder = root or Path(sysconfig.get_paths()["stdlib"])
    rows: dict[str, PromptRow] = {}
    for module, path in python_files(folder):
        if is_test_module(module) or split_of(module) != split:
            continue
        for document in documents_of(path, module):
            prompt = prompt_of(document.text) if document.kind == "function" else None
            if prompt is not None:
                rows.setdefault(fingerprint(document.text), _row(document, prompt))
    if not rows:
        raise PromptSetError(
            f"no functions of the {split} modules in {str(folder)!r}; is the library's source installed?"
        )
    return tuple(sorted(rows.values(), key=lambda row: hashlib.sha256(row.prompt_id.encode()).digest()))


def prompt_of(function: str) -> str | None:
    """Return the beginning of a function's source; None if it is too short, or its head too long, for a prompt.

    The cut is after the line break nearest to 40 % of the source, after the docstring and at least one line of the
    body. The next line is not blank, because the tokenizer joins successive line breaks.
    """
    try:
        node = ast.parse(function).body[0]
    except SyntaxError:
        return None
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body:
        return None
    lines = function.splitlines(keepends=True)
    cuts = []
    for count in range(body[0].lineno, len(lines)):
        prompt = "".join(lines[:count])
        fits = MIN_PROMPT_CHARACTERS <= len(prompt) <= MAX_PROMPT_CHARACTERS
        if fits and lines[count].strip() and len(function) - len(prompt) >= MIN_REST_CHARACTERS:
            cuts.append(prompt)
    return min(cuts, key=lambda prompt: abs(len(prompt) - 0.4 * len(function))) if cuts else None


def _row(document: Document, prompt: str) -> PromptRow:
    name = re.search(r"def\s+(\w+)", document.text)
    mark = fingerprint(document.text)[:8]
    prompt_id = f"{document.module}.{name.group(1) if name else 'function'}-{mark}"
    return PromptRow(prompt_id, document.module, [prompt])
