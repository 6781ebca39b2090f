"""The site that `./run docs` builds: these pages, README.md and the results, a page of the API and one of the commands.

Sphinx with Furo and MyST: pages stay Markdown that GitHub shows too, search works without a server, and the API comes
from the docstrings. (Material for MkDocs gets no more features since November 2025.)
"""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

from lanterne import __version__
from lanterne.bench.cli import LANTERNE

ROOT = Path(__file__).resolve().parent.parent

project = "lanterne"
author = "the lanterne team"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "README"
include_patterns = [
    *("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("docs/**", "evaluation/README.md", "evaluation/results/*.md", "tests/host_cuda/README.md"),
]
# Links to headings, as GitHub makes them.
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"lanterne {version}"
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "native"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
default_role = "code"
napoleon_use_ivar = True
napoleon_custom_sections = [
    *("Cost", "Paper"),
    ("Options of collectives", "params_style"),
    ("Raises, in every call", "raises"),
]

NAPOLEON = Config(napoleon_use_ivar=True, napoleon_custom_sections=napoleon_custom_sections)

# What the pages are for, in the order in which one reads them: the title of a group, and its pages.
TOC = {
    "Use it": [
        *("docs/all-reduce", "docs/any-arrivals", "docs/torch", "docs/topology", "docs/pipelines", "docs/going-on"),
    ],
    "Find who is slow": ["docs/finding-slow", "docs/operators"],
    "Run it": ["docs/launching", "docs/launch/*", "docs/gpu", "docs/environment", "SECURITY"],
    "Reference": ["docs/api", "docs/commands", "docs/glossary", "docs/limits", "docs/comparison"],
    "Measured": ["docs/figures", "docs/lab", "evaluation/README", "evaluation/results/*"],
    "Change it": [
        *("docs/architecture", "docs/simulation", "CONTRIBUTING", "CHANGELOG", "CODE_OF_CONDUCT"),
        "tests/host_cuda/README",
    ],
}


class Commands(SphinxDirective):
    """`{commands}`: every command, with the text of its `--help`."""

    def run(self) -> list[nodes.Node]:
        return list(self._sections())

    def _sections(self) -> Iterator[nodes.Node]:
        for name in LANTERNE.commands:
            section = nodes.section(ids=[nodes.make_id(name)], names=[name])
            section += nodes.title(text=f"lanterne {name}")
            section += nodes.literal_block(text=help_of(name), language="text")
            yield section


class Read(SphinxDirective):
    """`.. read:: PACKAGE`: the public names of a package by its source alone, where what it imports is not here."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        described = (rst_of(name, found) for name, found in public(self.arguments[0]))
        return [node for text in described for node in self.parse_text_to_nodes(text)]


def public(package: str) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Yield the full names in `__all__` of a package, and the definitions that its `__init__` imports."""
    tree = ast.parse(ROOT.joinpath(*package.split("."), "__init__.py").read_text())
    (listed,) = (ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign))
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith(package):
            body = ast.parse(ROOT.joinpath(*each.module.split(".")).with_suffix(".py").read_text()).body
            for node in body:
                wanted = {alias.name for alias in each.names}.intersection(listed)
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in wanted:
                    yield f"{package}.{node.name}", node


def rst_of(name: str, found: ast.FunctionDef | ast.ClassDef) -> str:
    """Return a function, or a class with its public methods and properties, as reStructuredText."""
    is_class = isinstance(found, ast.ClassDef)
    made = found
    if is_class:
        made = next((each for each in found.body if getattr(each, "name", "") == "__init__"), None)
    arguments = ast.unparse(made.args).removeprefix("self, ").removeprefix("self") if made else ""
    members = [each for each in found.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    blocks = [_rst_of_docstring(found)]
    for each in members if is_class else ():
        is_property = any(getattr(mark, "id", "") == "property" for mark in each.decorator_list)
        signature = "" if is_property else f"({ast.unparse(each.args).removeprefix('self, ').removeprefix('self')})"
        kind = "property" if is_property else "method"
        blocks.append(f".. py:{kind}:: {each.name}{signature}\n\n" + indent(_rst_of_docstring(each), "   "))
    kind = "class" if is_class else "function"
    return f".. py:{kind}:: {name}({arguments})\n\n" + indent("\n\n".join(blocks), "   ")


def _rst_of_docstring(found: ast.FunctionDef | ast.ClassDef) -> str:
    # An indented paragraph that belongs to no section is code.
    text = re.sub(r"(?m)(^\S.*[^:\n]\n)\n(?=  +\S)", r"\1\n::\n\n", ast.get_docstring(found) or "")
    return str(GoogleDocstring(text, NAPOLEON))


def help_of(name: str) -> str:
    """Return what `lanterne NAME --help` prints."""
    parser = LANTERNE.build_parser(name)
    parser.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100)
    return parser.format_help()


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links to folders into text, and give the first page the tree of all others: GitHub needs neither."""
    here = (ROOT / docname).parent

    def without_folder(match: re.Match[str]) -> str:
        return match[1] if (here / match[2]).is_dir() else match[0]

    source[0] = re.sub(r"\[([^\]]*)\]\(([\w./-]+)\)", without_folder, source[0])
    if docname == app.config.root_doc:
        for title, pages in TOC.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {title}\n\n{listed}\n```\n"


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Let the folder of the site open on its first page."""
    if error is None:
        first = Path(app.outdir, f"{app.config.root_doc}.html")
        first.with_name("index.html").write_text(first.read_text())


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    app.add_directive("read", Read)
    app.connect("source-read", prepare)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True}
