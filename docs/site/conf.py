"""Settings of Sphinx for khop's site. `make docs` stages the pages and runs it: scripts/build_docs.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docutils import nodes
from sphinx.util.inspect import TypeAliasForwardRef

import khop

ROOT = Path(__file__).parents[2]


def type_aliases(package: Path) -> set[str]:
    """Return the type aliases of a package; signatures show their names instead of their definitions."""
    return {
        target.id
        for file in package.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp | ast.Subscript)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper()
    }


project = "khop"
author = "the khop maintainers"
version = release = khop.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = False

html_theme = "furo"
html_title = f"khop {release}"
html_static_path = ["static"]
html_css_files = ["khop.css"]
html_copy_source = False
html_show_search_summary = False  # it fetches pages, which a browser refuses for files
html_show_sphinx = False
html_domain_indices = False  # a list of modules that no page links
html_theme_options = {"navigation_with_keys": True}
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_heading_anchors = 4  # as on a page of a repository: every heading can be linked
suppress_warnings = ["misc.highlighting_failure"]  # output of a terminal beside its commands is no Python

napoleon_numpy_docstring = False
autodoc_typehints_format = "short"
TypeAliasForwardRef.__repr__ = lambda alias: alias.name  # within other types, as Sequence[Fanout]
autodoc_type_aliases = {name: name for name in type_aliases(ROOT / "src" / "khop")}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # `1 << 30`, as the source writes it
python_maximum_signature_line_length = 88
default_role = "code"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

_CODE = re.compile(r"(`[^`]+`)")
_BULLET = re.compile(r" *\* ")


def as_markup(_app, _kind, _name, _object, _options, lines: list[str]) -> None:  # noqa: ANN001
    """Protect the plain text of a docstring from being read as markup, except `code` and examples."""
    in_example = False
    for number, line in enumerate(lines):
        if line and not line.startswith(" "):
            in_example = line in ("Example:", "Examples:")
        if in_example:
            continue
        bullet = _BULLET.match(line)
        start = bullet.end() if bullet else 0
        parts = _CODE.split(line[start:])
        lines[number] = line[:start] + "".join(
            part if part.startswith("`") else re.sub(r"([*|\\]|\w_\b)", _escaped, part) for part in parts
        )


def _escaped(match: re.Match[str]) -> str:
    text = match[0]
    return f"{text[0]}\\_" if text.endswith("_") and len(text) == 2 else f"\\{text}"


def without_dashes(_app, doctree: nodes.document) -> None:  # noqa: ANN001
    """Remove the dash between a parameter and its description: khop.css shows them as the cells of a row."""
    for fields in doctree.findall(nodes.field_list):
        for paragraph in fields.findall(nodes.paragraph):
            dash = paragraph[1] if len(paragraph) > 1 else None
            if isinstance(dash, nodes.Text) and dash.strip() in ("--", "–"):
                paragraph.remove(dash)


def as_sentence(_app, kind, _name, _object, _options, lines: list[str]) -> None:  # noqa: ANN001
    """Join the first sentence of a property, which napoleon splits at a colon into type and text."""
    types = [number for number, line in enumerate(lines) if line.startswith(":type: ")]
    if kind in ("attribute", "property") and types:
        lines[0] = f"{lines.pop(types[0]).removeprefix(':type: ')}: {lines[0]}"


def setup(app) -> None:  # noqa: ANN001
    """Connect the conversion of docstrings."""
    app.connect("autodoc-process-docstring", as_markup, priority=100)  # before napoleon reads the sections
    app.connect("doctree-read", without_dashes)
    app.connect("autodoc-process-docstring", as_sentence, priority=900)  # after it
