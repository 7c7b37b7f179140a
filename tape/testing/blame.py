"""Whose rule is wrong: each rule inside a function is checked by itself, on the values that it meets there."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.graph.lines import line_of
from tape.jaxapi import ClosedJaxpr, JaxprEqn
from tape.ops.pullback import pullback
from tape.testing.evidence import Evidence
from tape.testing.executables import quickly
from tape.testing.judgement import is_of_jax
from tape.testing.measurement import user_rules
from tape.testing.patterns import pattern_of
from tape.testing.precise import RULE_PRIMITIVES, Precise, inner

MOST = 40  # equations that are looked at
_TAPE = str(pathlib.Path(jaxapi.__file__).parent)


class _Collector(Precise):
    """Evaluates, and notes on which inputs the equations of interest are evaluated."""

    def __init__(self, closed: ClosedJaxpr, *, rules_only: bool) -> None:
        super().__init__(closed)
        self._rules_only = rules_only
        self.equations: list[Any] = []
        self.inputs: list[list[Any]] = []

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        ruled = eqn.primitive.name in RULE_PRIMITIVES
        wanted = (ruled and not is_of_jax(eqn)) or (not self._rules_only and not ruled and inner(eqn) is None)
        if wanted and len(self.equations) < MOST and any(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars):  # type: ignore[attr-defined]
            self.equations.append(eqn)
            self.inputs.append(list(inputs))
        return super()._apply(eqn, inputs)

    def collect(self, xs: Sequence[Any]) -> list[list[Any]]:
        """Return the inputs of all equations of interest."""
        self.equations, self.inputs = [], []
        self(*xs)
        return self.inputs


def blamed(evidence: Evidence, pair: int | None) -> str:
    """Name the rule inside the function that is wrong, with its line; empty where there is nothing to choose from."""
    if evidence.untraced or evidence.subject.own_vjp is not None:
        return ""
    collector = _Collector(evidence.value_jaxpr, rules_only=evidence.subject.kind == "jax")
    point = evidence.probes.points[evidence.probes.pairs[pair or 0].point]
    try:
        with jax.enable_x64(True):
            values: list[list[Any]] = quickly(collector.collect)(list(point))
        equations = collector.equations
    except Exception:  # noqa: BLE001 - whom to blame is a courtesy: the verdict stands without
        values, equations = [], []  # they are in loops or branches, where values are not known
    if len(equations) == 1 and evidence.subject.kind == "jax":
        return _named(equations[0])
    try:
        wrong = [(eqn, how) for eqn, how in zip(equations, _wrong(evidence, equations, values), strict=True) if how]
    except Exception:  # noqa: BLE001 - as above: a rule may not run by itself
        return _named(equations[0]) if len(equations) == 1 else ""
    if wrong:
        return f"{_named(wrong[0][0])}: {wrong[0][1]}"
    within = {_named(eqn) for eqn in user_rules(evidence.value_jaxpr) if not is_of_jax(eqn)} if not equations else set()
    return f"{within.pop()}, in a loop or a branch" if len(within) == 1 else ""


def birth(evidence: Evidence, pair: int | None) -> str:
    """Name the primitive whose derivative is infinite or NaN first, with its input there; empty where there is none."""
    if evidence.untraced:
        return ""
    collector = _Collector(evidence.value_jaxpr, rules_only=False)
    point = evidence.probes.points[evidence.probes.pairs[pair or 0].point]
    try:
        with jax.enable_x64(True):
            values = quickly(collector.collect)(list(point))
        compared = _compared(evidence, collector.equations, values)
    except Exception:  # noqa: BLE001 - a courtesy, as above
        return ""
    masked = any(eqn.primitive.name == "select_n" for eqn in collector.equations)
    for eqn, inputs, both in zip(collector.equations, values, compared, strict=True):
        for x, (r, _) in zip(_inexact(inputs), zip(*both, strict=True), strict=True):
            lost = ~np.isfinite(np.asarray(r))
            if lost.any() and np.all(np.isfinite(np.asarray(x))):
                at = place_of(eqn)
                value = f"{complex(np.asarray(x)[lost].flat[0]):g}" if np.iscomplexobj(x) else f"{float(np.asarray(x)[lost].flat[0]):g}"
                return f"{eqn.primitive.name}({value})" + (f" at {at}" if at else "") + (", masked by where" if masked else "")
    return ""


def _wrong(evidence: Evidence, equations: Sequence[Any], values: Sequence[Any]) -> list[str]:
    """Say how each equation's rule differs from JAX's derivative of what it computes; empty where it does not."""
    said = []
    for both, inputs in zip(_compared(evidence, equations, values), values, strict=True):
        arrays = [[np.asarray(a) for a in triple] for triple in zip(*both, _inexact(inputs), strict=True)]
        said.append(next((pattern_of(r, g, x) for r, g, x in arrays if _differs(r, g)), ""))
    return said


def _inexact(inputs: Sequence[Any]) -> list[Any]:
    return [x for x in inputs if jnp.issubdtype(x.dtype, jnp.inexact)]


def _compared(evidence: Evidence, equations: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return, for each equation, JAX's derivative of what it computes, and its rule's."""
    rng = np.random.default_rng(evidence.seed)
    runs, given = [], []
    for eqn, inputs in zip(equations, values, strict=True):
        avals = [v.aval for v in eqn.invars]
        able = [i for i, a in enumerate(avals) if jnp.issubdtype(a.dtype, jnp.inexact)]
        outs = [j for j, v in enumerate(eqn.outvars) if jnp.issubdtype(v.aval.dtype, jnp.inexact)]
        narrow = [jnp.asarray(x, a.dtype) if i in able else jnp.asarray(x) for i, (x, a) in enumerate(zip(inputs, avals, strict=True))]
        cts = [rng.uniform(0.5, 1.5, eqn.outvars[j].aval.shape) for j in outs]
        runs.append(_pair(eqn, narrow, able, outs, on_tape=evidence.subject.kind == "tape"))
        given.append(([np.asarray(inputs[i]) for i in able], cts))
    with jax.enable_x64(True):
        return list(quickly(lambda batch: [run(*a) for run, a in zip(runs, batch, strict=True)])(given))


