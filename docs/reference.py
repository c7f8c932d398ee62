"""The reference: every part, key, metric, artifact kind, format and command, generated from the code."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import specexp
from specexp.__main__ import COMMANDS
from specexp.artifacts import all_kinds
from specexp.base.checked import Section
from specexp.config.check import find_part, parts_of
from specexp.config.explain import arguments, contracts
from specexp.config.schema import Experiment
from specexp.deploy.export.export_format import all_formats
from specexp.deploy.hugging_face import custom_generate
from specexp.report.comparison import metric_table

PACKAGE = Path(specexp.__file__).parent
FAMILIES = {
    "specexp.core.contracts.Drafter": ("drafters", "Drafters", "propose candidates for nodes of a tree"),
    "specexp.core.contracts.TreeBuilder": ("builders", "Tree builders", "choose nodes from the candidates"),
    "specexp.core.contracts.Verifier": ("verifiers", "Verifiers", "accept drafted tokens"),
    "specexp.core.contracts.Controller": ("controllers", "Controllers", "limit how much is drafted"),
}


def write_reference(folder: Path) -> None:
    """Write all pages and delete those of an earlier build."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    pages = {
        "commands": _commands(),
        "keys": _keys(),
        "metrics": _metrics(),
        "artifacts": _artifacts(),
        "formats": _formats(),
        "python": _python(),
    }
    for contract in contracts():
        name, title, what = FAMILIES.get(contract) or _other(contract)
        pages[name] = _family(contract, title, what)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    first = ["commands", "keys", "python", *(name for name, _, _ in FAMILIES.values())]
    listed = "\n".join([*first, *sorted(pages.keys() - set(first))])
    (folder / "index.md").write_text(
        "# Reference\n\nWritten from the signatures at every build.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
        encoding="utf-8",
    )


def _other(contract: str) -> tuple[str, str, str]:
    name = contract.rpartition(".")[2]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return words.replace(" ", "-"), f"{words.capitalize()}: the parts", f"implement `{name}`"


def _family(contract: str, title: str, what: str) -> str:
    module, _, name = contract.rpartition(".")
    base = getattr(import_module(module), name)
    found = [f"# {title}", f"They {what}. The contract is `{contract}`."]
    for part in sorted(parts_of(base)):
        made = find_part(base, part)
        assert made is not None, f"{part} is listed in {contract} and not found"
        found += [f"## {part}", f"`{made.__module__}.{part}`", *_prose(made), _arguments(made)]
    return "\n\n".join(found) + "\n"


def _keys() -> str:
    found = [
        "# Keys of an experiment",
        "A file is a mapping of these sections; the command line takes the same keys with dots.",
    ]
    found.append(_arguments(Experiment))
    for name, field in Experiment.model_fields.items():
        for section in (field.annotation, *get_args(field.annotation)):
            if isinstance(section, type) and issubclass(section, Section):
                found += [f"## {name}", *_prose(section), _arguments(section)]
    return "\n\n".join(found) + "\n"


def _metrics() -> str:
    table = metric_table()
    head = "| " + " | ".join(column.title for column in table.columns) + " |"
    rows = ["| " + " | ".join(_cell(str(cell)) for cell in row) + " |" for row in table.rows]
    rule = "|" + "---|" * len(table.columns)
    text = "Objectives, constraints, tables and W&B use these names."
    return "\n".join(["# Metrics", "", text, "", head, rule, *rows]) + "\n"


def _artifacts() -> str:
    found = [
        "# Kinds of artifacts",
        "A study exports an artifact as a folder, and a deployment loads it.",
    ]
    for name, kind in all_kinds().items():
        found += [f"## {name}", *_prose(kind)]
        optional = [file for file in kind.files() if file not in kind.required]
        found.append(
            f"Payloads: {', '.join(f'`{file}`' for file in kind.required)}"
            + (f"; and perhaps {', '.join(f'`{file}`' for file in optional)}." if optional else ".")
        )
    return "\n\n".join(found) + "\n"


