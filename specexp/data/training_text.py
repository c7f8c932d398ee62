"""Standard library functions as texts: the splits for training and testing, and prompts made from functions."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import sysconfig
import textwrap
import tokenize
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows

if TYPE_CHECKING:
    from datasets import Dataset

Split = Literal["train", "validation", "test"]

MIN_CHARACTERS = 80
MAX_CHARACTERS = 4000
MAX_MODULE_CHARACTERS = 2500
_BUNDLED = "site-packages dist-packages __pycache__ lib2to3 pydoc_data config encodings"
_VALIDATION = """bdb cmd codeop colorsys compileall dis filecmp ftplib graphlib ipaddress locale mimetypes
    modulefinder nntplib pickletools poplib pprint quopri random selectors shlex smtplib socketserver
    tabnanny tempfile timeit trace wave xdrlib xmlrpc"""
_TEST = """aifc bisect calendar cgi chunk configparser copy csv difflib fileinput fractions getopt glob
    gzip heapq imaplib linecache lzma mailbox netrc optparse plistlib pstats pyclbr sched shelve
    statistics stringprep symtable tarfile textwrap uuid webbrowser zipapp zipfile"""

# a fixed list rather than a random draw, so that the split is the same for all Python versions
VALIDATION_MODULES = frozenset(_VALIDATION.split())
TEST_MODULES = frozenset(_TEST.split())


def split_of(module: str) -> Split:
    """Return the split that a standard library module belongs to, given its dotted name.

    The name of the top-level package, without leading underscores, determines the split. A test module belongs to
    the split of the module that it tests, so ``test.test_zipfile64`` follows ``zipfile``.
    """
    parts = [part.lstrip("_") for part in module.split(".")]
    for part in parts[:1] if not is_test_module(module) else parts:
        name = part.removeprefix("test_")
        names = {name, name.split("_")[0], name.rstrip("0123456789")}
        if names & VALIDATION_MODULES:
            return "validation"
        if names & TEST_MODULES:
            return "test"
    return "train"


def is_test_module(module: str) -> bool:
    """Return whether a dotted name belongs to a test module or to a module in a test package."""
    return any(part in ("test", "tests", "idle_test") or part.startswith("test_") for part in module.split("."))


class Document(NamedTuple):
    """The source code of a function or of a whole module, with the module's dotted name."""

    module: str
    kind: Literal["function", "module"]
    text: str


def python_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the dotted module name and path of each Python file below ``root``, sorted by path.

    Installed and bundled packages (``_BUNDLED``) are skipped.
    """
    paths = []
    for folder, inner, names in os.walk(root):
        inner[:] = set(inner) - set(_BUNDLED.split())  # os.walk skips removed folders, such as site-packages
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(paths):
        yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path


def documents_of(path: Path, module: str) -> Iterator[Document]:
    """Yield the documents of a file: its outermost functions, dedented, and the whole module if it is small.

    A file that cannot be parsed yields none. Repetitive texts are skipped, since small models learn to loop from them.
    """
    try:
        with tokenize.open(path) as file:
            source = file.read().expandtabs(8)
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, ValueError, OSError, RecursionError):
        return
    lines = source.splitlines(keepends=True)
    for function in _functions(tree):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        dedented = textwrap.dedent("".join(lines[first - 1 : function.end_lineno]))
        text = "\n".join(line.rstrip() for line in io.StringIO(dedented)).strip("\n") + "\n"
        if MIN_CHARACTERS <= len(text) <= MAX_CHARACTERS and not is_repetitive(text):
            yield Document(module, "function", text)
    if MIN_CHARACTERS <= len(source.strip()) <= MAX_MODULE_CHARACTERS and not is_repetitive(source):
        yield Document(module, "module", source.strip() + "\n")


def fingerprint(text: str) -> str:
    """Return a hash of a text that ignores comments and whitespace."""
    without = re.sub(r"#[^\n]*", "", text)
    return hashlib.sha256("".join(without.split()).encode("utf-8", "replace")).hexdigest()


def is_repetitive(text: str) -> bool:
    """Return whether a text is repetitive: many near-duplicate lines, or compression to less than 1/6 of its size.

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
    """Yield all functions and methods that are not inside another function, in source order."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
        elif isinstance(node, (ast.ClassDef, ast.If, ast.Try, ast.With)):
            yield from _functions(node)


# at about 3.3 characters per token of the embedded tokenizer: prompts of 32 to 128 tokens, and 48 or more to generate
MIN_PROMPT_CHARACTERS = 110
MAX_PROMPT_CHARACTERS = 420
MIN_REST_CHARACTERS = 160


class StdlibFunctions(PromptSet):
    """The beginnings of standard library functions. They need no network access and no extra files.

    Args:
        split: the splits contain different modules; the embedded models were trained on ``train``.
    """

    continued = True

    def __init__(self, split: Literal["train", "validation", "test"] = "test") -> None:
        self.split: Split = split

    @override
    def load(self) -> Dataset:
        return prompt_rows(openings(self.split), where=f"StdlibFunctions({self.split!r})")


@cache  # a search and its confirmation read the same files, which do not change in the meantime
def openings(split: Split, root: Path | None = None) -> tuple[PromptRow, ...]:
    """Return prompts made from standard library functions, excluding tests, in a fixed shuffled order.

    A prompt is the signature, the docstring and the first part of the body, cut after a line break. Its category is the
    module's name. ``root`` is the library's folder, by default that of the running interpreter. Raises PromptSetError
    if the folder has no functions in the split.
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
            f"{str(folder)!r} has no functions of the {split} modules: install the source of the standard library"
        )
    return tuple(sorted(rows.values(), key=lambda row: hashlib.sha256(row.prompt_id.encode()).digest()))


def prompt_of(function: str) -> str | None:
    """Return the beginning of a function's source as a prompt, or None if no cut gives both parts a valid length.

    The cut is at the line break nearest to 40% of the source, after the docstring and at least one line of the body.
    The line after the cut is not blank, since the tokenizer merges consecutive line breaks.
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
    longest = min(MAX_PROMPT_CHARACTERS, len(function) - MIN_REST_CHARACTERS)
    prompts = ("".join(lines[:count]) for count in range(body[0].lineno, len(lines)) if lines[count].strip())
    cuts = [prompt for prompt in prompts if MIN_PROMPT_CHARACTERS <= len(prompt) <= longest]
    return min(cuts, key=lambda prompt: abs(len(prompt) - 0.4 * len(function)), default=None)


def _row(document: Document, prompt: str) -> PromptRow:
    name = re.search(r"def\s+(\w+)", document.text)
    label = f"{document.module}.{name[1] if name else 'function'}-{fingerprint(document.text)[:8]}"
    return PromptRow(label, document.module, [prompt])
