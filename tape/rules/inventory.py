"""What is covered: every primitive of the installed JAX with the rule that differentiates it, and every public function with its mirror."""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tape import jaxapi
from tape.errors import TapeTypeError
from tape.rules.table import everything, lookup
from tape.terminal import columns

# The JAX modules whose public functions the tape mirrors; those of ``jax.scipy`` are found, for there are many.
MODULES = (
    *("jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.nn", "jax.nn.initializers", "jax.lax", "jax.lax.linalg", "jax.random"),
    *("jax.image", "jax.ops", "jax.scipy"),
)
_HOW = {  # what a function that the tape has is, by the category of its name (tape.namespaces)
    "mirrored": "recorded",
    "special": "recorded",
    "callables": "recorded, with the functions that it is given",
    "on values": "run at once, on values",
    "metadata": "answered from shapes and dtypes",
    "passed": "JAX's own",
}


@dataclass(frozen=True, slots=True)
class Primitive:
    """One ``lax`` primitive: whose derivative a sweep uses, and what that is.

    ``rule`` is ``"own"`` (this library's; what a call like ``jit`` holds is swept in its place), ``"user"`` (given to
    :func:`tape.rules.defvjp`) or ``"jax"`` (JAX's derivative of the primitive).  ``flows`` tells whether a gradient can flow through it,
    ``complex`` whether the rule holds for complex numbers, ``elementwise`` whether XLA fuses it with whatever reads it; these are None
    where the rule is not the tape's.  ``source`` is where the formula comes from.
    """

    name: str
    rule: str
    flows: bool | None
    complex: bool | None
    elementwise: bool | None
    source: str


@dataclass(frozen=True, slots=True)
class Function:
    """One public function of JAX (``jax.numpy.sum``): its counterpart (``tape.numpy.sum``), or ``""``, and how that runs."""

    name: str
    counterpart: str
    how: str


class Coverage(Mapping[str, str]):
    """What the tape covers of the installed JAX; a mapping from the names of primitives to whose rule is used.

    Printed, it is a table: totals, or lines of what :meth:`matching` chose.
    """

    __slots__ = ("_functions", "_pattern", "primitives")

    primitives: tuple[Primitive, ...]

    def __init__(self, primitives: Sequence[Primitive], functions: Callable[[], tuple[Function, ...]], pattern: str | None = None) -> None:
        self.primitives = tuple(primitives)
        self._functions: Any = functions
        self._pattern = pattern

    @property
    def functions(self) -> tuple[Function, ...]:
        """Public functions; JAX's modules are imported when they are first asked for."""
        if callable(self._functions):
            self._functions = self._functions()
        return self._functions  # type: ignore[no-any-return]

    def matching(self, pattern: str) -> Coverage:
        """Return what has a name like ``pattern`` (``"cum*"``, ``"*.fft.*"``; a function goes by its last name as well).

        Raises:
            TapeTypeError: ``pattern`` is not a string.

        Example:
            >>> import tape
            >>> tape.rules.coverage().matching("segment_m*")
            function             counterpart           how
            jax.ops.segment_max  tape.ops.segment_max  recorded
            jax.ops.segment_min  tape.ops.segment_min  recorded

        """
        if not isinstance(pattern, str):
            msg = f"matching: the pattern is a string such as 'cum*', got {type(pattern).__name__}; pass '*' for everything"
            raise TapeTypeError(msg)

        def matches(name: str) -> bool:
            return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rpartition(".")[2], pattern)

        chosen = tuple(p for p in self.primitives if matches(p.name))
        return Coverage(chosen, lambda: tuple(f for f in self.functions if matches(f.name)), pattern)

    def __getitem__(self, name: str) -> str:
        for primitive in self.primitives:
            if primitive.name == name:
                return primitive.rule
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([p.name for p in self.primitives])

    def __len__(self) -> int:
        return len(self.primitives)

    def __repr__(self) -> str:
        if self._pattern is not None:
            tables = [_table(kind, rows) for kind, rows in ((Primitive, self.primitives), (Function, self.functions)) if rows]
            return "\n\n".join(tables) or f"nothing is called {self._pattern!r}"
        rules = Counter(p.rule for p in self.primitives)
        own = [p for p in self.primitives if p.rule == "own"]
        counts = ", ".join(f"{n} by {whose}" for whose, n in rules.most_common())
        lines = [f"{len(self)} primitives: {counts}; a gradient flows through {sum(bool(p.flows) for p in own)} of the tape's own"]
        hows: dict[str, Counter[str]] = {}
        for function in self.functions:
            hows.setdefault(".".join(function.name.split(".")[:2]), Counter())[function.how.split(",")[0]] += 1
        total = sum(sum(counter.values()) for counter in hows.values())
        lines.append(f"{total} public functions:")
        lines += [f"  {area:<11} " + ", ".join(f"{n} {how}" for how, n in counter.most_common()) for area, counter in hows.items()]
        lines = [part for line in lines for part in textwrap.wrap(line, columns(), subsequent_indent=" " * 14)]
        lines.append("one by one: .matching('*sum*'), .primitives, .functions")
        return "\n".join(lines)


