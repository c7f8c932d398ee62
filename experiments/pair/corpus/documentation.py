"""Documentation of Python and of installed packages as training text, and passages of prose for creative writing."""

from __future__ import annotations

import ast
import inspect
import random
import re
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import ClassVar, NamedTuple

from typing_extensions import override

from experiments.pair.corpus.python_source import PACKAGES, package_files
from experiments.pair.corpus.text_source import Text, TextSource, split_of_name
from experiments.pair.corpus.word_problems import WITH_HEAD, Example, document, example, head_of, judged
from specexp.data.prompt_set import PromptSetError
from specexp.data.tasks.creative_writing import SENTENCES, CreativeWriting
from specexp.data.tasks.task import Item
from specexp.data.training_text import Split, is_repetitive, split_of

MAX_CHARACTERS = 3500
_UNDERLINE = re.compile(r"^([=\-~^*+#.\"'`])\1{2,}\s*$")  # of a heading
_ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`<]*?)(?:\s*<[^`>]*>)?`")  # :func:`name <target>`
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`__?")  # `text <url>`_
_DIRECTIVE = re.compile(r"^(\s*)\.\. +([\w:-]+):: ?(.*)$")  # .. name:: argument
_HIDDEN = """index module moduleauthor sectionauthor highlight toctree image figure only versionadded versionchanged
    deprecated currentmodule rubric include literalinclude tabularcolumns testsetup raw c:type c:macro c:member
    c:var"""
_TASK = CreativeWriting("")
_GOOD = (
    "The parts follow one another, and each leads to its sentence.",
    "One subject joins all four parts, and every sentence has its place.",
    "Each part prepares the sentence that it has to end with.",
)
_BAD = (
    "The parts have nothing to do with each other.",
    "The parts do not lead to the sentences.",
    "The sentences come as a surprise, and nothing joins the parts.",
)


class PythonDocumentation(TextSource):
    """Python's documentation by section; sections headed by a question, and descriptions, become answers.

    The page of a held-out standard-library module is held out too. Other pages are split by their names.

    Args:
        path: the folder of ``*.rst`` or ``*.rst.txt`` files: ``Doc`` of Python's source tree, or ``_sources`` of the
            built documentation.
    """

    licence: ClassVar[str] = "PSF-2.0 (documentation of Python)"

    def __init__(self, path: str) -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for page, path in self.pages(split):
            module, source = page.removeprefix("library/"), path.read_text(encoding="utf-8")
            for title, body in sections(source):
                asked = title.endswith("?")
                yield Text(page, f"Question: {title}\nAnswer: {body}\n" if asked else f"{title}\n\n{body}\n")
            for name, meaning in descriptions(source) if module != page else ():
                question = f"What does {name} of the module {module} do?"
                yield Text(page, f"Question: {question}\nAnswer: {meaning}\n")

    def pages(self, split: Split) -> Iterator[tuple[str, Path]]:
        """Yield names and files of a split's pages."""
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
    """Descriptions of the installed packages, and docstrings of their modules and classes, as prose and as answers."""

    licence: ClassVar[str] = "as the packages' source"

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for package in PACKAGES:
            for module, path in package_files(package):
                if split_of_name(module) == split:
                    yield from _docstrings(module, path)
            if split_of_name(package) == split:
                yield from _description(package)


class Passage(NamedTuple):
    """Consecutive paragraphs of a page, without code and lists, each of at least two sentences."""

    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def item(self) -> Item:
        """The task's problem: the last sentence of each paragraph."""
        last = [sentences[-1] for sentences in self.paragraphs]
        problem = "\n".join(f"{place}. {sentence}" for place, sentence in enumerate(last, start=1))
        return Item("", 0, problem, tuple(last))

    @property
    def plan(self) -> str:
        """The first sentence of each paragraph."""
        return "\n".join(f"{place}. {first}" for place, (first, *_) in enumerate(self.paragraphs, start=1))

    @property
    def text(self) -> str:
        """The paragraphs, separated by blank lines, then the task's end mark."""
        return "\n\n".join(" ".join(sentences) for sentences in self.paragraphs) + "\n[end]"


