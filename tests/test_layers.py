"""Modules import downwards only, wherever the import stands, and JAX only by public names."""

import ast
import functools
import graphlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("tape/**/*.py"), *ROOT.glob("interop/**/*.py")])

# From the top to the bottom: what a user calls, what sweeps, what runs, what records, what differentiates one op.
WAY = [
    "tape.command",
    "tape.testing",
    "tape",
    "tape.insight.explaining",
    "tape.insight.listing",
    "tape.jitting.jitted",
    "tape.transforms",
    "tape.variables.variable",
    "tape.sweeps.differentiation",
    "tape.sweeps.streaming",
    "tape.sweeps.sweep",
    "tape.sweeps.emission",
    "tape.recording.record",
    "tape.recording.staging",
    "tape.recording.entering",
    "tape.programs.program",
    "tape.programs.traced",
]
WAY += ["tape.ops.kernel", "tape.ops.pullback", "tape.rules.table", "tape.rules.families", "tape.rules.registry"]
WAY += ["tape.graph.segment", "tape.graph.trie", "tape.graph.kinds", "tape.graph.wengert", "tape.jaxapi"]

# What follows are the doors that lead up, each with its reason: the lists are to become shorter.  An entry that is not needed fails.

# Imports inside functions that would close a circle of modules.
DOORS: dict = {}
# Packages that import each other's modules, though no module imports itself by way of others.
PACKAGE_DOORS: dict = {
    ("tape.ops", "tape.namespaces"): "the package has the name of jax.ops too, whose functions it gives when they are asked for",
    ("tape.rules", "tape.namespaces"): "with the coverage of JAX's primitives, that of its functions is asked for",
}
# Imports for annotations that close a circle of modules.
TYPES = {
    ("tape.graph.watcher", "tape.graph.segment"): "a watcher is told of segments, in which its scope lies",
    ("tape.sweeps.written", "tape.sweeps.sweep"): "what is remembered is what a sweep did",
    ("tape.graph.scope", "tape.graph.segment"): "beside a thread's scope stands its pending segment",
    ("tape.testing.picture", "tape.testing.report"): "a report draws itself",
    ("tape", "tape.testing"): "what is loaded at its first use is named for editors and type checkers",
}
# Functions by which a module above puts its own functions or classes into one below: imports that no list of imports shows.
SOCKETS = {
    ("tape.graph.constants", "connect"): "what the recorder makes are Variables, which are made of what is recorded",
    ("tape.recording.plain", "connect"): "as above",
}


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(p) for p in SOURCES}


class Imports(ast.NodeVisitor):
    """Modules of this project that a module imports: when it is loaded, when its functions are called, and for its annotations."""

    def __init__(self, module, source, *, package=False, names=NAMES):
        self.module, self.names, self.kind = module, names, "load"
        self.base = module.split(".") if package else module.split(".")[:-1]
        self.found = {"load": set(), "call": set(), "types": set()}
        self.visit(ast.parse(source))

    def add(self, target):
        if target in self.names and target != self.module:
            self.found[self.kind].add(target)

    def within(self, kind, nodes):
        outer, self.kind = self.kind, kind
        for node in nodes:
            self.visit(node)
        self.kind = outer

    def visit_Import(self, node):
        for alias in node.names:
            self.add(alias.name)

    def visit_ImportFrom(self, node):
        base = [] if not node.level else self.base[: len(self.base) - node.level + 1]
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            self.add(f"{source}.{alias.name}" if f"{source}.{alias.name}" in self.names else source)

    def visit_Call(self, node):
        """``importlib.import_module("tape.rules.families")``; a name that is computed is one of a list of public modules."""
        if ast.unparse(node.func).endswith(("import_module", "__import__")) and node.args and isinstance(node.args[0], ast.Constant):
            self.add(node.args[0].value)
        self.generic_visit(node)

    def visit_If(self, node):
        if "TYPE_CHECKING" in ast.unparse(node.test):
            self.within("types", node.body)
            self.within(self.kind, node.orelse)
        else:
            self.generic_visit(node)

    def _visit_function(self, node):
        self.within("load", [*getattr(node, "decorator_list", []), node.args] if self.kind == "load" else [])
        body = node.body if isinstance(node.body, list) else [node.body]
        self.within("call" if self.kind == "load" else self.kind, body)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function  # noqa: N815


@functools.cache  # at the first test, not wherever this file is collected
def imports():
    return {name_of(p): Imports(name_of(p), p.read_text(), package=p.name == "__init__.py").found for p in SOURCES}


def loaded():
    return {m: found["load"] for m, found in imports().items()}


@functools.cache
def called():
    return {m: found["load"] | found["call"] for m, found in imports().items()}


def typed():
    return {m: found["load"] | found["types"] for m, found in imports().items()}


def packages_of(graph):
    """The graph of packages; a module of ``tape`` itself counts as one."""
    packages = {}
    for m, found in graph.items():
        if "." in m:
            package = ".".join(m.split(".")[:2])
            packages.setdefault(package, set()).update({".".join(f.split(".")[:2]) for f in found if "." in f} - {package})
    return packages