def _pair(eqn: JaxprEqn, inputs: list[Any], able: list[int], outs: list[int], *, on_tape: bool) -> Any:
    """Return a function that computes reference and rule of one equation in double precision."""

    def call(*xs: jax.Array) -> list[Any]:
        filled = list(inputs)
        for i, x in zip(able, xs, strict=True):
            filled[i] = x
        results = jaxapi.bind(eqn.primitive, eqn.params, filled)
        return [results[j] for j in outs]

    xs = [inputs[i] for i in able]
    closed, shapes = jaxapi.trace(call, *xs)

    def rule(*a: jax.Array) -> Any:
        if on_tape and eqn.primitive.name not in RULE_PRIMITIVES:
            gradients = pullback(closed, a[: len(able)], a[len(able) :])
            return tuple(jnp.zeros_like(x) if g is None else g for g, x in zip(gradients, a, strict=False))
        _, back = jax.vjp(call, *a[: len(able)])
        return tuple(back(list(a[len(able) :])))

    pulled, bare = Precise(jaxapi.trace(rule, *xs, *shapes)[0]), Precise(closed)

    def both(x: Sequence[jax.Array], cts: Sequence[jax.Array]) -> Any:
        _, back = jax.vjp(bare, *x)
        return list(back([jnp.asarray(c, jnp.float64) for c in cts])), pulled(*x, *cts)

    return both


def _differs(r: np.ndarray, g: np.ndarray) -> bool:
    scale = np.abs(r).max(initial=0)
    return bool(np.all(np.isfinite(r)) and np.any(~(np.abs(g - r) <= 1e-5 * np.abs(r) + 1e-9 * scale)))


def _named(eqn: JaxprEqn) -> str:
    closed = inner(eqn) if eqn.primitive.name in RULE_PRIMITIVES else None
    info: Any = getattr(closed.jaxpr, "debug_info", None) if closed is not None else None
    called = place_of(eqn)
    if info is None:
        name = f"the rule of the primitive {eqn.primitive.name}"
    else:
        of_tape = str(info.func_filename or "").startswith(_TAPE)
        name = f"the {'backward' if of_tape else 'rule'} of {info.func_name}"
    return f"{name}, called at {called}" if called else name


def place_of(eqn: JaxprEqn) -> str:
    """Return file and line of the user's code that an equation comes from, as far as JAX knows."""
    line = line_of(eqn)
    return "" if line is None else f"{pathlib.Path(line[0]).name}:{line[1]}"
