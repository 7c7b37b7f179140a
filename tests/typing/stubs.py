"""The stubs of what is made from tables, from JAX's signatures: ``python -m tests.typing.stubs`` writes them, ``--check`` says what is stale.

The mirrored namespaces are filled at first use, and so are the operators and methods of a Variable when it is imported: type checkers and
editors would see nothing of them.
"""

from __future__ import annotations

import argparse
import inspect
import pathlib
import re
import sys

import jax
import jax.numpy as jnp

from tape.mirrored.structures import MIRRORED_CLASSES
from tape.namespaces.namespace import Namespace, _submodules
from tape.variables import methods, operators

ROOT = pathlib.Path(__file__).parent.parent.parent
NAMESPACES = ("image", "lax", "nn", "numpy", "random", "scipy")
HEAD = f'''"""Written by ``python -m tests.typing.stubs`` with JAX {jax.__version__}: the names of the namespace and their signatures."""

import builtins as _b
from collections.abc import Callable as _Callable, Sequence as _Sequence
from typing import Any as _Any, Literal as _Literal, NamedTuple as _NamedTuple, overload as _overload

from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.mirrored.adapters import Indexer as _Indexer, UFunc as _UFunc
from tape.variables.declared import Axis as _Axis, Operand as _Operand
from tape.variables.variable import Variable as _Variable
'''
PLAIN = {name: f"_b.{name}" for name in ("int", "float", "complex", "bool", "str", "bytes", "tuple", "list", "dict")}
PLAIN |= {"None": "None", "Any": "_Any", "typing.Any": "_Any", "Sequence": "_Sequence", "Callable": "_Callable"}
GIVEN = PLAIN | {"ArrayLike": "_Operand", "Array": "_Operand", "jax.jaxlib._jax.Array": "_Operand", "np.ndarray": "_Operand"}
GIVEN |= {"DTypeLike": "_DTypeLike", "Axis": "_Axis", "reductions.Axis": "_Axis", "_Axis": "_Axis", "RealNumeric": "_Operand"}
RETURNED = PLAIN | {"Array": "_Variable", "jax.jaxlib._jax.Array": "_Variable", "Carry": "_Any", "Y": "_Any", "T": "_Any"}
RETURNED |= {"Initializer": "_Callable[..., _Variable]", "DType": "_Any", "KeyArray": "_Variable"}
# Results that depend on options: what comes with the options as they are by default.
NARROWED = {
    "jax.numpy": {
        "average": (["returned"], "_Variable"),
        "indices": (["sparse"], "_Variable"),
        "intersect1d": (["return_indices"], "_Variable"),
        "linspace": (["retstep"], "_Variable"),
        "polyfit": (["full", "cov"], "_Variable"),
        "unique": (["return_index", "return_inverse", "return_counts"], "_Variable"),
    },
    "jax.numpy.linalg": {"svd": (["compute_uv"], "SVDResult"), "qr": (["mode"], "QRResult")},
}
EXACT = {  # written by hand
    "jax.numpy": {
        "where": [
            "@_overload",
            "def where(condition: _Operand, /, *, size: _b.int | None = None, fill_value: _Any = None) -> _b.tuple[_Variable, ...]: ...",
            "@_overload",
            "def where(condition: _Operand, x: _Operand, y: _Operand, /) -> _Variable: ...",
        ],
        "cross": "_Variable",
        "can_cast": "_b.bool",
        "isneginf": "_Variable",
        "isposinf": "_Variable",
        "iterable": "_b.bool",
        "frompyfunc": "_UFunc",
    },
}
BARE = {"_Callable": "[..., _Any]", "_Sequence": "[_Any]", "_b.tuple": "[_Any, ...]", "_b.list": "[_Any]", "_b.dict": "[_Any, _Any]"}
WORD = re.compile(r"[A-Za-z_][\w.]*")