def without(graph, edges):
    return {m: {f for f in found if (m, f) not in edges} for m, found in graph.items()}


def reachable(module, graph):
    seen, stack = set(), [module]
    while stack:
        for m in graph.get(stack.pop(), set()) - seen:
            seen.add(m)
            stack.append(m)
    return seen


def circle(graph):
    """A circle of a graph, or None."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def idle(graph, doors):
    """The doors that close no circle: nothing is imported there any more, or the way back is gone."""
    rest = without(graph, doors)
    return [(a, b) for a, b in doors if b not in graph.get(a, ()) or a not in reachable(b, rest)]


def sockets(source):
    """Functions of a module that set two or more of its globals, or one that holds code, to what they are given."""
    for function in [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]:
        named = {name for n in ast.walk(function) if isinstance(n, ast.Global) for name in n.names}
        given = {a.arg: ast.unparse(a.annotation or a) for a in [*function.args.args, *function.args.kwonlyargs]}
        for node in [n for n in ast.walk(function) if isinstance(n, ast.Assign)]:
            if isinstance(node.value, ast.Name) and any(isinstance(t, ast.Name) and t.id in named for t in node.targets):
                code = given.get(node.value.id, "")
                if "Callable" in code or code.startswith(("type[", "Any")):
                    yield function.name
                    break


def test_no_module_imports_itself_by_way_of_others():
    assert circle(loaded()) is None


def package_of(module):
    """The package, or the module of ``tape`` itself; rules of control flow sweep what they hold, so families are above what sweeps a jaxpr."""
    return "tape.rules.families" if module.startswith("tape.rules.families") else ".".join(module.split(".")[:2])


def test_no_module_comes_back_to_itself_by_imports_inside_functions():
    assert circle(without(called(), DOORS)) is None


def test_packages_import_downwards_only():
    assert circle(without(packages_of(called()), PACKAGE_DOORS)) is None


def test_annotations_close_no_circle_of_modules():
    assert circle(without(typed(), TYPES)) is None


def test_no_module_is_filled_by_one_above():
    assert {(name_of(p), function) for p in SOURCES for function in sockets(p.read_text())} == set(SOCKETS)


@pytest.mark.parametrize(
    ("graph", "doors"),
    [(called, DOORS), (lambda: packages_of(called()), PACKAGE_DOORS), (typed, TYPES)],
    ids=["modules", "packages", "types"],
)
def test_a_door_that_closes_no_circle_is_off_the_list(graph, doors):
    assert not idle(graph(), doors), "the house got better: take these off the list"


HIDDEN = {
    "a function": "def f():\n    from tape.b import x",
    "a method": "class C:\n    def f(self):\n        import tape.b",
    "a lambda": "f = lambda: __import__('tape.b')",
    "a string": "import importlib\ndef f():\n    importlib.import_module('tape.b')",
    "one level up": "def f():\n    from . import b",
    "a condition": "def f():\n    if f:\n        try:\n            from .b import x\n        finally:\n            pass",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_an_import_inside_a_function_is_seen(where):
    found = Imports("tape.a", HIDDEN[where], names={"tape.a", "tape.b"}).found
    assert found == {"load": set(), "call": {"tape.b"}, "types": set()}
    assert circle({"tape.a": found["call"], "tape.b": {"tape.a"}})


def test_kinds_of_imports_are_told_apart():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tape.b import X\nelse:\n    import tape.c\n"
    assert Imports("tape.a", source, names={"tape.b", "tape.c"}).found == {"load": {"tape.c"}, "call": set(), "types": {"tape.b"}}
    names = {"tape.a", "tape.a.b"}
    assert Imports("tape.a", "from .b import x", package=True, names=names).found["load"] == {"tape.a.b"}


def test_a_socket_is_seen_and_a_counter_is_none():
    source = "def connect(run: Callable[[], None]):\n    global _run\n    _run = run\ndef count(n: int):\n    global _n\n    _n = n\n"
    assert list(sockets(source)) == ["connect"]


def test_what_stands_in_tape_itself_is_what_all_packages_use():
    modules = {m.removeprefix("tape.") for m in NAMES if m.count(".") == 1 and (ROOT / (m.replace(".", "/") + ".py")).exists()}
    expected = {"__main__", "bounded", "configuration", "errors", "jaxapi", "layout", "locks", "modes", "statistics"}
    assert {m for m in modules if not m.startswith("interop")} == expected


@pytest.mark.parametrize(("above", "below"), [(a, b) for i, a in enumerate(WAY) for b in WAY[i + 1 :]])
def test_the_way_of_the_data_leads_down(above, below):
    assert above not in reachable(below, without(called(), DOORS))


def test_tape_does_not_import_interop():
    assert not [m for m, found in called().items() if m.startswith("tape") and any(f.startswith("interop") for f in found)]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_jax_is_used_by_public_names(path):
    text = path.read_text()
    assert "jax._src" not in text
    if path.name != "jaxapi.py":
        assert "jax.extend" not in "\n".join(line for line in text.splitlines() if line.lstrip().startswith(("import ", "from ")))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_stay_small(path):
    assert len(path.read_text().splitlines()) <= 400