class Passages(TextSource):
    """Creative Writing by self-supervision, on the pages of :class:`PythonDocumentation` and with their splits.

    Of four paragraphs, the last sentences are given, the first ones are the plan. A judgement is about the plan of
    these or of other paragraphs.

    Args:
        path: see :class:`PythonDocumentation`.
    """

    licence: ClassVar[str] = PythonDocumentation.licence
    written: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        passages = list(self.passages(split))
        rng = random.Random(f"passages/{split}")
        for page, passage in passages:
            item, plan = passage.item, passage.plan
            thought, last = _TASK.thought_prompt(item, []), _TASK.thought_prompt(item, [plan], last=True)
            other = rng.choice(passages)[1].plan
            good = rng.random() < 0.5 or other == plan
            value = _TASK.value_prompt(item, [plan if good else other])
            answer = f"{rng.choice(_GOOD if good else _BAD)}\nScore: {'9' if good else '2'}"
            for prompt, one in (
                (thought, Example(example(thought, plan, item.problem))),
                (last, Example(example(last, passage.text, item.problem))),
                (value, judged(value, answer, item.problem)),
            ):
                head = head_of(prompt, item.problem) if rng.random() < WITH_HEAD else None
                yield document(page, [one], head)

    def passages(self, split: Split) -> Iterator[tuple[str, Passage]]:
        """Yield the passages of a split with the names of their pages; no two share a paragraph."""
        for page, path in PythonDocumentation(self.path).pages(split):
            waiting: list[tuple[str, ...]] = []
            for paragraph in plain(path.read_text(encoding="utf-8")).split("\n\n"):
                sentences = _sentences(paragraph)
                waiting += [sentences] if sentences else []
                if len(waiting) == SENTENCES:
                    yield page, Passage(tuple(waiting))
                    waiting = []


def sections(source: str) -> Iterator[tuple[str, str]]:
    """Yield titles and bodies of a page's sections without markup; a long body is split into parts."""
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
    """Yield the signature of each function or class of a page, and the first paragraphs below it."""
    for found in re.finditer(
        r"^\.\. (?:function|class|exception):: (.+)\n(?:   +:.*\n|              .*\n)*\n((?:   .*\n|\n)+)",
        source,
        re.MULTILINE,
    ):
        body = plain(inspect.cleandoc(found[2]))
        if len(body) >= 60:
            first = _parts(body)[0][:1200]
            yield found[1].strip(), first.rpartition("\n\n")[0] or first


def plain(markup: str) -> str:
    """Return the text of reStructuredText: roles and links as shown, directives as the text they describe."""
    kept: list[str] = []
    skipped = -1  # indentation of a hidden directive, which contains all deeper lines
    for line in markup.splitlines():
        indent = len(line) - len(line.lstrip())
        if skipped >= 0 and (not line.strip() or indent > skipped):
            continue
        skipped = -1
        found = _DIRECTIVE.match(line)
        if found and found[2] in _HIDDEN.split():
            skipped = indent
        elif found:
            kept.append(found[1] + found[3])
        elif re.match(r"\s*\.\. ", line) or line.strip() == "..":  # a comment or a target
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
    """Split a body between paragraphs into parts of at most about `MAX_CHARACTERS` characters."""
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
            answer = (_parts(plain(text)) or [""])[0]
            yield Text(name, f"Question: {asked}\nAnswer: {answer}\n")


def _description(package: str) -> Iterator[Text]:
    try:
        text = metadata(package).json.get("description")
    except PackageNotFoundError:
        return
    if isinstance(text, str):
        for part in _parts(re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).strip()):
            if len(part) >= 160 and not is_repetitive(part):
                yield Text(package, f"{part}\n")


def _sentences(paragraph: str) -> tuple[str, ...]:
    """Return the two to four sentences of a paragraph; empty for code, lists, headings and longer paragraphs."""
    text = " ".join(paragraph.split())
    if not 60 <= len(text) <= 600 or not re.match(r"[A-Z\"]", text) or paragraph.startswith(" "):
        return ()
    sentences = tuple(re.split(r"(?<=[.!?])\s+(?=[A-Z\"`])", text))
    good = all(re.search(r"[\w\")`][.!?]$", sentence) and len(sentence) >= 12 for sentence in sentences)
    return sentences if good and 2 <= len(sentences) <= 4 else ()
