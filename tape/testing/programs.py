"""Random tape programs: a strategy for straight-line functions that run on the tape and, from the same source, over JAX."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from tape import stop_gradient
from tape.errors import TapeValueError
from tape.functions.function import Function
from tape.graph.segment import Handle
from tape.jaxapi import X64
from tape.testing.operands import Info
from tape.testing.operations import OPERATIONS, Frozen, evaluate, results, source, uses
from tape.variables.variable import Variable

if TYPE_CHECKING:
    import types

    from hypothesis.strategies import DrawFn, SearchStrategy

    from tape.functions.context import Context

LEAF_SHAPES = ((3,), (2, 3), (), (3, 3), (1,), (3, 1), (0,))
GRID = (-1.0, -0.5, 0.0, 0.5, 1.0)


class Cube(Function):
    """A custom op of one argument."""

    @staticmethod
    def forward(ctx: Context, x: Any) -> object:
        """Return the third power."""
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Context, g: Any) -> object:
        """Multiply by its derivative."""
        (x,) = ctx.saved
        return 3 * g * x * x


class BothOf(Function):
    """A custom op of two results, of which either may have no gradient."""

    @staticmethod
    def forward(ctx: Context, x: Any, y: Any) -> object:
        """Return the product, and the sine of the first."""
        from tape import numpy as np  # noqa: PLC0415 - the namespace takes long to import

        ctx.save_for_backward(x, y)
        return x * y, np.sin(x)

    @staticmethod
    def backward(ctx: Context, product: Any, sine: Any) -> object:
        """Add what comes from both results."""
        from tape import numpy as np  # noqa: PLC0415

        x, y = ctx.saved
        gx = None if product is None else product * y
        if sine is not None:
            gx = sine * np.cos(x) + (0 if gx is None else gx)
        return gx, None if product is None else product * x


@functools.cache
def tape_names() -> dict[str, Any]:
    """Return the names of programs over the tape."""
    from tape import lax, nn, numpy, scipy  # noqa: PLC0415

    names = {"np": numpy, "nn": nn, "lax": lax, "scipy": scipy, "onp": np, "stop_gradient": stop_gradient}
    return {**names, "cube": Cube.apply, "both_of": BothOf.apply}


@dataclass(frozen=True)
class Program:
    """A straight-line function of a few arrays, as source text.

    Calling it with Variables runs it on the tape; :meth:`reference` runs the same text over JAX.

    Attributes:
        leaves: the names of its arguments, with what is known of each.
        lines: one call a line, each giving names to its results.
        root: the name of the result.

    """

    leaves: tuple[tuple[str, Info], ...]
    lines: tuple[str, ...]
    root: str
    seed: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arrays to call it with, some of them with ties."""
        generator = np.random.default_rng(self.seed)
        arrays = []
        for _, info in self.leaves:
            ties = generator.random() < 0.4
            drawn = generator.choice(GRID, info.shape) if ties else generator.uniform(-1.2, 1.2, info.shape)
            arrays.append(np.asarray(drawn, info.dtype))
        return tuple(arrays)

    @property
    def __name__(self) -> str:
        """What reports call it."""
        return "program"

    def __call__(self, *arguments: Any) -> Any:
        """Run on the tape; arrays are taken as constants."""
        return self._run(tape_names(), [x if isinstance(x, Handle) else Variable(x, requires_grad=False) for x in arguments])

    def reference(self, *arguments: Any) -> Any:
        """Run over JAX."""
        return self._run(None, [jnp.asarray(x) for x in arguments])

    def _run(self, names: dict[str, Any] | None, arguments: list[Any]) -> Any:
        values = dict(zip([name for name, _ in self.leaves], arguments, strict=True))
        for line in self.lines:
            target, text = line.split(" = ", 1)
            value = evaluate(text, values) if names is None else eval(_compiled(text), {**names, **values})  # noqa: S307 - text of tape.testing.operations
            targets = [t for t in target.split(", ") if t]
            values.update(zip((t.rstrip(",") for t in targets), value, strict=True) if "," in target else {target: value})
        return values[self.root]

    def __str__(self) -> str:
        names = ", ".join(name for name, _ in self.leaves)
        body = "\n".join(f"    {line}" for line in self.lines)
        arguments = ", ".join(
            f"onp.array({a.tolist()}, {i.dtype!r}).reshape({i.shape})" for a, (_, i) in zip(self.arguments, self.leaves, strict=True)
        )
        return f"def program({names}):\n{body}\n    return {self.root}\n\narguments = ({arguments},)"

    def __repr__(self) -> str:
        return f"\n{self}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 - how Hypothesis prints it
        printer.text(repr(self))


