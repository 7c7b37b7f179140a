"""A workload: a program written once over a namespace, and what it is run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["ARRAYS", "CONSTANTS", "NUMPY", "Dynamic", "Loop", "Run", "Workload", "normal"]

CONSTANTS, ARRAYS, NUMPY = "constants", "arrays", "NumPy"


@dataclass(frozen=True)
class Workload:
    """One step, in every system.

    Attributes:
        name: what tables call it.
        make: returns parameters (a list or dict of NumPy arrays) and data (NumPy arrays) from a generator and whether they are to be tiny.
        program: ``program(xp, parameters, *data)`` returns results, a tree of arrays, over the namespace ``xp``
            (see :mod:`benchmarks.systems`).
        trains: whether ``program`` is a loss, and the step one update by an optimizer that returns the parameters.
        optimizer: which one, "adam" or "sgd".
        operands: what data are: constants of the system, its raw arrays (those of JAX for the tape), or NumPy arrays, which the program
            gives to ``xp.operand`` where a system does not take them as they are.
        needs: features that some system lacks: "second order", "convolution", "linear algebra", "optimizer", "keys" (of JAX's generators).
        skips: systems that it would tell nothing about, by name.

    """

    name: str
    make: Callable[[np.random.Generator, bool], tuple[list[Any], tuple[Any, ...]]]
    program: Callable[..., Any]
    trains: bool = False
    optimizer: str = "adam"
    operands: str = CONSTANTS
    needs: frozenset[str] = frozenset()
    skips: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Dynamic:
    """A step whose structure depends on its data.

    Attributes:
        name: what tables call it.
        make: returns parameters from a generator.
        samples: yields data from a generator, never the same structure twice.
        program: ``program(xp, parameters, *sample)`` returns results.

    """

    name: str
    make: Callable[[np.random.Generator], list[Any]]
    samples: Callable[[np.random.Generator], Iterator[tuple[Any, ...]]]
    program: Callable[..., Any]


# A loop that returns how many turns it took and a state, and the sweep from that state, which returns gradients.
Run = tuple[Callable[[], tuple[int, Any]], Callable[[Any], list[Any]]]


@dataclass(frozen=True)
class Loop:
    """A Python loop that looks at a value in every turn.

    Attributes:
        name: what tables call it.
        taped: returns the loop on the tape, and its sweep.
        jitted: the same around a jitted step, and jitted pullbacks of it.

    """

    name: str
    taped: Callable[[], Run]
    jitted: Callable[[], Run]


def normal(rng: np.random.Generator, *shape: int, scale: float | None = None) -> Any:
    """Return normal numbers in float32; by default scaled by the root of the second to last dimension."""
    if scale is None:
        scale = float(shape[-2] if len(shape) > 1 else shape[-1]) ** -0.5
    return (rng.normal(size=shape) * scale).astype(np.float32)
