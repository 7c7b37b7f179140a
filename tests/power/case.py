"""What a case is: one function whose gradient is known to be wrong, or known to be right, with its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BOTH = ("float32", "float64")
HALVES = ("float16", "bfloat16")

# Where a wrong gradient can be seen.
SHOWS = (
    "first",  # in the first derivative, for every cotangent or for some
    "second",  # only in the second derivative
    "vmap",  # only under vmap
    "jit",  # only under jit
    "repeat",  # only at a second call with other values, or when another forward pass comes between forward pass and pullback
    "part",  # only when one of the arguments is differentiated, or one of the outputs used
    "elsewhere",  # only at points that are larger, smaller or of another sign than the given one
    "structure",  # in the dtype of the cotangent
    "value",  # in the result of the function when it is differentiated
    "nan",  # as NaN or infinity where the derivative exists
    "forward",  # in forward mode, while reverse mode is right
    "bent",  # only at points nearby that have not the symmetry of the given one, or are not real
    "nested",  # only under vmap in vmap
    "calls",  # only at some of the calls
    "others",  # only for arguments of other shapes, in another order, or with another mask
)


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One function whose gradient is known to be wrong or right.

    ``make(dtype)`` builds it afresh and returns ``(fun, args)``. ``truth(dtype)`` returns a function with the same values whose
    gradient is right by JAX's own rules, or None where the function is made of JAX's own ops only and says itself what is true. ``domain``
    is where the function is meant, where that is more than its arguments span; ``at``, arguments for which it is wrong where it is right for
    those of ``make``.
    """

    name: str
    kind: str
    why: str
    wrong: bool
    make: Callable[[str], tuple[Callable[..., Any], tuple[Any, ...]]]
    truth: Callable[[str], Callable[..., Any] | None]
    dtypes: tuple[str, ...] = BOTH
    shows: str = "first"
    domain: tuple[float, float] | None = None
    at: tuple[Any, ...] | None = None


CASES: list[Case] = []


def uniform(low, high, *shape, seed=0):
    """Numbers between ``low`` and ``high``."""
    return np.random.default_rng((seed, *shape)).uniform(low, high, shape)


def normal(*shape, seed=0):
    """Normally distributed numbers."""
    return np.random.default_rng((1, seed, *shape)).normal(size=shape)


def complexes(*shape, seed=0):
    """Complex numbers with normally distributed parts."""
    return normal(*shape, seed=seed) + 1j * normal(*shape, seed=seed + 50)


def conditioned(n, condition, *, symmetric=False, seed=0):
    """A matrix with singular values from 1 down to 1 / ``condition``; a positive definite one on demand."""
    u = np.linalg.qr(normal(n, n, seed=seed))[0]
    v = u if symmetric else np.linalg.qr(normal(n, n, seed=seed + 7))[0]
    return u * np.geomspace(1.0, 1.0 / condition, n) @ v.T


def cast(tree, dtype):
    """``tree`` with its floating and complex arrays in ``dtype``; integers and booleans stay."""
    wide = {"float64": "complex128"}.get(dtype, "complex64")

    def one(x):
        if not isinstance(x, np.ndarray | np.floating | float | complex):
            return x
        x = np.asarray(x)
        if x.dtype.kind == "c":
            return x.astype(wide)
        return x.astype(jnp.dtype(dtype)) if x.dtype.kind == "f" else x

    return jax.tree.map(one, tree)


def custom(primal, bwd, fwd=None):
    """``primal`` as a ``custom_vjp`` with the rule ``bwd(ct, out, *args)``, or ``bwd(ct, residuals)`` behind a ``fwd``."""
    op = jax.custom_vjp(lambda *args: primal(*args))  # so that defaults of the primal are no arguments of the rule

    def keep(*args):
        out = primal(*args)
        return out, (out, *args)

    op.defvjp(fwd or keep, (lambda kept, ct: bwd(ct, kept)) if fwd else (lambda kept, ct: tuple(bwd(ct, *kept))))
    return op


def enter(case):
    """Add a case to the catalogue."""
    assert case.shows in SHOWS, case.shows
    assert all(case.name != other.name for other in CASES), case.name
    CASES.append(case)


def rule(kind, name, why, primal, bwd, *args, compose=None, dtypes=BOTH, shows="first", wrong=True, domain=None):
    """Enter ``primal`` with the rule ``bwd(ct, out, *args)``; ``compose`` makes a larger function of that op."""
    around = compose or (lambda op: op)

    def make(dtype):
        return around(custom(primal, bwd)), cast(args, dtype)

    enter(Case(name, kind, why, wrong, make, lambda _: around(primal), tuple(dtypes), shows, domain))


def hidden(kind, name, why, primal, bwd, *args, at):
    """Enter ``primal`` with a rule that is right for ``args`` and wrong for ``at``."""
    enter(Case(name, kind, why, True, lambda dtype: (custom(primal, bwd), cast(args, dtype)), lambda _: primal, shows="others", at=at))


def built(kind, why, *args, truth=None, dtypes=BOTH, shows="first", wrong=True):
    """Enter a case whose function the decorated builder makes afresh, which gives it its name."""

    def decorate(build):
        def make(dtype):
            return build(), cast(args, dtype)

        enter(Case(build.__name__, kind, why, wrong, make, lambda _: truth, tuple(dtypes), shows))
        return build

    return decorate


def right(kind, name, why, fun, *args, dtypes=BOTH):
    """Enter a function of JAX's own ops, whose gradient JAX's own rules give rightly."""
    enter(Case(name, kind, why, False, lambda dtype: (fun, cast(args, dtype)), lambda _: None, tuple(dtypes)))


def right_rule(kind, name, why, primal, bwd, *args, compose=None, dtypes=BOTH):
    """Enter ``primal`` with a correct rule ``bwd(ct, out, *args)``."""
    rule(kind, name, why, primal, bwd, *args, compose=compose, dtypes=dtypes, wrong=False)