@functools.lru_cache(maxsize=10_000)
def _compiled(text: str) -> types.CodeType:
    return compile(text, text, "eval")


def programs(*, max_operations: int = 8, max_leaves: int = 3) -> SearchStrategy[Program]:
    """Random programs of some ninety operations: arithmetic, reductions, indexing, linear algebra, dtypes, custom ops.

    Values stay moderate, and values that are known up to rounding only are kept off kinks, so that the gradient of every program is defined
    and can be compared.  A failing program shrinks to few operations.

    Args:
        max_operations: highest number of operations, at least 1.
        max_leaves: highest number of arguments, at least 1.

    Returns:
        A strategy for :class:`Program`: a function with ``arguments`` to call it with.

    Raises:
        TapeValueError: a number is below 1.

    Example:
        >>> import tape
        >>> from hypothesis import given, settings
        >>> from tape.testing import strategies
        >>> @settings(max_examples=1, database=None)
        ... @given(strategies.programs(max_operations=2))
        ... def property(program):
        ...     x, *others = map(tape.Variable, program.arguments)
        ...     assert isinstance(program(x, *others), tape.Variable)
        >>> property()

    """
    if max_operations < 1 or max_leaves < 1:
        msg = f"programs: max_operations and max_leaves must be at least 1, got {max_operations} and {max_leaves}"
        raise TapeValueError(msg)
    return _programs(max_operations, max_leaves)


@st.composite
def _programs(draw: DrawFn, max_operations: int, max_leaves: int) -> Program:
    # One seed makes most of the choices: Hypothesis repeats and mutates its own draws, so that most programs would be alike.  What it
    # draws beside leaves operations out, so that it can shrink.
    seed = draw(st.integers(0, 2**32 - 1))
    steps, leaves, infos = _generated(seed, max_operations, max_leaves, bool(X64.value))
    same = {target[0]: next((n for n in used if infos[n] == infos[target[0]]), None) for target, _, used in steps if len(target) == 1}
    renamed: dict[str, str] = {}
    kept = []
    for target, text, used in steps:
        stand_in = same.get(target[0])
        if stand_in is not None and draw(st.integers(0, 15)) == 0:
            renamed[target[0]] = renamed.get(stand_in, stand_in)
        else:
            kept.append((target, _substituted(text, used, renamed), tuple(renamed.get(n, n) for n in used)))
    able = [n for target, _, _ in kept for n in target if infos[n].inexact] or [n for n in leaves if infos[n].inexact]
    root = able[-1 - draw(st.integers(0, len(able) - 1))] if draw(st.booleans()) else able[-1]
    needed, lines = {root}, []
    for target, text, used in reversed(kept):
        if needed.intersection(target):
            needed.update(used)
            lines.append(", ".join(target) + (", " if len(target) == 1 and text.startswith("tuple(") else "") + f" = {text}")
    arguments = tuple((n, infos[n]) for n in leaves if n in needed)
    return Program(arguments, tuple(reversed(lines)), root, seed)


def _substituted(text: str, used: tuple[str, ...], renamed: dict[str, str]) -> str:
    import re  # noqa: PLC0415

    for name in used:
        text = re.sub(rf"\b{name}\b", renamed.get(name, name), text)
    return text


_Steps = list[tuple[tuple[str, ...], str, tuple[str, ...]]]


def _generated(seed: int, max_operations: int, max_leaves: int, wide: bool) -> tuple[_Steps, list[str], dict[str, Info]]:
    """Make a program: (results, text, operands) of each step, the leaves, and what is known of each name."""
    chance = random.Random(seed)  # noqa: S311 - test data
    base = "float64" if wide else "float32"
    infos: dict[str, Info] = {}
    for _ in range(chance.randint(1, max_leaves)):
        infos[f"v{len(infos)}"] = Info(chance.choice(LEAF_SHAPES), base)
    leaves = list(infos)
    steps: _Steps = []
    count = chance.randint(1, max_operations)
    for _ in range(8 * max_operations):
        if len(steps) == count:
            break
        operation = chance.choice(OPERATIONS)
        possible = uses(operation, infos)
        if not possible:
            continue
        recent = set(list(infos)[-2:])
        fresh = [use for use in possible if not recent.isdisjoint(use[0])] if chance.random() < 0.8 else []  # so that programs are deep
        names, operands, option = chance.choice(fresh or possible)
        given = results(operation, operands, Frozen(option), wide)
        if given is None:
            continue
        made_infos, _ = given
        text = source(operation, names, operands, option)
        target = tuple(f"v{len(infos) + i}" for i in range(len(made_infos)))
        infos.update(zip(target, (replace(i, raw=False) for i in made_infos), strict=True))
        steps.append((target, text, names))
    return steps, leaves, infos