def _text(value: object) -> str:
    return {True: "yes", False: "no", None: ""}.get(value, str(value)) if isinstance(value, (bool, type(None))) else str(value)


def _table(kind: type, rows: Sequence[Any]) -> str:
    """Return lines in columns that fit the terminal; the last column is cut."""
    names = [f.name for f in fields(kind)]
    names[0] = kind.__name__.lower()
    cells = [names, *[[_text(getattr(row, f.name)) for f in fields(kind)] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = max(60, shutil.get_terminal_size((120, 24)).columns)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join(line if len(line) <= room else f"{line[: room - 3]}..." for line in lines)


def coverage() -> Coverage:
    """Say for every primitive of JAX whose derivative a sweep uses, and for every public function what the tape makes of it.

    It answers from the rules and the installed JAX, at once; ``docs/coverage.md`` has what a comparison of all of them with ``jax.grad``
    found.

    Returns:
        A :class:`Coverage`: a mapping from the primitive's name to ``"own"`` (a rule of this library; plain calls such as ``jit`` are
        inlined), ``"user"`` (one given to :func:`defvjp`) or ``"jax"`` (JAX's derivative of the primitive), with all that is known of
        them in ``primitives`` and ``functions``.

    Example:
        >>> import tape
        >>> table = tape.rules.coverage()
        >>> table["tanh"]
        'own'
        >>> [f.counterpart for f in table.matching("segment_*").functions][:2]
        ['tape.ops.segment_max', 'tape.ops.segment_min']

    """
    return Coverage([_primitive(p) for p in everything()], _functions)


def _primitive(primitive: jaxapi.Primitive) -> Primitive:
    name, rule = str(primitive), lookup(primitive)
    called = primitive in jaxapi.CALL_JAXPR_PARAMS  # inlined: the rules of what it calls apply
    if called and (rule is None or rule.source != "user"):
        return Primitive(name, "own", flows=True, complex=True, elementwise=False, source="what it calls is swept in its place")
    if rule is None:
        return Primitive(name, "jax", None, None, None, "JAX's derivative, where it has one")
    whose = "user" if rule.source == "user" else "own"
    flows = whose == "user" or bool(rule.domain) or rule.selective
    return Primitive(name, whose, flows, rule.complex if flows else None, rule.elementwise, rule.source)


def modules() -> list[str]:
    """Return the names of the JAX modules whose public functions the tape mirrors."""
    scipy = importlib.import_module("jax.scipy")
    inner = [m.name for m in pkgutil.walk_packages(scipy.__path__, "jax.scipy.") if "._" not in m.name]
    return [*MODULES, *inner]


def _functions() -> tuple[Function, ...]:
    from tape.namespaces.namespace import Namespace  # noqa: PLC0415 - the mirror is made of what the rules are below of

    functions = []
    for source in modules():
        ours = "tape" + source.removeprefix("jax")
        namespace = Namespace(ours, source)
        for name in sorted(n for n in dir(namespace.module) if not n.startswith("_")):
            value = getattr(namespace.module, name)
            if not callable(value) or isinstance(value, type):
                continue
            how = _HOW.get(namespace.category(name))
            if how is not None:
                functions.append(Function(f"{source}.{name}", f"{ours}.{name}", how))
    return tuple(functions)
