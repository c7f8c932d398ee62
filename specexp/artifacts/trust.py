"""The code that an artifact may run: specexp's own parts, and installed packages that the user trusts.

The hashes of an artifact detect damage but do not prove authorship. An untrusted class path is therefore rejected
before anything is imported, and a trusted package must be installed. Nothing is imported from the artifact's folder or
the working directory, because untrusted files may have been unpacked there.
"""

from __future__ import annotations

import json
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from specexp.artifacts.validation import ArtifactError


@dataclass(frozen=True)
class Trust:
    """The packages that an artifact may import in addition to specexp's own parts."""

    packages: tuple[str, ...] = ()  # top-level names of installed packages
    # whether modules that this process has already imported are also allowed, e.g. to save an artifact with parts that
    # the process is using
    imported: bool = False

    def refusal(self, class_path: str, folder: Path) -> str | None:
        """Return why a class path outside specexp's families must not be imported, or None if it may be."""
        module = class_path.rpartition(".")[0]
        package = module.partition(".")[0]
        if self.imported and module in sys.modules:
            return None
        if package not in self.packages:
            return (
                "an artifact may import only those, because its hashes do not prove who wrote it; if you trust the "
                f"installed package {package!r}, load it with trust=({package!r},) or --trust {package}"
            )
        if not _is_installed(package, folder):
            return (
                f"{package!r} is trusted but not installed: it must be an installed package, outside of the artifact's "
                "folder and the working directory"
            )
        return None


NO_PACKAGES = Trust()
"""The default trust: only specexp's own parts are imported."""


def trust_in(packages: Sequence[str]) -> Trust:
    """Return a Trust for these packages. Raises ArtifactError unless all are top-level package names."""
    names = isinstance(packages, Iterable) and not isinstance(packages, str)
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in packages):
        raise ArtifactError(f"trust must be installed packages such as ('my_package',), got {packages!r}")
    for name in packages:
        if name not in sys.modules and find_spec(name) is None:
            raise ArtifactError(f"trust must be installed packages, got {name!r}, which is not installed")
    return Trust(tuple(packages))


def is_inside(path: str, folder: Path) -> bool:
    """Return whether a path is inside the artifact's folder or the working directory; False for W&B references."""
    try:
        if path.startswith("wandb:"):
            return False
        found = Path(path).resolve()
        return found.is_relative_to(Path.cwd()) or found.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # an invalid file name, or links that form a cycle
        return False


def _is_installed(package: str, folder: Path) -> bool:
    folders, here = site_folders(), Path.cwd().resolve()
    installed = _location(PathFinder.find_spec(package, [str(place) for place in folders]))
    try:
        # the package that an import would find, which may hide the installed one
        found = _location(find_spec(package))
    except (ImportError, ValueError):
        return False
    if found is None or found.is_relative_to(folder.resolve()) or found.parent == here:
        return False
    if installed is not None:
        return found == installed
    return not found.is_relative_to(here) and any(map(found.is_relative_to, _editable_sources(folders)))


def site_folders() -> list[Path]:
    """Return this interpreter's site-packages folders."""
    named = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        named.add(site.getusersitepackages())
    return sorted({Path(name).resolve() for name in named if name})


def _location(spec: ModuleSpec | None) -> Path | None:
    """Return the package's folder, or a single module's file; None for namespace packages and built-in modules."""
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    origin = Path(spec.origin).resolve()
    return origin.parent if spec.submodule_search_locations else origin


def _editable_sources(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the source folders of packages that are installed in editable mode."""
    for distribution in distributions(path=[str(place) for place in folders]):
        try:
            origin = json.loads(distribution.read_text("direct_url.json") or "{}")
            url = urlsplit(str(origin.get("url", "")))
        except (ValueError, AttributeError):
            continue
        if (origin.get("dir_info") or {}).get("editable") and url.scheme == "file":
            yield Path(unquote(url.path)).resolve()
