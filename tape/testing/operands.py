"""What random programs know of their values, and which parameters fit them: one function per way of fitting, from operands to options."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as onp  # noqa: ICN001 - np is the namespace of the programs

from tape.jaxapi import X64

Options = list[dict[str, Any]]

SHAPES = (
    (),
    (1,),
    (2,),
    (3,),
    (6,),
    (0,),
    (2, 3),
    (3, 2),
    (3, 1),
    (1, 3),
    (3, 3),
    (2, 1),
    (2, 2),
    (0, 3),
    (2, 1, 3),
    (2, 3, 1),
    (1, 3, 3),
    (2, 2, 3),
    (2, 3, 3),
    (2, 1, 3, 3),
)
HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class Info:
    """What the strategy knows of a value: ``exact`` means free of rounding, ``coarse`` that half precision took part."""

    shape: tuple[int, ...]
    dtype: str
    exact: bool = True
    coarse: bool = False
    weak: bool = False
    raw: bool = False  # not a Variable when run on the tape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def inexact(self) -> bool:
        """Whether it is a float."""
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def full(self) -> bool:
        """A float that LAPACK and the special functions take."""
        return self.inexact and self.dtype not in HALF


def always(*operands: Info) -> Options:
    """Floats."""
    return [{}] if all(x.inexact for x in operands) else []


def fits(*operands: Info) -> Options:
    """Broadcast together, at least one of them a float, and a Variable."""
    if not any(x.inexact for x in operands) or all(x.raw for x in operands):
        return []
    try:
        onp.broadcast_shapes(*(x.shape for x in operands))
    except ValueError:
        return []
    return [{}]


def axes(x: Info) -> list[Any]:
    """Axes to reduce over."""
    return [None, *range(x.ndim), *([-1] if x.ndim else []), *([(0, 1)] if x.ndim >= 2 else [])]


def reduced(x: Info, *, empty: bool = True) -> Options:
    """Any axes, kept or not."""
    if not x.inexact or (x.size == 0 and not empty):
        return []
    return [{"axis": axis, "keep": keep} for keep in (False, True) for axis in axes(x)]


def along(x: Info, *, empty: bool = True) -> Options:
    """One axis."""
    if not x.inexact or (x.size == 0 and not empty):
        return []
    return [{"axis": axis} for axis in (*range(x.ndim), *([-1] if x.ndim else []))]


def along_full(x: Info) -> Options:
    """One axis of an array that has elements."""
    return along(x, empty=False)


def reshaped(x: Info) -> Options:
    """Other shapes of as many elements."""
    return [{"shape": s} for s in SHAPES if math.prod(s) == x.size and s != x.shape] if x.inexact else []


def broadcast(x: Info) -> Options:
    """Shapes to broadcast to."""

    def possible(shape: tuple[int, ...]) -> bool:
        try:
            return onp.broadcast_shapes(x.shape, shape) == shape and shape != x.shape
        except ValueError:
            return False

    return [{"shape": s} for s in SHAPES if possible(s)] if x.inexact else []


def joined(a: Info, b: Info) -> Options:
    """Axes to concatenate along."""
    if not (a.inexact and b.inexact) or a.ndim != b.ndim:
        return []
    return [{"axis": i} for i in range(a.ndim) if all(m == n for j, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if i != j)]


def stacked(a: Info, b: Info) -> Options:
    """Axes to stack along."""
    return [{"axis": i} for i in (*range(a.ndim + 1), -1)] if a.shape == b.shape and a.inexact and b.inexact else []


def split(x: Info) -> Options:
    """Axes to split into equal parts."""
    if not x.inexact:
        return []
    return [{"axis": i, "count": n} for i in range(x.ndim) for n in (2, 3) if x.shape[i] and x.shape[i] % n == 0]


def ranked(low: int, high: int = 3) -> Callable[[Info], Options]:
    """Fit a number of axes."""
    return lambda x: [{}] if x.inexact and low <= x.ndim <= high else []


def indexed(x: Info) -> Options:
    """Basic and advanced static indices."""
    if not x.inexact or not x.ndim or x.shape[0] == 0:
        return []
    n = x.shape[0]
    written = [
        "0",
        "-1",
        "0:1",
        "1:",
        "::-1",
        "None",
        "..., None",
        "...",
        ":-1",
        "::2",
        f"onp.array([0, {n - 1}, 0])",
        "onp.array([[0, -1], [0, 0]])",
    ]
    written += [f"onp.arange({n}) % 2 == 0"]
    if x.ndim >= 2 and x.shape[1]:
        m = x.shape[1]
        written += [
            "0, 0",
            ":, 0",
            "..., -1",
            ":, ::-1",
            f"onp.array([0, {n - 1}, 0]), onp.array([{m - 1}, 0, {m - 1}])",
            ":, onp.array([0, 0, 0])",
            "-1, None, :1",
        ]
    return [{"i": i} for i in written]


def updated(a: Info, b: Info) -> Options:
    """``a.at[i].add(b)``: b is broadcast to ``a[i]``, indices may be duplicate."""
    return [
        {"i": o["i"], "do": do} for o in indexed(a) for do in ("add", "set", "multiply") if assignable(a, b, o["i"], duplicates=do == "add")
    ]


@functools.cache
def assignable(a: Info, b: Info, index: str, *, duplicates: bool) -> bool:
    """Tell whether ``a.at[index].set(b)`` is defined (duplicates: also where an element is met twice)."""
    if "arange" in index or not b.inexact or (not duplicates and "array" in index) or b.dtype != a.dtype or a.raw:
        return False
    target = eval(f"x[{index}]", {"onp": onp, "x": onp.zeros(a.shape)}).shape  # noqa: S307 - one of the literals above
    try:
        return bool(onp.broadcast_shapes(target, b.shape) == target)
    except ValueError:
        return False


def square(x: Info) -> Options:
    """Matrices of 3 by 3."""
    return [{}] if x.full and x.shape == (3, 3) else []


def solvable(a: Info, b: Info) -> Options:
    """A square matrix and a right-hand side."""
    return [{}] if square(a) and b.full and b.ndim in (1, 2) and b.shape[0] == 3 and a.dtype == b.dtype else []


def matmul(a: Info, b: Info) -> Options:
    """Vectors and matrices that multiply."""
    if not (a.inexact and b.inexact) or not a.ndim or not b.ndim or (a.raw and b.raw):
        return []
    return [{}] if a.shape[-1] == b.shape[-2 if b.ndim > 1 else -1] and max(a.ndim, b.ndim) <= 2 else []


def matrices(a: Info, b: Info) -> Options:
    """Matrices that multiply."""
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0] else []


def same_rows(a: Info, b: Info) -> Options:
    """Two matrices of one shape."""
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 2 and a.shape == b.shape else []


def both(a: Info, b: Info) -> Options:
    """Two vectors."""
    return [{}] if a.inexact and b.inexact and a.ndim == b.ndim == 1 else []


def masked(a: Info, b: Info) -> Options:
    """A mask of the broadcast shape, given as data."""
    return [
        {"mask": (onp.arange(math.prod(s)) % 3 == 1).reshape(s).tolist()}
        for _ in fits(a, b)
        for s in [onp.broadcast_shapes(a.shape, b.shape)]
        if math.prod(s)
    ]


def selected(a: Info, b: Info, c: Info) -> Options:
    """Three floats that broadcast together."""
    return fits(a, b, c) if a.inexact and b.inexact and c.inexact else []


def cast(x: Info) -> Options:
    """Other floating dtypes."""
    return (
        [{"dtype": d} for d in ("float16", "bfloat16", "float32", "float64") if d != x.dtype and (d != "float64" or X64.value)]
        if x.inexact
        else []
    )


def integers(x: Info) -> Options:
    """Integers."""
    return [{}] if x.dtype.startswith("int") else []


def counted(a: Info, i: Info) -> Options:
    """An integer index of the first axis."""
    return [{"n": a.shape[0]}] if a.inexact and a.ndim and a.shape[0] and i.dtype.startswith("int") and i.ndim <= 1 and not a.raw else []


def gathered(x: Info) -> Options:
    """Duplicate indices of an axis."""
    if not x.inexact or not x.size:
        return []
    return [{"axis": i, "index": [0, n - 1, 0]} for i, n in enumerate(x.shape)]
