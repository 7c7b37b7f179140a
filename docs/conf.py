"""How Sphinx builds the site: ``sphinx-build -W -b html docs docs/_build/html``, with the extra ``docs``."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import inspect

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import api  # noqa: E402 - beside this file
import namespaces  # noqa: E402 - beside this file

import tape  # noqa: E402 - the tree that this file is in
from tape.command import pages  # noqa: E402
from tape.variables.methods import ArrayMethods  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from sphinx.application import Sphinx

project = "jax-tape"
author = "The jax-tape authors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = tape.__version__
html_title = f"jax-tape {version}"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:mod", r"interop\.autograd\..*"),  # NumPy's and SciPy's names
    ("py:(meth|func)", r"reset|explain|parameters"),  # said beside their class, where a first sentence stands in a table
    ("py:(class|obj|exc)", r"(jax|jaxlib|numpy|optax|flax|equinox|torch|scipy|hypothesis|collections|typing|pathlib|array_api_compat)\..*"),
    ("py:class", r"(np|jaxapi|os|einops|tape\.[a-z_]+|interop|interop\.[a-z_]+)\.[\w.]+"),  # what only annotations name
    ("py:(class|exc)", r"\w+(\[.*)?"),  # builtins, and what annotations call by a short name
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_mock_imports = api.MOCKED
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 100
add_module_names = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Whole runs of the examples take twenty minutes, so what each drew and printed is kept (``gallery.py``) and put on its page (``_whole``).
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "generated/examples",
    "backreferences_dir": "generated/backreferences",  # pages of the reference show the examples that use a name
    "doc_module": ("tape", "interop"),
    "ignore_pattern": r"experiment\.py",  # what they import
    "copyfile_regex": r"index\.rst",
    "download_all_examples": False,
    "plot_gallery": False,
    "write_computation_times": False,
    "show_signature": False,
    "first_notebook_cell": """# experiment.py has to be beside this notebook, and jax-tape to be installed with its extra "examples".
import sys

sys.argv[1:] = []  # options: "--quick" runs a few steps, "--help" shows the others""",
    "last_notebook_cell": """# The picture that was drawn
from pathlib import Path

from IPython.display import Image

Image(max(Path().glob("*.png"), key=lambda path: path.stat().st_mtime))""",
}

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5cad", "color-brand-content": "#0b5cad"},
    "dark_css_variables": {"color-brand-primary": "#7ab8ff", "color-brand-content": "#7ab8ff"},
}
linkcheck_anchors = False  # pages that draw themselves have none that can be found

# Pages of the repository that have a place of their own in the site, so that their links work there and on GitHub.
MOVED = [
    (re.compile(r"\]\((?:\.\./)+examples/(\w+)\.(?:py|rst)\)"), r"](/generated/examples/\1.rst)"),
    (re.compile(r"\]\((?:\.\./)+tape/command/errors/(\w+)\.md\)"), r"](/generated/errors/\1.md)"),
    (re.compile(r"\]\((?:\.\./)+docs/(\w+\.md)"), r"](/\1"),
    (re.compile(r"\]\((?:\.\./)*CONTRIBUTING\.md((?:#[\w-]+)?)\)"), r"](/contributing.md\1)"),
    (re.compile(r"\]\((?:\.\./)*CHANGELOG\.md((?:#[\w-]+)?)\)"), r"](/changelog.md\1)"),
    (re.compile(r"\]\((?:\.\./)*README\.md(?:#[\w-]+)?\)"), r"](/index.md)"),
]


INCLUDED = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
BESIDE = re.compile(r"\]\((?![a-z]+:|[#/])(?!docs/)")  # a link from the root of the repository to what is not documentation


def _move(_app: Sphinx, name: str, content: list[str]) -> None:
    if name in INCLUDED:  # as the include directive, but with links from where the file is
        text = (DOCS.parent / INCLUDED[name]).read_text(encoding="utf-8")
        content[0] = BESIDE.sub("](../", text).replace("](docs/", "](/")
    for pattern, to in MOVED:
        content[0] = pattern.sub(to, content[0])
    if name == "index" and not (DOCS / "gradbench.md").exists():  # it is written by a run of its own
        content[0] = content[0].replace("\ngradbench\n", "\n")


def _describe(_app: Sphinx, name: str, content: list[str]) -> None:
    """Put what an error class says of itself on its page."""
    folder, _, title = name.rpartition("/")
    if folder == "generated/errors":
        heading, _, rest = content[0].partition("\n")
        content[0] = f"{heading}\n\n```{{eval-rst}}\n.. autoexception:: tape.errors.{title}\n   :show-inheritance:\n```\n{rest}"


