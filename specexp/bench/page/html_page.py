"""The page as one file that opens from a disk and fetches nothing: jinja2 templates and the library of the charts."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specexp.artifacts.atomic_write import atomic_write
from specexp.core.kernels import cache_folder


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("specexp.bench.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> Markup:
    """Return the HTML of a template of this folder; texts among the values are escaped."""
    return Markup(_templates().get_template(template).render(values))


def bundle() -> Markup:
    """Return JavaScript that defines ``window.vegaEmbed``: Vega, Vega-Lite and its embedding, from vl-convert-python.

    Making it takes some seconds, so it is kept in the cache folder.
    """
    file = cache_folder("pages") / f"vega-{version('vl-convert-python')}.js"
    if not file.exists():
        import vl_convert

        made = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, made)
    return Markup(file.read_text(encoding="utf-8"))


def panel(fragment: str) -> str:
    """Return a page of one section, without charts, for a panel of W&B."""
    return render("page.html.j2", title="specexp", fragments=[Markup(fragment)])
