"""Compiles this package's C++ files once per machine and processor, and caches the libraries."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time
from typing import Any

from specexp.base.messages import first_line

log = logging.getLogger(__name__)
_WORKING = "tmp"  # prefix of temporary folders; earlier versions left such folders too
_STALE_SECONDS = 24 * 3600


def cache_folder(what: str) -> Path:
    """Return the path ``specexp/<what>`` in ``XDG_CACHE_HOME`` or ``~/.cache``; the folder may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexp" / what


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in a cache, and remove those that processes which were killed left there."""
    for left in parent.glob(f"{_WORKING}*"):
        if time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(dir=parent, prefix=_WORKING) as folder:
        yield Path(folder)


FLAGS = (
    *("-O3", "-march=native", "-std=c++17", "-ffp-contract=off", "-fno-tree-vectorize"),
    "-falign-loops=64",  # where a loop of products begins moved passes of 8 rows by 10 % (AMD Zen 3)
    *("-fopenmp", "-shared", "-fPIC"),
)
MOST_KEPT = 8
"""Maximum number of libraries in the cache for one kind of processor. The least recently used ones are deleted."""


class CannotRunError(ValueError):
    """Raised if a runtime cannot run a model on this machine, or on any."""


class CannotCompileError(CannotRunError):
    """Raised if a model's passes cannot be compiled on this machine, or on any."""


@cache
def library(source: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Return one of this package's C++ libraries, compiling it if it is not in the cache.

    The name of the cached file contains a hash of all C++ files in the source's folder, flags, compiler and processor.
    The ``flags`` follow :data:`FLAGS`.

    Raises:
        CannotCompileError: there is no C++ compiler, compilation fails, the library is damaged, or another user could
            have written it.
    """
    # CXX may have options or a wrapper, as in "ccache g++"
    compiler = shlex.split(os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "")
    if not compiler:
        raise CannotCompileError(
            "there is no C++ compiler (g++ or clang++ on PATH, or CXX): install one, or set pair.mode to eager"
        )
    folder = cache_folder("kernels")
    file = folder / f"{source.stem}-{_key(source, compiler, flags)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        if not file.exists():
            log.warning(f"compiling {source.name} for this machine, kept in {folder}")
            _compile(compiler, flags, source, file)
        _check_private(file)
        with suppress(OSError):  # the folder may be read-only
            os.utime(file)  # the least recently used ones are removed first
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise CannotCompileError(f"{file} cannot be compiled or loaded: {first_line(error)}") from error


def address(array: Any) -> int:
    """Return the address of a writable array. This is faster than ``array.ctypes.data``."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


@cache
def processor() -> str:
    """Return the model and the instructions of this machine's processor, as far as the system describes them."""
    described, known = Path("/proc/cpuinfo"), set[str]()
    if described.exists():
        lines = described.read_text().splitlines()
        known = {line for line in lines if line.startswith(("flags", "model name", "Features"))}
    return platform.processor() + platform.machine() + "".join(sorted(known))


def has_amx() -> bool:
    """Return whether the processor multiplies matrix tiles, as Intel's AMX does."""
    return "amx_tile" in processor() or "amx_int8" in processor()


def _key(source: Path, compiler: list[str], flags: tuple[str, ...]) -> str:
    """Return a hash of the processor, and one of the files, the options and the compiler."""
    words = shlex.join(compiler)
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotCompileError(
            f"the C++ compiler {words!r} (CXX, or from PATH) does not run: {first_line(error)}"
        ) from error
    options = " ".join((words, *FLAGS, *flags))
    files = sorted(one for one in source.parent.iterdir() if one.suffix in (".cpp", ".h"))
    parts = (*(one.read_bytes() for one in files), options.encode(), version)
    machine, made = (sha256(b"\0".join(one)).hexdigest() for one in ([processor().encode()], parts))
    return f"{machine[:8]}-{made[:16]}"


def _check_private(path: Path) -> None:
    """Raise if another user (except root) could have written the path, because loading a library runs its code."""
    about = path.stat()
    if about.st_uid not in (os.geteuid(), 0) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CannotCompileError(
            f"{path} belongs to another user or can be written by one, so its code is not loaded: delete it, "
            "or set XDG_CACHE_HOME to a folder of your own"
        )


def _compile(compiler: list[str], flags: tuple[str, ...], source: Path, file: Path) -> None:
    """Compile into a temporary folder next to the library, then move the complete library into place."""
    with working_folder(file.parent) as folder:
        made = folder / file.name
        command = [*compiler, *FLAGS, *flags, str(source), "-o", str(made)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            why = next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr)
            raise CannotCompileError(f"{shlex.join(compiler)} cannot compile {source.name}: {why.strip():.200}")
        made.chmod(0o700)  # regardless of the umask
        made.replace(file)  # atomic: another process never loads a partial library
    _make_room(file)


def _make_room(file: Path) -> None:
    """Delete libraries for the processor of ``file``; machines with other processors may share the folder."""
    kind = file.name.split("-")[-2]
    kept = sorted(file.parent.glob(f"*-{kind}-*.so"), key=lambda one: one.stat().st_mtime)
    for old in kept[:-MOST_KEPT]:
        old.unlink(missing_ok=True)