def spelled(annotation, known):
    """Return an annotation in the stub's words, or that of anything where one of its words is not known."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"^(Optional)\[(.*)\]$", r"\2 | None", text)
    if not all(word in known for word in WORD.findall(text)) or re.search(r"['\"]", text):
        return "_Any"
    text = WORD.sub(lambda word: known[word[0]], text)
    return re.sub(r"(_Callable|_Sequence|_b\.tuple|_b\.list|_b\.dict)(?!\[)", lambda bare: bare[1] + BARE[bare[1]], text)


def given(parameter, narrowed):
    """Return the annotation of a parameter."""
    if parameter.name in narrowed:
        return f"_Literal[{parameter.default!r}]"
    if parameter.annotation is inspect.Parameter.empty:
        return "_Any"
    return spelled(parameter.annotation, GIVEN)


def default(value):
    """Return a default as it is written in a stub."""
    return repr(value) if value is None or type(value) in {bool, int, str} else "..."


def parameters(signature, narrowed=()):
    """Return the parameters of a function as they are written."""
    written, kind = [], None
    for p in signature.parameters.values():
        if kind is p.POSITIONAL_ONLY and p.kind is not kind:
            written.append("/")
        if p.kind is p.KEYWORD_ONLY and kind not in {p.KEYWORD_ONLY, p.VAR_POSITIONAL}:
            written.append("*")
        kind = p.kind
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(kind, "")
        text = f"{star}{p.name}: {given(p, narrowed)}"
        written.append(text if p.default is p.empty else f"{text} = {default(p.default)}")
    return ", ".join(written if kind is not inspect.Parameter.POSITIONAL_ONLY else [*written, "/"])


class Stub:
    """The stub of one namespace."""

    def __init__(self, name):
        self.name, self.source = f"tape.{name}", f"jax.{name}"
        self.space = Namespace(self.name, self.source)
        self.tuples = {}

    def text(self):
        lines = [line for name in self.space.names for line in self.declared(name)]
        return "\n".join([HEAD, *self.tuples.values(), *lines, ""])

    def declares(self, name):
        """Tell whether a type checker finds a name in JAX's module."""
        own = pathlib.Path(self.space.module.__file__).with_suffix(".pyi")
        return not own.exists() or bool(re.search(rf"\b{name}\b", own.read_text(encoding="utf-8")))

    def result(self, annotation):
        """Return the annotation of a result: one of several kinds is anything, as the caller knows which it asked for."""
        if annotation is inspect.Signature.empty:
            return "_Any"
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        last = text.rpartition(".")[2]
        found = getattr(annotation, "_fields", None) and annotation
        if found is None and re.fullmatch(r"_?[A-Z]\w*Result", last):
            found = next(
                (v for m in list(sys.modules.values()) if getattr(m, "__name__", "").startswith("jax") for v in [vars(m).get(last)] if v),
                None,
            )
        if found is not None and not {"count", "index"}.intersection(getattr(found, "_fields", ["count"])):
            own = f"_{last.strip('_')}"
            self.tuples[own] = "\n".join([f"class {own}(_NamedTuple):", *[f"    {field}: _Variable" for field in found._fields], ""])
            return own
        return "_Any" if "|" in text else spelled(annotation, RETURNED)

    def declared(self, name):
        """Return the lines that declare a name."""
        category = self.space.category(name)
        if category == "module":
            return [f"from {self.name} import {name} as {name}"]
        value = getattr(self.space.module, name)
        if category == "passed":
            if value is jax.Array or value is jnp.ufunc:
                return [f"{name} = {'_Variable' if value is jax.Array else '_UFunc'}"]
            if name in {"r_", "c_", "mgrid", "ogrid"}:
                return [f"{name}: _Indexer"]
            if name in MIRRORED_CLASSES or not self.declares(name):
                return [f"{name}: _Any"]
            return [f"from {self.source} import {name} as {name}"]
        if isinstance(value, jnp.ufunc):
            return [f"{name}: _UFunc"]
        try:
            signature = inspect.signature(value)
        except (TypeError, ValueError):
            return [f"{name}: _Any"]
        exact = EXACT.get(self.source, {}).get(name)
        if isinstance(exact, list):
            return exact
        if exact is not None:
            return [f"def {name}({parameters(signature)}) -> {exact}: ..."]
        if name in NARROWED.get(self.source, ()):
            options, result = NARROWED[self.source][name]
            first = f"def {name}({parameters(signature, options)}) -> {self.result(result) if result != '_Variable' else result}: ..."
            return ["@_overload", first, "@_overload", f"def {name}({parameters(signature)}) -> _Any: ..."]
        result = "_Any" if category == "callables" and name != "map" else self.result(signature.return_annotation)
        return [f"def {name}({parameters(signature)}) -> {result}: ..."]


