"""The checker of gradients: what a check costs for shapes that are new and for shapes seen before, beside ``jax.test_util.check_grads``.

Most of it is compiling, once per function and shape, so figures are of processor time, which a busy machine changes little.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
from hypothesis import settings

import tape
from benchmarks.compiles import watching
from benchmarks.report import Report, Score
from benchmarks.timing import Effort
from tape.testing import check_gradients, gradient_property, strategies

__all__ = ["WORKLOADS", "checker"]

EXAMPLES = 100
CASES = (107, 88)  # wrong and right ones that a run is to be through with in two minutes


def four_ops(x: Any, y: Any) -> Any:
    """Return tanh(x) * y + exp(x)."""
    return jnp.tanh(x) * y + jnp.exp(x)


@jax.custom_vjp
def ruled(x: Any, y: Any) -> Any:
    """Return the same, with a rule of its own."""
    return four_ops(x, y)


def _backward(residuals: Any, ct: Any) -> Any:
    x, y = residuals
    t = jnp.tanh(x)
    return ct * (y * (1 - t * t) + jnp.exp(x)), ct * t


ruled.defvjp(lambda x, y: (ruled(x, y), (x, y)), _backward)


def attention(x: Any, y: Any) -> Any:
    """Return softmax attention of ``x`` to ``y``."""
    return jax.nn.softmax(x @ y.T) @ y


def recorded(x: Any, y: Any) -> Any:
    """Return the four ops on the tape."""
    return tape.numpy.tanh(x) * y + tape.numpy.exp(x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "check of four ops": four_ops,
    "check of a custom_vjp": ruled,
    "check of attention": attention,
    "check of a function of the tape": recorded,
}
PROPERTY = "check of 100 examples"
WORKLOADS = frozenset({*FUNCTIONS, PROPERTY})


def _check_grads(fun: Callable[..., Any], *args: Any, order: int = 2) -> Any:
    jax.test_util.check_grads(fun, args, order=order, modes=("rev",), atol=0.1, rtol=0.1)  # what it says is not asked here
    return type("Report", (), {"verdict": "pass"})


CHECKS: dict[str, Callable[..., Any]] = {"tape.testing": check_gradients, "check_grads": _check_grads}


def _seconds(check: Callable[[], Any]) -> float:
    started = time.process_time()
    check()
    return time.process_time() - started


def _calls(name: str, effort: Effort, report: Report) -> dict[str, dict[str, float]]:
    """Enter a table of first and repeated checks; return their milliseconds at order 2."""
    fun, rng = FUNCTIONS[name], np.random.default_rng(0)
    checks = {who: run for who, run in CHECKS.items() if who == "tape.testing" or fun is not recorded}
    found: dict[tuple[str, int, str], list[float]] = {}
    compilations: dict[tuple[str, int, str], int] = {}
    for size in range(3, 5 if effort.quick else 8):
        for turn, order in enumerate((1, 2)):
            for who, run in checks.items():
                args = [np.asarray(rng.uniform(0.2, 1, (2 * size + turn, 3)), "float32") for _ in range(2)]
                for when in ("first", "again", "again", "again"):
                    with watching() as compiles:
                        took = _seconds(functools.partial(run, fun, *args, order=order))
                    found.setdefault((who, order, when), []).append(1e3 * took)
                    compilations[who, order, when] = len(compiles.compiled)
    rows: list[dict[str, Any]] = []
    for who in checks:
        for order in (1, 2):
            row: dict[str, Any] = {"ms": f"{who}, order {order}"}
            for when in ("first", "again"):
                row |= {when: statistics.median(found[who, order, when]), f"compilations, {when}": compilations[who, order, when]}
            rows.append(row)
    report.tabled("checker", name, rows)
    return {who: {when: statistics.median(found[who, 2, when]) for when in ("first", "again")} for who in checks}


def _examples() -> dict[str, float]:
    """Return the seconds of a property test of a four-op function, by checker."""
    few = settings(max_examples=EXAMPLES, database=None, derandomize=True)
    numbers = strategies.arrays(strategies.shapes(max_dims=2), domain=(0.2, 1), strided=False)
    found = {}
    for who, run in CHECKS.items():

        def alone(x: Any) -> Any:
            return jnp.tanh(x) * x + jnp.exp(x)

        found[who] = _seconds(gradient_property(numbers, settings=few, check=run)(alone))
    broadcast = gradient_property(settings=few)(four_ops)  # two arguments of shapes that broadcast, ties, large and tiny numbers
    found["tape.testing, any two arguments"] = _seconds(broadcast)
    return found


def checker(report: Report, effort: Effort, chosen: frozenset[str]) -> None:
    """Measure checks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # examples overflow on purpose
        found = {name: _calls(name, effort, report) for name in FUNCTIONS if not chosen or name in chosen}
        seconds = _examples() if not chosen or PROPERTY in chosen else {}
    if found:
        first = {name: f["tape.testing"]["first"] for name, f in found.items()}
        again = {name: f["tape.testing"]["again"] for name, f in found.items()}
        beside = {name: f["tape.testing"]["again"] / f["check_grads"]["again"] for name, f in found.items() if "check_grads" in f}
        report.scored(
            "checker",
            Score("first check of a shape, milliseconds", first, math.floor(120e3 / sum(CASES)), 1e3),
            Score("repeated check, milliseconds", again, 60.0, 60.0),
        )
        if beside:
            report.scored("checker", Score("repeated check, tape.testing / check_grads", beside, 1.0))
    if seconds:
        report.tabled("checker", PROPERTY, [{"seconds": who, "all": s} for who, s in seconds.items()])
        ours = {who: s for who, s in seconds.items() if who != "check_grads"}
        report.scored("checker", Score("100 examples of a four-op function, seconds", ours, 15.0, 15.0))
