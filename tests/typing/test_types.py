"""The public API is typed: type checkers agree with ``api.py`` and find ``mistakes.py``, and what they are told is so at run time."""

import ast
import collections.abc
import importlib.util
import inspect
import json
import pathlib
import re
import shutil
import subprocess
import sys
import types
import typing

import jax
import pytest

import interop
import tape
from tape.variables import methods, operators
from tape.variables.updates import AtIndex
from tests.typing import stubs

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
MISTAKES = {i for i, line in enumerate((HERE / "mistakes.py").read_text(encoding="utf-8").splitlines(), 1) if "# error: " in line}


def is_of(value, kind):
    """Tell whether a value is of a type, as far as can be seen without using it up."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return True
    if origin in {typing.Union, types.UnionType}:
        return any(is_of(value, arg) for arg in args)
    if origin is None or origin.__module__ == "numpy":
        return isinstance(value, origin or kind)
    if origin is tuple and isinstance(value, tuple):
        expected = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return len(value) == len(expected) and all(map(is_of, value, expected))
    if origin is list and isinstance(value, list):
        return all(is_of(x, args[0]) for x in value)
    return isinstance(value, origin)


@pytest.mark.parametrize(
    ("value", "kind", "right"),
    [
        (1, int, True),
        (1, str | None, False),
        ((1, "a"), tuple[int, str], True),
        ((1, 2), tuple[int, str], False),
        ((1, 2), tuple[int, ...], True),
        ([1, "a"], list[int], False),
        (iter(()), collections.abc.Iterator[int], True),
    ],
)
def test_values_and_types_are_compared(value, kind, right):
    assert is_of(value, kind) is right


def test_what_the_types_say_is_so(monkeypatch):
    pytest.importorskip("optax")
    seen = []

    def assert_type(value, kind):
        assert is_of(value, kind), f"{value!r} is no {kind}"
        seen.append(kind)
        return value

    monkeypatch.setattr(typing, "assert_type", assert_type)
    spec = importlib.util.spec_from_file_location("api_typed", HERE / "api.py")
    api = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "api_typed", api)
    spec.loader.exec_module(api)
    for part in api.EVERYTHING:
        part()
    assert len(seen) >= (HERE / "api.py").read_text(encoding="utf-8").count("assert_type(")


def errors_of_mypy(*names):
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *[f"tests/typing/{name}" for name in names]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own files
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return re.findall(r"^tests/typing/(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)


def errors_of_pyright(*names):
    command = ["pyright", "--outputjson", "--pythonpath", sys.executable, *[f"tests/typing/{name}" for name in names]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own files
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [(pathlib.Path(d["file"]).stem, str(d["range"]["start"]["line"] + 1), d["message"]) for d in found if d["severity"] == "error"]


@pytest.mark.parametrize("find", [errors_of_mypy, errors_of_pyright])
def test_type_checkers_agree_with_the_api_and_find_mistakes(find):
    if find is errors_of_mypy:
        pytest.importorskip("mypy")
    elif shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    found = find("api.py", "mistakes.py")
    assert [error for error in found if error[0] != "mistakes"] == []
    assert {int(line) for _, line, _ in found} == MISTAKES


def declared():
    """Return the parameters of the methods that are declared for type checkers alone."""
    tree = ast.parse((ROOT / "tape" / "variables" / "declared.pyi").read_text(encoding="utf-8"))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    every = [node for node in body if isinstance(node, ast.FunctionDef)]
    return {node.name: [a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]] for node in every}


def test_declared_methods_are_there_with_their_parameters():
    assert len(declared()) > 80
    for name, parameters in declared().items():
        method = inspect.getattr_static(tape.Variable, name)
        if name.startswith("__") or not callable(method):
            continue
        there = inspect.signature(method).parameters
        assert parameters == [p for p in there if there[p].kind is not inspect.Parameter.VAR_POSITIONAL], name


def test_every_operator_and_method_that_is_made_is_declared():
    made = {*operators._BINARY, *operators._COMPARISONS, *operators._UNARY}
    expected = {f"__{name}__" for name in made} | {f"__r{name}__" for name in operators._BINARY}
    expected |= {f"__i{name}__" for name, (_, symbol) in operators._BINARY.items() if symbol}
    assert expected | {*methods._METHODS, *methods._SELECTING, *methods._PROPERTIES} <= set(declared())


def test_stubs_are_what_would_be_written():
    same, written = stubs.version() == jax.__version__, stubs.everything()
    assert set(written) == set((ROOT / "tape").rglob("*.pyi")) or not same
    for path, text in written.items():
        compile(text, path, "exec")
        if same:
            assert path.read_text(encoding="utf-8") == text, f"{path} is stale: python -m tests.typing.stubs writes it"


SPELLINGS = [
    ("import tape\ntape.", tape),
    ("import tape\ntape.numpy.", tape.numpy),
    ("import tape.numpy as tnp\ntnp.linalg.", tape.numpy.linalg),
    ("import tape\ntape.nn.", tape.nn),
    ("import tape\ntape.lax.", tape.lax),
    ("import tape\ntape.random.", tape.random),
    ("import tape\ntape.scipy.special.", tape.scipy.special),
    ("import tape\ntape.scipy.stats.norm.", tape.scipy.stats.norm),
    ("import tape\ntape.testing.", tape.testing),
    ("import tape\ntape.op_hooks.", tape.op_hooks),
    ("import interop\ninterop.", interop),
    ("import tape\nx = tape.Variable(1.0)\nx.", tape.Variable),
    ("import tape, tape.numpy as tnp\nx = tape.Variable(1.0)\ny = tnp.sin(x * 2).", tape.Variable),
    ("import tape\nx = tape.Variable([1.0])\nx.at[0].", AtIndex),
]


@pytest.mark.parametrize(("source", "has"), SPELLINGS, ids=[source.splitlines()[-1] for source, _ in SPELLINGS])
def test_editors_complete_every_name(source, has):
    """By what is written alone: nothing is imported, as in an editor."""
    jedi = pytest.importorskip("jedi")
    completed = {c.name for c in jedi.Script(source, project=jedi.Project(ROOT)).complete()}
    public = getattr(has, "__all__", None) or [name for name in dir(has) if not name.startswith("_")]
    assert set(public) - completed - younger(has, public) == set()


def younger(module, public):
    """Return the names that the installed JAX has, and the release with which the stubs were written had not."""
    stem = ROOT / module.__name__.replace(".", "/")
    text = "".join([path.read_text(encoding="utf-8") for path in (stem.with_suffix(".pyi"), stem / "__init__.pyi") if path.is_file()])
    written = re.search(r"with JAX ([\d.]+):", text.partition("\n")[0])
    older = written is not None and written[1] != jax.__version__
    return {name for name in public if not re.search(rf"\b{name}\b", text)} if older else set()


@pytest.mark.parametrize("module", [tape, interop, tape.numpy, tape.nn, tape.lax, tape.scipy.special, tape.testing])
def test_dir_has_every_public_name(module):
    assert set(module.__all__) <= set(dir(module))