def stubs(name):
    """Yield the path and the text of the stub of a namespace, and of those below it."""
    stub = Stub(name)
    below = sorted(_submodules(stub.space.module))
    place = ROOT / "tape" / pathlib.Path(*name.split("."))
    package = bool(below) or "." not in name
    yield (place / "__init__.pyi" if package else place.with_suffix(".pyi")), stub.text()
    for module in below:
        if stub.space.category(module) == "module":
            yield from stubs(f"{name}.{module}")


def everything():
    """Return the text of each stub, by its path."""
    written = {path: text for name in NAMESPACES for path, text in stubs(name)}
    return {**written, ROOT / "tape" / "variables" / "declared.pyi": of_variables()}


METHODS_HEAD = f'''"""Written by ``python -m tests.typing.stubs`` with JAX {jax.__version__}: the operators and methods that a Variable gets from tables."""

import builtins as _b
from collections.abc import Sequence as _Sequence
from types import EllipsisType as _EllipsisType
from typing import Any as _Any, Self as _Self, TypeAlias as _TypeAlias

import jax as _jax
import numpy as _np
from jax.typing import ArrayLike as _ArrayLike, DTypeLike as _DTypeLike

from tape.graph.segment import Handle as _Handle

Operand: _TypeAlias = _ArrayLike | _Handle
Axis: _TypeAlias = int | _Sequence[int] | None
_Item: _TypeAlias = (
    int | slice | _EllipsisType | _np.ndarray[_Any, _Any] | _np.generic | _jax.Array | _Handle | list[_Any] | range | None
)
Index: _TypeAlias = _Item | tuple[_Item, ...]

class Declared(_Handle):
    def __hash__(self) -> _b.int: ...
    def __getitem__(self, index: Index, /) -> _Self: ...
    def __setitem__(self, index: Index, value: Operand, /) -> None: ...
    def __ipow__(self, other: Operand, /) -> _Self: ...
'''
PRECISE = {"device: _Any": "device: _jax.Device | _jax.sharding.Sharding | None", "fill_value: _Any": "fill_value: _b.complex | None"}
OF_ANY = "  # type: ignore[override]"  # object has these two of any operand, which give a bool


def of_variables():
    """Return the text of the stub for what a Variable gets from the tables of operators and methods."""
    lines = [f"def __{name}__(self) -> _Self: ..." for name in operators._UNARY]
    for name in operators._COMPARISONS:
        operand, mark = ("object", OF_ANY) if name in {"eq", "ne"} else ("Operand", "")
        lines.append(f"def __{name}__(self, other: {operand}, /) -> _Self: ...{mark}")
    for name, (_, symbol) in operators._BINARY.items():
        result = "_b.tuple[_Self, _Self]" if name == "divmod" else "_Self"
        forms = [name, f"r{name}", *([f"i{name}"] if symbol else [])]
        lines += [f"def __{form}__(self, other: Operand, /) -> {result}: ..." for form in forms]
    for name in methods._PROPERTIES:
        lines += ["@property", f"def {name}(self) -> _Self: ..."]
    for name in sorted({*methods._METHODS, *methods._SELECTING}):
        signature = inspect.signature(getattr(jax.Array, name))
        first, *others = signature.parameters.values()
        written = parameters(signature.replace(parameters=others))
        for loose, precise in PRECISE.items():
            written = written.replace(loose, precise)
        lines.append(f"def {name}({first.name}{', ' if written else ''}{written}) -> _Self: ...")
    return METHODS_HEAD + re.sub(r"_(Operand|Axis)\b", r"\1", "".join(f"    {line}\n" for line in lines))


def version():
    """Return the version of JAX that the stubs were written with."""
    return re.search(r"with JAX ([\d.]+):", (ROOT / "tape" / "numpy" / "__init__.pyi").read_text(encoding="utf-8"))[1]


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.typing.stubs", description=__doc__.partition(":")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a stub is not what would be written")
    check = parser.parse_args().check
    if check and version() != jax.__version__:
        print(f"the stubs were written with JAX {version()}, this is {jax.__version__}: not compared")
        return 0
    written = everything()
    stale = [path for path, text in written.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stale += [path for path in sorted((ROOT / "tape").rglob("*.pyi")) if path not in written]
    for path in stale:
        print(path.relative_to(ROOT))
        if not check:
            if path in written:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(written[path], encoding="utf-8")
            else:
                path.unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
