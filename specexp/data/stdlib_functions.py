"""The embedded prompts: beginnings of functions of the running interpreter's standard library, split by
module."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from specexp.data.corpus.sources import Document, documents_of, fingerprint, python_files
from specexp.data.corpus.split import is_test_module, split_of

if TYPE_CHECKING:
    import datasets

# About 3.3 characters make a token of the embedded tokenizer: prompts of 32 to 128 tokens, 48 or more left to
# write.
MIN_PROMPT_CHARACTERS = 110
MAX_PROMPT_CHARACTERS = 420
MIN_REST_CHARACTERS = 160


def stdlib_functions(
    split: Literal["train", "validation", "test"], *, limit: int | None = None, root: str | Path | None = None
) -> datasets.Dataset:
    """Prompts from functions of the standard library (its tests left out).

    A prompt is the signature, the docstring and the first part of the body, cut before a line break (the
    embedded tokenizer joins a line break with the indentation after it). Validation and test come from
    modules that no model of the embedded pair has seen; search on validation, confirm on test.

    Args:
        split: which modules.
        limit: so many prompts at most, the first ones.
        root: folder of the standard library; the running interpreter's own when absent.

    Returns:
        A data set with ``prompt_id``, ``category`` (the module) and ``prompt``, in one fixed shuffled order.

    Raises:
        ValueError: the split is unknown, or the library's source is not there.
    """
    import datasets

    if split not in ("train", "validation", "test"):
        raise ValueError(f"split is {split!r}; allowed are train, validation, test")
    folder = Path(root or sysconfig.get_paths()["stdlib"])
    rows: dict[str, dict[str, str]] = {}
    for module, path in python_files(folder):
        if is_test_module(module) or split_of(module) != split:
            continue
        for document in documents_of(path, module):
            prompt = prompt_of(document.text) if document.kind == "function" else None
            if prompt is not None:
                rows.setdefault(fingerprint(document.text), _row(document, prompt))
    if not rows:
        raise ValueError(
            f"no functions of the {split} modules in {str(folder)!r}; is the library's source installed?"
        )
    ordered = sorted(rows.values(), key=lambda row: hashlib.sha256(row["prompt_id"].encode()).digest())
    return datasets.Dataset.from_list(ordered[:limit])


def prompt_of(function: str) -> str | None:
    """The beginning of a function's source, or nothing when it is too short or its head too long to make a
    prompt.

    The cut is at the line break nearest to 40 % of the source, after the docstring and at least one line of
    the body.
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
    lines = function.splitlines()
    cuts = []
    for count in range(body[0].lineno, len(lines)):
        prompt = "\n".join(lines[:count])
        fits = MIN_PROMPT_CHARACTERS <= len(prompt) <= MAX_PROMPT_CHARACTERS
        if fits and lines[count - 1].strip() and len(function) - len(prompt) >= MIN_REST_CHARACTERS:
            cuts.append(prompt)
    return min(cuts, key=lambda prompt: abs(len(prompt) - 0.4 * len(function))) if cuts else None


def _row(document: Document, prompt: str) -> dict[str, str]:
    name = re.search(r"def\s+(\w+)", document.text)
    mark = fingerprint(document.text)[:8]
    return {
        "prompt_id": f"{document.module}.{name.group(1) if name else 'function'}-{mark}",
        "category": document.module,
        "prompt": prompt,
    }
