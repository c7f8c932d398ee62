"""Documentation as text: Python's own, and that of permissively licensed installed packages; sections and answers."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import ClassVar

from typing_extensions import override

from experiments.pair.corpus.python_source import PACKAGES, package_files
from specexp.data.corpus.sources import is_repetitive
from specexp.data.corpus.split import Split, split_of
from specexp.data.corpus.text_source import Text, TextSource, split_of_name
from specexp.data.prompt_set import PromptSetError

MAX_CHARACTERS = 3500
_UNDERLINE = re.compile(r"^([=\-~^*+#.\"'`])\1{2,}\s*$")
_ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`__?")
_DIRECTIVE = re.compile(r"^(\s*)\.\. +([\w:-]+):: ?(.*)$")
_DESCRIBED = {"function", "method", "class", "exception", "attribute", "data", "classmethod", "staticmethod"}
_HIDDEN = {
    "index",
    "module",
    "moduleauthor",
    "sectionauthor",
    "highlight",
    "toctree",
    "image",
    "figure",
    "only",
    "versionadded",
    "versionchanged",
    "deprecated",
    "currentmodule",
    "rubric",
    "include",
    "literalinclude",
    "tabularcolumns",
    "testsetup",
    "raw",
    "c:function",
    "c:type",
    "c:macro",
    "c:member",
    "c:var",
}


class PythonDocumentation(TextSource):
    """The documentation of Python, section by section; a heading that asks, and what is described, become answers.

    The page of a held-out module of the standard library is held out with it, other pages by their names.

    Args:
        path: the folder of its sources, ``*.rst`` or ``*.rst.txt``, as Python's source tree (``Doc``) and the built
            documentation (``_sources``) have it.
    """

    licence: ClassVar[str] = "PSF-2.0 (documentation of Python)"

    def __init__(self, path: str) -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for page, path in self.pages(split):
            module = page.removeprefix("library/")
            for title, body in sections(path.read_text(encoding="utf-8")):
                if title.endswith("?"):
                    yield Text(page, f"Question: {title}\nAnswer: {body}\n")
                else:
                    yield Text(page, f"{title}\n\n{body}\n")
            if module != page:
                for name, meaning in descriptions(path.read_text(encoding="utf-8")):
                    yield Text(
                        page, f"Question: What does {name} of the module {module} do?\nAnswer: {meaning}\n"
                    )

    def pages(self, split: Split) -> Iterator[tuple[str, Path]]:
        """Names and files of a split's pages."""
        root = Path(self.path).expanduser()
        files = sorted(path for path in root.rglob("*") if path.name.endswith((".rst", ".rst.txt")))
        if not files:
            raise PromptSetError(
                f"{self.path}: there is no page (*.rst or *.rst.txt) of Python's documentation"
            )
        for path in files:
            page = path.relative_to(root).as_posix().removesuffix(".txt").removesuffix(".rst")
            module = page.removeprefix("library/")
            kept = split_of(module) if module != page else "train"
            if "changelog" not in page and (split_of_name(page) if kept == "train" else kept) == split:
                yield page, path


class PackageDocumentation(TextSource):
    """Descriptions and docstrings of modules and classes of the installed packages, as prose and as answers."""

    licence: ClassVar[str] = "as the packages' source"

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for package in PACKAGES:
            for module, path in package_files(package):
                if split_of_name(module) == split:
                    yield from _docstrings(module, path)
            if split_of_name(package) == split:
                yield from _description(package)


def sections(source: str) -> Iterator[tuple[str, str]]:
    """Titles and bodies of a page's sections, without markup that says nothing to a reader; long bodies are cut."""
    lines = source.expandtabs(8).splitlines()
    starts = [
        number
        for number in range(len(lines) - 1)
        if lines[number].strip()
        and not lines[number].startswith((" ", ".."))
        and _UNDERLINE.match(lines[number + 1])
        and not _UNDERLINE.match(lines[number])
    ]
    for start, end in zip(starts, [*starts[1:], len(lines)][: len(starts)], strict=True):
        title = _inline(lines[start].strip())
        body = plain("\n".join(line for line in lines[start + 2 : end] if not _UNDERLINE.match(line)))
        for part in _parts(body):
            if len(part) >= 120 and not is_repetitive(part):
                yield title, part


def descriptions(source: str) -> Iterator[tuple[str, str]]:
    """What a page says of each function or class: its signature, and the first paragraphs below it."""
    for found in re.finditer(
        r"^\.\. (?:function|class|exception):: (.+)\n(?:   +:.*\n|              .*\n)*\n((?:   .*\n|\n)+)",
        source,
        re.MULTILINE,
    ):
        body = plain(inspect.cleandoc(found[2]))
        if len(body) >= 60:
            yield found[1].strip(), _parts(body)[0][:1200].rpartition("\n\n")[0] or _parts(body)[0][:1200]


def plain(markup: str) -> str:
    """Text of reStructuredText: roles and links by what they show, directives by what they describe."""
    kept: list[str] = []
    skipped = -1
    for line in markup.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipped >= 0 and (not line.strip() or indent > skipped):
            continue
        skipped = -1
        found = _DIRECTIVE.match(line)
        if found and found[2].rpartition(":")[2] in _DESCRIBED:
            kept.append(found[1] + found[3])
        elif found and found[2] in _HIDDEN:
            skipped = indent
        elif found:
            kept.append(found[1] + found[3])
        elif re.match(r"\s*\.\. ", line) or line.strip() == "..":
            skipped = indent
        elif not re.match(
            r"\s*:(?:noindex|synopsis|platform|term|name|module|async|linenos|class|align|widths|header)",
            line,
        ):
            kept.append(_inline(line.rstrip()))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).replace("::\n", ":\n").strip()


def _inline(line: str) -> str:
    return _LINK.sub(r"\1", _ROLE.sub(r"\1", line)).replace("``", "`").replace("\\ ", "")


def _parts(body: str) -> list[str]:
    """A body in pieces of at most `MAX_CHARACTERS`, cut between paragraphs."""
    parts = [""]
    for paragraph in body.split("\n\n"):
        if parts[-1] and len(parts[-1]) + len(paragraph) > MAX_CHARACTERS:
            parts.append("")
        parts[-1] = f"{parts[-1]}\n\n{paragraph}" if parts[-1] else paragraph
    return [part for part in parts if len(part) <= 2 * MAX_CHARACTERS]


def _docstrings(module: str, path: Path) -> Iterator[Text]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    nodes: list[tuple[str, ast.Module | ast.ClassDef]] = [(module, tree)]
    nodes += [(f"{module}.{node.name}", node) for node in tree.body if isinstance(node, ast.ClassDef)]
    for name, node in nodes:
        text = ast.get_docstring(node)
        if text is not None and len(text) >= 160 and not is_repetitive(text):
            asked = f"What is {name}?" if isinstance(node, ast.ClassDef) else f"What is in the module {name}?"
            yield Text(
                name, f"Question: {asked}\nAnswer: {_parts(plain(text))[0] if _parts(plain(text)) else ''}\n"
            )


def _description(package: str) -> Iterator[Text]:
    try:
        text = metadata(package).json.get("description")
    except PackageNotFoundError:
        return
    if isinstance(text, str):
        for part in _parts(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).strip()):
            if len(part) >= 160 and not is_repetitive(part):
                yield Text(package, f"{part}\n")
