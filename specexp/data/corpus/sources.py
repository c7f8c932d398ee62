"""Documents out of Python source: whole functions and methods (dedented), and whole small modules."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import textwrap
import tokenize
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MIN_CHARACTERS = 80
MAX_CHARACTERS = 4000
MAX_MODULE_CHARACTERS = 2500
_SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "lib2to3",
    "pydoc_data",
    "config",
    "encodings",
}


@dataclass(frozen=True)
class Document:
    """One training text: its dotted module, whether it is a function or a module, and the source itself."""

    module: str
    kind: Literal["function", "module"]
    text: str


def python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Dotted module name and path of every Python file below ``root``, sorted, bundled packages left out."""
    paths = []
    for folder, inner, names in os.walk(root):
        inner[:] = (
            set(inner) - _SKIPPED_FOLDERS
        )  # never entered: the packages installed beside are many times the rest
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(paths):
        yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path


def documents_of(path: Path, module: str) -> Iterator[Document]:
    """The documents of one file; nothing when it cannot be decoded or parsed.

    Functions nested in functions stay inside the outer one. A file of at most `MAX_MODULE_CHARACTERS`
    characters is also a document as a whole. Texts that are mostly a table of near-equal lines are left out:
    they teach a small model to loop.
    """
    try:
        with tokenize.open(path) as file:
            source = file.read().expandtabs(8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, ValueError, OSError, RecursionError):
        return
    lines = source.splitlines(keepends=True)
    for function in _functions(tree):
        text = _function_text(function, lines)
        if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS and not is_repetitive(text):
            yield Document(module, "function", text)
    if MIN_CHARACTERS <= len(source.strip()) <= MAX_MODULE_CHARACTERS and not is_repetitive(source):
        yield Document(module, "module", source.strip() + "\n")


def fingerprint(text: str) -> str:
    """The same for two texts that differ only in comments, white space and blank lines."""
    without = re.sub(r"#[^\n]*", "", text)
    return hashlib.sha256("".join(without.split()).encode("utf-8", "replace")).hexdigest()


def is_repetitive(text: str) -> bool:
    """Whether at least 40 % of six or more lines are near copies of one another, or the text compresses
    6-fold.

    >>> is_repetitive("\\n".join(f"assert f({i}) == {i + 1}" for i in range(20)))
    True
    """
    shapes = [re.sub(r"(['\"]).*?\1|\d+", "0", line.strip()) for line in text.splitlines()]
    shapes = [shape for shape in shapes if len(shape) > 6]
    if len(shapes) >= 6:
        near = sum(count for count in Counter(shapes).values() if count >= 3)
        heads = Counter(re.split(r"[^\w.]", shape, maxsplit=1)[0] for shape in shapes)
        head, count = heads.most_common(1)[0]
        if near >= 0.4 * len(shapes) or (len(head) > 6 and "." in head and count >= 0.5 * len(shapes)):
            return True
    data = text.encode("utf-8", "replace")
    return len(data) > 600 and len(zlib.compress(data)) * 6 < len(data)


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, outermost only, in source order."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.ClassDef, ast.If, ast.Try, ast.With)):
            yield from _functions(node)


def _function_text(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    text = "".join(lines[first - 1 : function.end_lineno])
    return _trimmed(textwrap.dedent(text))


def _trimmed(text: str) -> str:
    """Trailing white space removed from every line, one newline at the end."""
    buffer = io.StringIO(text)
    return "\n".join(line.rstrip() for line in buffer).strip("\n") + "\n"
