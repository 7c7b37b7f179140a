"""Modules import downwards only, and JAX only by public names."""

import ast
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
    "tape.steps.jitted",
    "tape.transforms",
    "tape.variables.variable",
    "tape.sweeps.differentiation",
    "tape.sweeps.streaming",
    "tape.sweeps.sweep",
    "tape.sweeps.pieces",
    "tape.sweeps.emission",
    "tape.programs.program",
    "tape.programs.staging",
]
WAY += ["tape.recording.record", "tape.recording.trie", "tape.ops.pullback", "tape.ops.linear"]
WAY += ["tape.rules.registry", "tape.graph.walks", "tape.graph.wengert", "tape.jaxapi"]


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(p) for p in SOURCES}


def imports(path):
    """Modules of this project that a module imports when it is loaded."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in NAMES else node.module for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return {m for m in found if m in NAMES and m != name_of(path)}


GRAPH = {name_of(p): imports(p) for p in SOURCES}


def reachable(module):
    seen, stack = set(), [module]
    while stack:
        for m in GRAPH[stack.pop()] - seen:
            seen.add(m)
            stack.append(m)
    return seen


def test_no_module_imports_itself_by_way_of_others():
    graphlib.TopologicalSorter(GRAPH).prepare()


def package_of(module):
    """The package, or the module of ``tape`` itself; rules of control flow sweep what they hold, so families are above what sweeps a jaxpr."""
    return "tape.rules.families" if module.startswith("tape.rules.families") else ".".join(module.split(".")[:2])


def test_packages_import_downwards_only():
    packages = {package_of(m): set() for m in GRAPH if "." in m}
    for m, found in GRAPH.items():
        if "." in m:
            packages[package_of(m)] |= {package_of(f) for f in found if "." in f} - {package_of(m)}
    graphlib.TopologicalSorter(packages).prepare()


def test_what_stands_in_tape_itself_is_what_all_packages_use():
    modules = {m.removeprefix("tape.") for m in NAMES if m.count(".") == 1 and (ROOT / (m.replace(".", "/") + ".py")).exists()}
    expected = {"__main__", "configuration", "errors", "jaxapi", "locks", "modes", "statistics"}
    assert {m for m in modules if not m.startswith("interop")} == expected


@pytest.mark.parametrize(("above", "below"), [(a, b) for i, a in enumerate(WAY) for b in WAY[i + 1 :]])
def test_the_way_of_the_data_leads_down(above, below):
    assert above not in reachable(below)


def test_tape_does_not_import_interop():
    assert not [m for m, found in GRAPH.items() if m.startswith("tape") and any(f.startswith("interop") for f in found)]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_jax_is_used_by_public_names(path):
    text = path.read_text()
    assert "jax._src" not in text
    if path.name != "jaxapi.py":
        assert "jax.extend" not in "\n".join(line for line in text.splitlines() if line.lstrip().startswith(("import ", "from ")))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_modules_stay_small(path):
    assert len(path.read_text().splitlines()) <= 400
