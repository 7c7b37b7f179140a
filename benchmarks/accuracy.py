"""Accuracy of derivatives: the tape's and JAX's beside the true ones, in units in the last place of the true value.

Asked is where the true derivative is a normal number of the dtype; the worst place counts, so that near a zero of a derivative that is a
sum, the rounding of its terms shows.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import tape
from benchmarks.report import Report, Score
from benchmarks.systems import found
from benchmarks.timing import Effort

if TYPE_CHECKING:
    from benchmarks.accuracy_cases import Case

__all__ = ["WORKLOADS", "Found", "accuracy", "document", "measure"]

WORKLOADS = frozenset({"derivatives beside mpmath"})
DTYPES = ("float32", "bfloat16", "float16", "float64")
PLANES = ("complex64", "complex128")
DOUBLE = {"float64", "complex128"}
ORDERS = (1, 2)
LIMIT = 8.0
BETWEEN = (
    3,
    40,
    300,
)  # numbers asked beside each of a case's grid, and where JAX seems better: the worst of few is as much luck as a formula's
OPTIMISED = {"xla_backend_optimization_level": 3}  # as users' programs are compiled, which the tests' are not
_DIGITS = 100
_FARTHEST = dict.fromkeys(DOUBLE, 100.0)  # in larger ones, the digits do not suffice for differences of what is nearly constant


@dataclass(frozen=True)
class Found:
    """The worst errors of one derivative.

    Attributes:
        ours: the tape's, in units in the last place; infinite for NaN or a wrong infinity.
        theirs: JAX's.
        at: the argument where ours is worst.

    """

    label: str
    order: int
    dtype: str
    ours: float
    theirs: float
    at: complex
    note: str


def _function(case: Case, root: str) -> Callable[[Any], Any]:
    """Return the function of the argument that is differentiated."""
    module, _, name = case.name.rpartition(".")
    fun = getattr(importlib.import_module(f"{root}.{module}"), name)
    place = case.held.index(None)
    if case.stacked:
        stack = importlib.import_module(f"{root}.numpy").stack

        def of_vector(x: Any) -> Any:
            y = fun(stack([x if h is None else jnp.full(x.shape, h, x.dtype) for h in case.stacked], axis=-1), axis=-1)
            return y[..., case.element] if y.ndim > x.ndim else y

        return of_vector
    return lambda x: fun(*[x if i == place else held for i, held in enumerate(case.held)], **case.options)


def derivatives(case: Case) -> Callable[[Any], list[Any]]:
    """Return the tape's first and second derivative at every element."""
    fun = _function(case, "tape")
    first = tape.grad(lambda x: tape.numpy.sum(fun(x)), holomorphic=case.plane)
    second = tape.grad(lambda x: tape.numpy.sum(first(x)), holomorphic=case.plane)
    return lambda x: [first(x), second(x)]


def native(case: Case) -> Callable[[Any], list[Any]]:
    """Return JAX's first and second derivative at every element."""
    first = jax.grad(_function(case, "jax"), holomorphic=case.plane)
    return lambda x: [jax.vmap(first)(x), jax.vmap(jax.grad(first, holomorphic=case.plane))(x)]


@functools.cache
def _true(case: Case, x: complex, order: int) -> Any:
    import mpmath as mp  # noqa: PLC0415 - optional

    with mp.workdps(_DIGITS):
        case.true(mp.mpmathify(x))  # raises at a pole, on both sides of which differences may agree
        value = mp.diff(case.true, mp.mpmathify(x), order)
        return value if case.plane else mp.re(value)


def less_accurate(ours: float, theirs: float) -> bool:
    """Tell whether the worst error is over JAX's: over a tenth of a unit, and over a twentieth, which the choice of places makes."""
    return ours > max(theirs + 0.1, theirs * 1.05)


def _denser(numbers: Any, between: int) -> Any:
    """Add numbers between those that are near to each other; of complex ones, turned a little."""
    parts = np.arange(1, between + 1) / (between + 1)
    if np.iscomplexobj(numbers):
        return np.concatenate([numbers, *[numbers * (1 + 0.3 * part) * np.exp(0.01j * part) for part in parts]])
    low, high = np.sort(numbers)[:-1], np.sort(numbers)[1:]
    near = (low * high > 0) & (np.maximum(abs(low), abs(high)) < 2 * np.minimum(abs(low), abs(high)))
    return np.concatenate([numbers, *[low[near] + part * (high - low)[near] for part in parts]])