SOURCE, DOWNLOADS = ".. GENERATED FROM PYTHON SOURCE LINES", ".. _sphx_glr_download_"
WHOLE = """.. image:: /pictures/{0}.png
   :alt: What {0}.py draws

It prints, when it runs whole (times are those of two shared cores):

.. literalinclude:: /pictures/{0}.txt
   :language: text

"""
IMPORTED = "It imports :download:`experiment.py </../examples/experiment.py>`, which goes beside it.\n\n"


def _whole(_app: Sphinx, name: str, content: list[str]) -> None:
    """Put what a whole run of an example drew and printed before its source, and what it imports after it."""
    folder, _, example = name.rpartition("/")
    if folder == "generated/examples" and example != "index":
        for mark, put in (SOURCE, WHOLE.format(example)), (DOWNLOADS, IMPORTED):
            at = content[0].index(mark)  # or the build ends, if sphinx-gallery no longer writes it
            content[0] = content[0][:at] + put + content[0][at:]


def _replace(_app: Sphinx, what: str, name: str, _thing: Any, _options: object, lines: list[str]) -> None:
    """Say of a value what its class does not, and keep Napoleon from reading a colon in the first line as the end of a type."""
    if what in ("attribute", "property") and lines:
        lines.insert(0, "\\ ")  # which shows nothing
    lines[:] = [part for line in lines for part in ([line, "    \\ "] if line in ("Returns:", "Yields:") else [line])]
    if name == "tape.Variable":
        shared = ", ".join(f"``{n}``" for n in sorted(vars(ArrayMethods)) if not n.startswith("_"))
        lines += ["", f"**As arrays of JAX** it has all operators, indexing, ``at``, and, recorded: {shared}.", ""]
    if name == "tape.checkpoint_policies":
        lines[:] = ["JAX's policies (``jax.checkpoint_policies``), which say what a checkpoint keeps."]


def _sign(_app: Sphinx, what: str, _name: str, thing: Any, _options: object, signature: str | None, returned: str | None) -> Any:
    """Show what a class's ``__init__`` takes, where a ``__new__`` that takes anything stands before it."""
    if what == "class" and (signature or "").startswith("(*args: "):
        taken = inspect.signature(thing.__init__, bound_method=True)
        return inspect.stringify_signature(taken, show_return_annotation=False, unqualified_typehints=True), returned
    return signature, returned


def _public(_app: Sphinx, _name: str, _thing: Any, _options: object, bases: list[Any]) -> None:
    """Name the bases of a class that readers can look up."""
    bases[:] = [base for base in bases if isinstance(base, type) and issubclass(base, (BaseException, tape.OpHook))]


def _one_signature(analyzer: ModuleAnalyzer, analyze: Callable[[ModuleAnalyzer], None] = ModuleAnalyzer.analyze) -> None:
    """Have Sphinx read a module; overloads are for type checkers, and the function's own signature has its options by name."""
    analyze(analyzer)
    analyzer.overloads = {}


def _baseless(_app: Sphinx, doctree: nodes.document) -> None:
    """Say nothing of bases where no base is named."""
    for paragraph in list(doctree.findall(nodes.paragraph)):
        if paragraph.astext().strip() == "Bases:":
            paragraph.parent.remove(paragraph)


def _spelling(_app: Sphinx, doctree: nodes.document) -> None:
    """Have tables of two libraries side by side wrap (``site.css``)."""
    for table in doctree.findall(nodes.table):
        if [cell.astext() for cell in table.findall(nodes.entry)][1:3] == ["jax-tape", "gives"]:
            table["classes"].append("spelling")


def setup(app: Sphinx) -> None:
    """Write the pages that are made anew at each build."""
    api.write(DOCS / "generated" / "reference")
    namespaces.write(DOCS / "generated" / "namespaces.md")
    for folder in ("errors", "examples"):
        shutil.rmtree(DOCS / "generated" / folder, ignore_errors=True)
    drawn = DOCS / "generated" / "examples" / "images"
    drawn.mkdir(parents=True)
    for picture in (DOCS / "pictures").glob("*.png"):  # named so, thumbnails are made of them
        shutil.copy(picture, drawn / f"sphx_glr_{picture.stem}_001.png")
    shutil.copytree(pages.FOLDER, DOCS / "generated" / "errors")
    app.connect("source-read", _move)
    app.connect("source-read", _describe)
    app.connect("source-read", _whole)
    ModuleAnalyzer.analyze = _one_signature  # type: ignore[method-assign]
    app.connect("doctree-read", _spelling)
    app.connect("doctree-read", _baseless)
    app.connect("autodoc-process-bases", _public)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-process-docstring", _replace, priority=400)  # before Napoleon
