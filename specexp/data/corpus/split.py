"""Which modules of the standard library are held out.

The split is by top-level module and by explicit name, so that it is the same on every interpreter version.
What is not named is training text. A module's tests (``test_csv.py`` for ``csv``) follow the module and are
never training text.
"""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "validation", "test"]

_VALIDATION = """bdb cmd codeop colorsys compileall dis filecmp ftplib graphlib ipaddress locale mimetypes
    modulefinder nntplib pickletools poplib pprint quopri random selectors shlex smtplib socketserver
    tabnanny tempfile timeit trace wave xdrlib xmlrpc"""
_TEST = """aifc bisect calendar cgi chunk configparser copy csv difflib fileinput fractions getopt glob
    gzip heapq imaplib linecache lzma mailbox netrc optparse plistlib pstats pyclbr sched shelve
    statistics stringprep symtable tarfile textwrap uuid webbrowser zipapp zipfile"""

VALIDATION_MODULES = frozenset(_VALIDATION.split())
TEST_MODULES = frozenset(_TEST.split())


def split_of(module: str) -> Split:
    """The split a standard library module belongs to, from its dotted name.

    Only the top-level name counts, a leading underscore does not (``_strptime`` follows ``strptime``), and
    the tests of a module follow the module.

    >>> split_of("zipfile._path"), split_of("test.test_zipfile64"), split_of("asyncio.queues")
    ('test', 'test', 'train')
    """
    parts = [part.lstrip("_") for part in module.split(".")]
    for part in parts[:1] if not is_test_module(module) else parts:
        name = part.removeprefix("test_")
        if _held_out(name, VALIDATION_MODULES):
            return "validation"
        if _held_out(name, TEST_MODULES):
            return "test"
    return "train"


def is_test_module(module: str) -> bool:
    """Whether a dotted name lies in a test package or is a test module."""
    return any(
        part in ("test", "tests", "idle_test") or part.startswith("test_") for part in module.split(".")
    )


def _held_out(name: str, modules: frozenset[str]) -> bool:
    return name in modules or name.split("_")[0] in modules or name.rstrip("0123456789") in modules