def grid(case: Case, dtype: str, between: int = 0) -> Any:
    """Return the arguments of a case, as numbers of a dtype, and some more between them."""
    with np.errstate(over="ignore"):
        numbers = _denser(np.asarray(case.grid), between).astype(jnp.dtype(dtype))
    if case.plane:
        return numbers[np.abs(numbers) <= _FARTHEST.get(dtype, np.inf)]
    known = set(map(float, numbers))
    inside = [x for x in sorted(known) if min(case.grid) <= x <= max(case.grid) and abs(x) <= _FARTHEST.get(dtype, np.inf)]
    return np.asarray([x for x in inside if x != 0 or 0.0 in case.grid], numbers.dtype)


def errors(case: Case, order: int, numbers: Any, values: Any) -> Iterator[tuple[float, complex]]:
    """Yield error and place, wherever the true derivative is a normal number."""
    import mpmath as mp  # noqa: PLC0415 - optional

    info: Any = jnp.finfo(numbers.dtype)  # type: ignore[no-untyped-call]
    kind = complex if case.plane else float
    smallest = float(info.tiny) / (float(info.eps) if case.plane else 1.0)  # of a part, the last place of the whole is a normal number
    for x, value in zip(map(kind, numbers), np.asarray(values), strict=True):
        try:
            true = _true(case, x, order)
        except (ZeroDivisionError, ValueError):  # a singularity
            continue
        if abs(true) < mp.mpf(10) ** (-_DIGITS // 2):  # a difference of so many digits does not tell it from zero
            continue
        if not mp.isfinite(true) or abs(true) > mp.mpf(float(info.max)) or abs(true) < smallest:
            continue
        unit = mp.ldexp(1, mp.frexp(abs(true))[1] - 1 - info.nmant)
        yield (float(abs(mp.mpmathify(kind(value)) - true) / unit) if np.isfinite(value) else np.inf), x


def worst(case: Case, order: int, numbers: Any, values: Any) -> tuple[float, complex]:
    """Return the largest error, and where it is."""
    return max(errors(case, order, numbers, values), key=operator.itemgetter(0), default=(0.0, np.nan))


def measure(case: Case, dtype: str) -> list[Found]:
    """Compare one function's derivatives in one dtype; at many more places where JAX's seem better at some."""
    for between in BETWEEN:
        rows = _measured(case, dtype, between)
        if not any(less_accurate(row.ours, row.theirs) for row in rows):
            break
    return rows


def _measured(case: Case, dtype: str, between: int) -> list[Found]:
    with jax.enable_x64(dtype in DOUBLE):
        numbers = grid(case, dtype, between)
        own = jax.jit(derivatives(case), compiler_options=OPTIMISED)(numbers)
        others = jax.jit(native(case), compiler_options=OPTIMISED)(numbers)
    rows = []
    for order, ours, theirs in zip(ORDERS, own, others, strict=True):
        error, at = worst(case, order, numbers, ours)
        rows.append(Found(case.label, order, dtype, error, worst(case, order, numbers, theirs)[0], at, case.note))
    return rows


def accuracy(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure all functions, in float32 and complex64 alone where little is asked."""
    del chosen
    if not found("mpmath"):
        print("\naccuracy: needs mpmath")
        return
    from benchmarks import accuracy_cases, accuracy_plane  # noqa: PLC0415 - optional

    rows: list[Found] = []
    count = 1 if effort.quick else None
    for dtype in (*DTYPES[:count], *PLANES[:count]):
        cases = accuracy_plane.CASES if dtype in PLANES else accuracy_cases.CASES
        made = [row for case in cases if dtype not in case.lacks for row in measure(case, dtype)]
        report.tabled("accuracy", f"units in the last place, {dtype}", [_row(r) for r in made])
        rows += made
    ours = {f"{r.label}, order {r.order}": max(r.ours, 0.5) for r in rows if r.dtype == "float32" and not r.note}
    report.scored("accuracy", Score("worst error, float32, but for what has a note", ours, LIMIT, LIMIT))


def _row(r: Found) -> dict[str, Any]:
    return {"function": f"{r.label}, order {r.order}", "tape": r.ours, "JAX": r.theirs, "at": f"{r.at:.4g}"}


def document(report: Report, path: str) -> None:
    """Write the table that a run found as a page."""
    rows = report.figures.get("accuracy", [])
    from benchmarks import accuracy_cases, accuracy_plane  # noqa: PLC0415 - whoever has figures has it

    cases = {(case.plane, case.label): case for case in (*accuracy_cases.CASES, *accuracy_plane.CASES)}
    lines = [_HEAD]
    for title in dict.fromkeys(row["table"] for row in rows):
        within = [row for row in rows if row["table"] == title]
        counts = [sum(row[who] <= LIMIT for row in within) for who in ("tape", "JAX")]
        less = sum(less_accurate(row["tape"], row["JAX"]) for row in within)
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        lines += [
            f"Of {len(within)} derivatives, {counts[0]} are right to {LIMIT:g} units, {counts[1]} of JAX's; less accurate: {less or 'none'}.",
            "",
        ]
        lines += ["| derivative | tape | JAX | tape's worst at | what limits it |", "| --- | --- | --- | --- | --- |"]
        for row in within:
            case = cases[title.endswith(PLANES), row["function"].rpartition(", order ")[0]]
            note = "" if row["tape"] <= LIMIT else case.note
            lines.append(f"| `{row['function']}` | {_brief(row['tape'])} | {_brief(row['JAX'])} | {row['at']} | {note} |")
        lines.append("")
    pathlib.Path(path).write_text("\n".join(lines), encoding="utf-8")


def _brief(x: float) -> str:
    return "no number" if np.isinf(x) else "lost" if x > 1e6 else f"{x:.2g}" if x < 100 else f"{x:.0f}"


_HEAD = """# Accuracy of derivatives

Written by `python -m benchmarks accuracy --docs docs/accuracy.md` (with `--quick`, in float32 and complex64 alone): the largest error of first and second
derivatives over the whole domain, in units in the last place (ulp) of the true value, which mpmath gives to 100 digits. Asked is wherever the true
value is a normal number of the dtype, and at least 1e-50; `lost` is more than a million units: all digits. On a CPU, compiled;
`tests/rules/test_accuracy.py` holds the columns of float32 and complex64, and what of float64 is not XLA's own values.
*Less accurate* is a derivative whose worst error is over JAX's by more than a tenth of a unit and a twentieth, however small both are; the worst of few places is
partly luck, so that where one seems so, both are asked at a hundred times as many.
Of complex numbers, errors are distances in the plane, asked off the axes, where branch cuts are, and where the last place of the modulus is a normal number.
In the half precisions, what is computed step by step in them (first of all XLA's values, and what JAX composes of several) is rounded at each.

`tanh`, `logistic` and `gelu` by tanh of real numbers have an option (of complex ones they keep all digits). What there is without it reads what was computed,
`1 - tanh^2` and `s (1 - s)`, as JAX's does, and loses the tails; `tape.rules.accurate_tanh` and `accurate_logistic`, given to `tape.rules.defvjp`,
and `tape.nn.gelu(x, accurate=True)` keep them to a few units in both orders, for one exponential more. That costs over 3 % of steps of the benchmarks
where computing decides (CPU time of one thread, medians of 60 to 150 rounds in turns; in brackets, a second process without the option): the scanned
recurrent network takes 1.06 and 1.10 times as long in two runs (0.99, 1.01), with `logistic` in place of tanh 1.09 times (0.99), the block of a transformer
with `gelu` 1.05 and 1.08 times (0.99, 1.01). Where dispatch decides, it is lost in the noise of these runs: the LSTM takes 1.05 times as long (1.03), with
`logistic` 1.03 (0.96), MAML 1.05 (1.03), the gradient penalty 1.03 (1.00), tanh layers 1.02 (1.03). And the gates cost room: they read the argument too, so
that what is kept for the sweep of a recurrent network grows from 320 numbers to 640 (LSTM) and from 64 to 128, and the operations of a program of tanh
layers by 11 to 14 %.

*Near a zero*, a derivative is a difference of values that are rounded themselves, and has the digits that they have left. So forms are taken that have no
such difference (`silu`, `mish`, `gelu` by erf, `i1e`, `entr`, `rel_entr`, `kl_div`), or terms in several parts (`gammaln`, `std`, `var`, `softmax`), or that begin at a zero known to further digits (`sinc` up to 63, `gammaln` and `digamma` down to
-64; beyond, near the zeros, they have fewer). What they take, beside
the plain ones (CPU time of one thread, fastest of 15 to 150, in turns): digamma, of which gammaln has its gradient, 0.9 to 1.0 times as long as XLA's (float64: 1.3); the
gradients of `std` and `var` alone 1.3 to 1.6 times; that of `softmax` alone 1.5 times, and a step of a block of a transformer 0.99 to
1.02 times in four turns; those of `log_softmax` 1.3 times (CPU time, busy machine). The second derivative of `softmax` alone takes 5 to 6 times as long, twice
what it took with weights in two parts, which lost it within 0.002 of a zero, and a Hessian-vector product of attention 1.3 times what it took with those; no
program of the benchmarks of dispatch and computing differentiates a softmax twice. Its error in float32 is 2^-58 of the largest weight, finer than double
precision resolves; rows in which the derivative is under 2^-38 (of rows of three, 0.3 % of those with a logit next to a zero) may be off by more than 8 units.
In float64, digits are still lost within 2e-11 of a zero.

Functions that are lifted (`interop.lift(jax.nn.softplus)`) have the derivatives that JAX gives where it gives its own (`jax.custom_jvp`).
"""
