"""How Sphinx makes a site of docs/: ``make site`` builds it, ``make docs`` also serves it on this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.shell import BashSessionLexer

if TYPE_CHECKING:
    from docutils import nodes
    from docutils.nodes import Element
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import examples_of_calls  # noqa: E402  # beside this file
import step_through  # noqa: E402

import mpicoll  # noqa: E402
from mpicoll.analysis.drawing import page as player  # noqa: E402

project = "mpicoll"
version = release = mpicoll.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxarg.ext"]
exclude_patterns = ["_build"]

# -- Pages -----------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
"""Headings have the anchors that they have on GitHub, down to this level."""
highlight_language = "none"
"""Of blocks that name no language: they show what is printed."""
copybutton_prompt_text = "$ "
smartquotes = False
"""They would make a dash of the two hyphens of an option."""

# -- What docstrings say ---------------------------------------------------------------------------------------------

nitpicky = True
nitpick_ignore_regex = [("py:mod", r"mpicoll\..*")]  # modules that a program never imports itself
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {name: name for name in ("ArrayLike", "DTypeLike", "Out")}
"""Else a signature has all types that they stand for."""
python_use_unqualified_type_names = True

# -- Looks -----------------------------------------------------------------------------------------------------------

html_theme = "furo"
html_title = "mpicoll"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static", str(player.PLAYER)]
html_css_files = [player.STYLE, "site.css"]
html_copy_source = html_use_index = html_domain_indices = False
html_show_copyright = False
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}


class Console(BashSessionLexer):  # type: ignore[misc]  # of a library without annotations
    """Commands after ``$``, and what they print, which may begin with ``#``."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")


LINK = re.compile(r"\]\(([\w/-]+)\.(?:md|rst)\)")


def add_toctree(app: Sphinx, page: str, source: list[str]) -> None:
    """The links of a part's index page are its table of contents, and so are the home page's links to the parts."""
    if not page.endswith("index"):
        return
    linked = dict.fromkeys(LINK.findall(source[0]))
    below = [other for other in linked if other.endswith("/index") or (page != "index" and "/" not in other)]
    source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *below, "```", ""])


def add_example(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Under the description of a function stands its example."""
    example = examples_of_calls.example_of(name.removeprefix("mpicoll."))
    if example:
        lines += ["Example:", "", ".. code-block:: python", "", *(f"    {line}" for line in example.splitlines()), ""]


def name_folders(app: Sphinx, tree: nodes.document) -> None:
    """A link to a folder of the repository becomes the folder's name: there is no page of it. A linked file can be
    downloaded, which MyST sees to."""
    from docutils import nodes
    from sphinx.addnodes import pending_xref

    for link in list(tree.findall(pending_xref)):
        if link.get("reftype") != "myst" or link.get("refdomain"):
            continue
        folder = (DOCS / f"{link['refdoc']}.md").parent.joinpath(link["reftarget"]).resolve()
        if not folder.is_dir() or DOCS in folder.parents:
            continue
        name = f"{folder.relative_to(DOCS.parent)}/"
        shown = [nodes.literal(name, name)]
        if link.astext().rstrip("/") != name.rstrip("/"):
            shown = [*link.children, nodes.Text(" ("), *shown, nodes.Text(")")]
        link.replace_self(shown)


def add_player(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: nodes.document | None) -> None:
    """Only pages with a player need its scripts, and the steps of schedules."""
    if page in ("index", "reference/step_through"):
        for file in ("schedules.js", *player.SCRIPTS):
            app.add_js_file(file, loading_method="defer")


def write_schedules(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and app.builder.format == "html":
        (Path(app.outdir) / "_static/schedules.js").write_text(step_through.script())


def find_public(app: Sphinx, env: BuildEnvironment, link: Element, shown: nodes.TextElement) -> nodes.Node | None:
    """A docstring names a thing alone or by the module that defines it; the manual has it where a program finds it.
    A type in a signature that the manual does not have is no dead link: it may be another project's."""
    from sphinx.addnodes import desc_signature
    from sphinx.util.nodes import make_refnode

    if link.get("refdomain") != "py":
        return None
    name = link["reftarget"].rpartition(".")[2]
    known = [(whole, it) for whole, it in env.get_domain("py").data["objects"].items() if whole.endswith(f".{name}")]
    if len(known) == 1:
        ((whole, it),) = known
        return make_refnode(app.builder, link["refdoc"], it.docname, it.node_id, shown, whole)
    around = link.parent
    while around is not None and not isinstance(around, desc_signature):
        around = around.parent
    return None if around is None else shown


def skip_fields(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """A named tuple's fields have no docstrings of their own: Python says "Alias for field number 0"."""
    return True if type(member).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_lexer("console", Console)
    app.connect("autodoc-skip-member", skip_fields)
    app.connect("autodoc-process-docstring", add_example)
    app.connect("source-read", add_toctree)
    app.connect("doctree-read", name_folders)
    app.connect("missing-reference", find_public)
    app.connect("html-page-context", add_player)
    app.connect("build-finished", write_schedules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
