"""The code of a Markdown page, run as its reader would: block after block, in one namespace.

- ``pycon``: a session; each answer is compared (doctest, with ELLIPSIS and NORMALIZE_WHITESPACE), errors by class and message without notes.
- ``python``: a program. What it prints is what the comments of its prints say (``print(x)  # 3``; a print in a loop says the same each time), or
  the ``text`` block right below it, with ``...`` for what differs from run to run. There is no print that the page does not show.
- A block that imports a package which is not installed is left out, and so are later ones that need a name from it.
- A directive ``{code-block} python`` is for what others write; it has to be Python, and is not run.
"""

import ast
import contextlib
import dataclasses
import doctest
import importlib.util
import io
import itertools
import re
import textwrap
import traceback
from unittest import mock

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)(?P=ticks) *$", re.DOTALL | re.MULTILINE)
COMMENTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, code, the line at which its code begins, and what comes between it and the block before."""

    language: str
    code: str
    line: int
    before: str


def blocks(text):
    """Return the fenced blocks of a page, those inside directives too."""
    found, end = [], 0
    for match in FENCE.finditer(text):
        info, code, line = match["info"].strip(), textwrap.dedent(match["code"]), text.count("\n", 0, match.start("code")) + 1
        directive = re.fullmatch(r"\{([\w:-]+)\} *(.*)", info)
        if directive is None:
            found.append(Block(info.split(" ")[0], code, line, text[end : match.start()]))
        elif directive[1] in ("code-block", "code"):
            options = re.match(r"(?::[\w-]+:.*\n)*", code)
            found.append(Block(f"{{{directive[1]}}} {directive[2]}", code[options.end() :], line, text[end : match.start()]))
        else:
            found += [dataclasses.replace(b, line=b.line + line) for b in blocks(code)]
        end = match.end()
    return found


def prose(text):
    """Return a page without its code, which may hold what looks like a link."""
    return re.sub(r"(`+)(?!`)(?:(?!\1).)+?\1", "", FENCE.sub("", text))


def imported(tree):
    """Return the names of the packages that a program imports, wherever."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    return found


def missing(tree):
    """Return the packages that a program needs and that are not installed; what a bridge needs is the bridge's."""
    needed = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            needed |= {part for alias in node.names for part in alias.name.split(".")[1:2] if alias.name.startswith("interop.")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "interop":
            needed |= {node.module.split(".")[1]} if "." in node.module else {alias.name for alias in node.names}
    bridged = {
        "linen": "flax",
        "nnx": "flax",
        "orbax": "orbax",
        "torch": "torch",
        "equinox": "equinox",
        "optax": "optax",
        "einops": "einops",
    }
    known = {bridged.get(name, name) for name in needed if name in bridged or name in imported(tree)}
    return {name for name in known if importlib.util.find_spec(name) is None}


class Page:
    """A page whose blocks run in one namespace; ``source`` is where its lines are, for tracebacks."""

    def __init__(self, text, source):
        self.blocks, self.source = blocks(text), source
        self.namespace = {"__name__": "__main__"}
        self.lost = set()  # names that blocks left out would have given
        self.ran = self.left_out = 0

    def run(self):
        """Run every block of Python, and compare what it prints with what the page says."""
        for block, following in itertools.zip_longest(self.blocks, self.blocks[1:]):
            if block.language == "pycon":
                tree = ast.parse("".join(e.source for e in doctest.DocTestParser().get_examples(block.code)))
            elif block.language in ("python", "{code-block} python", "{code} python"):
                tree = ast.parse(block.code)
            else:
                continue
            if block.language.startswith("{"):
                continue
            if missing(tree) or self.lost & (read(tree) - bound(tree)):
                self.leave_out(tree)
                continue
            if block.language == "pycon":
                self.session(block)
            else:
                shown = following is not None and following.language == "text" and not following.before.strip()
                self.program(block, following.code if shown else None)
            self.lost -= bound(tree)
            self.ran += 1

    def leave_out(self, tree):
        """Do no more of a program than to import what is installed."""
        for statement in ast.walk(tree):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                alone = ast.Module([statement], [])
                if missing(alone):
                    self.lost |= bound(alone)
                else:
                    exec(compile(alone, str(self.source), "exec"), self.namespace)  # noqa: S102 - our own text
        self.lost |= bound(tree) - {
            name for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) for name in bound(node)
        }
        self.left_out += 1

    def session(self, block):
        """Run a session, and compare each answer."""
        test = doctest.DocTestParser().get_doctest(block.code, {}, f"{self.source}:{block.line}", self.source, block.line - 1)
        test.globs = self.namespace
        report = io.StringIO()
        with mock.patch.object(doctest.traceback, "format_exception_only", message):
            failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.write, clear_globs=False)
        assert failed == 0, report.getvalue()

    def program(self, block, shown):
        """Run a program, and compare what it prints with ``shown``, or with its comments where that is None."""
        where = f"{self.source}:{block.line}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = compile("\n" * (block.line - 1) + block.code, str(self.source), "exec")
            exec(code, self.namespace)  # noqa: S102 - our own text
        if shown is None:
            said = COMMENTED.findall(block.code)
            assert len(said) == block.code.count("print("), f"{where}: a print without a comment that says what it prints"
            assert list(dict.fromkeys(printed.getvalue().splitlines())) == said, f"{where}: it prints {printed.getvalue()!r}"
        elif not doctest.OutputChecker().check_output(shown, printed.getvalue(), FLAGS):
            msg = f"{where}: the page shows\n{shown}\nbut it prints\n{printed.getvalue()}"
            raise AssertionError(msg)


def message(kind, error):
    """Return what a traceback says of an exception, without its notes: some are JAX's, and pages do not show them."""
    told = traceback.TracebackException(kind, error, None)
    told.__notes__ = None
    return list(told.format_exception_only())


def read(tree):
    """Return the names that a program reads."""
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def bound(tree):
    """Return the names that a program gives values to."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found