def _formats() -> str:
    found = ["# Formats to export to", "`python -m specexp.export ARTIFACT --to FORMAT`."]
    for name, one in all_formats().items():
        found += [f"## {name}", *_prose(one), f"Its fields were read for {one.read_for}."]
        if one.options:
            found.append("It takes " + ", ".join(f"`--{option}`" for option in one.options) + " too.")
    return "\n\n".join(found) + "\n"


def _commands() -> str:
    found = [
        "# Commands",
        "Each has `--help`. Commands that take a file also have `--help KEY` and `--print-config`.",
    ]
    for name, (home, _) in COMMANDS.items():
        module = import_module(home)
        found += [f"## specexp.{name}", _text(inspect.getdoc(module) or "")]
        if usage := getattr(module, "USAGE", None):
            found.append(f"```text\n{usage}\n```")
    return "\n\n".join(found) + "\n"


def _python() -> str:
    """Public names of the package, the entry for Hugging Face, and the tests that parts inherit."""
    found = ["# In Python", "Names to import in a program. Parts are on the pages of their families."]
    imported = [(specexp, name) for name in specexp.__all__] + [(custom_generate, "custom_generate")]
    for module, name in imported:
        made = getattr(module, name)
        call = f"{module.__name__}.{name}{_signature(made)}"
        found += [f"## {name}", f"```python\n{call}\n```", *_prose(made), *_methods(made)]
    found += ["# Tests that parts inherit", "They are in `specexp.testing` and need pytest."]
    for file in sorted((PACKAGE / "testing").glob("[!_]*.py")):
        module = import_module(f"specexp.testing.{file.stem}")
        for name, made in vars(module).items():
            if name.endswith("Contract") and made.__module__ == module.__name__:
                found += [f"## {name}", f"`{module.__name__}.{name}`", *_prose(made)]
    return "\n\n".join(found) + "\n"


def _methods(made: Any) -> Iterable[str]:
    """A class's own methods and properties, each with its first sentence."""
    for name, what in vars(made).items() if isinstance(made, type) else ():
        if name.startswith("_") or not (inspect.isfunction(what) or isinstance(what, property)):
            continue
        called = what.fget if isinstance(what, property) else what
        call = "" if isinstance(what, property) else _signature(what)
        yield f"- `.{name}{call}`: {_cell((inspect.getdoc(called) or '').partition(chr(10) * 2)[0])}"


def _signature(made: Callable[..., Any]) -> str:
    """Return the arguments without annotations."""
    try:
        arguments = inspect.signature(made).parameters.values()
    except ValueError:
        return "()"
    shown = [
        str(one.replace(annotation=inspect.Parameter.empty))
        for one in arguments
        if one.name != "self" and "<" not in str(one.default)
    ]
    return f"({', '.join(shown)})"


def _prose(made: type | Callable[..., Any]) -> Iterable[str]:
    """The docstring up to its first list."""
    text = textwrap.dedent(re.sub(r"^(\S.*)", r"\1", made.__doc__ or "")).strip()
    first, _, rest = text.partition("\n")
    text = first + "\n" + textwrap.dedent(rest)
    text = re.split(r"^(?:Args|Raises|Attributes|Example|Returns):\n", text, flags=re.MULTILINE)[0]
    return [_text(one) for one in re.split(r"\n\s*\n", text) if one.strip()]


def _arguments(made: Callable[..., Any]) -> str:
    found = arguments(made)
    if not found:
        return "No arguments."
    rows = ["| argument | values | default | meaning |", "|---|---|---|---|"]
    for one in found:
        cells = (f"`{one.name}`", one.allowed, f"`{one.default}`", one.meaning)
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(rows)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """reStructuredText's roles and literals as Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"<(?=\w)", r"\\<", text) if "`" not in text else text
