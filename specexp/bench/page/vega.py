"""Vega-Lite in one script, made once a machine."""

from __future__ import annotations

from importlib.metadata import version

from specexp.artifacts.atomic_write import atomic_write
from specexp.core.folders import cache_folder


def bundle() -> str:
    """JavaScript that defines ``window.vegaEmbed``: Vega, Vega-Lite and its embedding, from vl-convert-python.

    It takes some seconds to make, and is kept in the cache folder.
    """
    file = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    if file.exists():
        return file.read_text(encoding="utf-8")
    import vl_convert

    made: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, made)
    return made
