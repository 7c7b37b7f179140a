"""A jaxpr evaluated in double precision, with every custom derivative rule taken away.

What is left is the function that the primal computes, as exactly as the machine can: the reference of all checks.  The program of a
derivative under test runs by the same means, so that a rule is first compared where rounding hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import jaxapi
from tape.jaxapi import ClosedJaxpr, Jaxpr, JaxprEqn
from tape.ops.jaxprs import equations_in, evaluated
from tape.rules import parameters

RULE_PRIMITIVES = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "call_jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "call_hi_primitive": "_prim",  # a custom_vjp of newer releases whose calls share results under vmap: it holds its function as traced
}
_COMPARING = {"eq", "ne", "lt", "le", "gt", "ge", "max", "min", "clamp"}
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr"}
_CALLS |= {"remat": "jaxpr"}
# What has one meaning in its own dtype only: bits, the host's code, kernels written for a dtype.
_OPAQUE = ("bitcast_convert_type", "callback", "ffi_call", "pallas_call", "custom_call", "nextafter")


def wide(dtype: np.dtype) -> np.dtype:
    """Return the double-precision dtype that takes the place of ``dtype``; other kinds of dtype are returned as they are."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype("complex128")
    return np.dtype("float64") if jnp.issubdtype(dtype, jnp.floating) else dtype


def _widened(value: Any) -> Any:
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        value = np.asarray(value)
        dtype = value.dtype
    return value if wide(dtype) == dtype else jnp.asarray(value, wide(dtype))


def inner(eqn: JaxprEqn) -> Any:
    """Return the jaxpr that an equation merely calls (a derivative rule beside it is not looked at); None for any other equation."""
    name = eqn.primitive.name
    key = RULE_PRIMITIVES.get(name) or _CALLS.get(name)
    closed = None if key is None else eqn.params.get(key)
    if name == "call_hi_primitive":
        closed = getattr(getattr(closed, "traced", None), "jaxpr", None)
        if closed is not None and len(jaxapi.closed(closed).in_avals) != len(eqn.invars):  # its rules read more than it does
            return None
    return None if closed is None else jaxapi.closed(closed)


def equations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every equation of a jaxpr, and of the jaxprs inside."""
    for eqn in equations_in(jaxpr):
        yield eqn
        called = inner(eqn) if eqn.primitive.name == "call_hi_primitive" else None
        if called is not None:
            yield from equations(called.jaxpr)


def literal(atom: Any) -> float | None:
    """Return the number that a literal is; None of anything else (a cotangent of an integer is no number)."""
    if not isinstance(atom, jaxapi.Literal) or np.ndim(atom.val) or not jnp.issubdtype(np.asarray(atom.val).dtype, np.number):
        return None
    return float(np.real(atom.val))


def constants(jaxpr: Jaxpr) -> Iterator[float]:
    """Numbers that a jaxpr, and the jaxprs inside, name: with what is compared first."""
    named = [
        (eqn.primitive.name not in _COMPARING, float(v.val))
        for eqn in equations(jaxpr)
        for v in eqn.invars
        if isinstance(v, jaxapi.Literal) and not np.ndim(v.val) and jnp.issubdtype(getattr(v.aval, "dtype", np.bool_), jnp.floating)
    ]
    return (value for _, value in sorted(named, key=itemgetter(0)))


def stops_when_near(eqn: JaxprEqn) -> bool:
    """Tell whether an equation is a loop that looks at floating point values to know whether it is done."""
    if eqn.primitive.name != "while":
        return False
    cond = jaxapi.closed(eqn.params["cond_jaxpr"]).jaxpr
    return any(jnp.issubdtype(getattr(v.aval, "dtype", np.bool_), jnp.inexact) for inner_eqn in cond.eqns for v in inner_eqn.invars)


def repeats(eqn: JaxprEqn) -> bool:
    """Tell whether an equation is a loop of a fixed number of turns that does the same thing again and again, as some solvers do."""
    if eqn.primitive.name != "scan":
        return False
    params = parameters.assumed(eqn.primitive, eqn.params)
    return (params["num_consts"] + params["num_carry"], params["num_carry"]) == (len(eqn.invars), len(eqn.outvars))


class Precise:
    """Calls a closed jaxpr on double-precision inputs; with ``keep``, in its own dtypes and with the rules that ``keep`` chooses.

    Attributes:
        consts: the jaxpr's constants.
        further: turns that loops take when they would stop, having come near enough for the jaxpr's own dtypes.
        most: turns after which such loops are stopped; zero: never.
        twice: whether loops that do the same thing again and again do it twice as often.
        opaque: whether some primitive had to run in its own, lower precision (a callback, a kernel); known after the first call.

    """

    def __init__(self, closed: ClosedJaxpr, keep: Callable[[Any], bool] | None = None) -> None:
        self.closed = closed
        self.consts = list(closed.consts)
        self.opaque = False
        self.further = self.most = 0
        self.twice = False
        self._keep = keep

    def __call__(self, *inputs: jax.Array) -> list[Any]:
        """Evaluate; to be called under ``jax.enable_x64(True)``."""
        return self._run(self.closed.jaxpr, self.consts, [self._wide(x) for x in inputs])

    def _evaluate(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        return self._run(closed.jaxpr, closed.consts, inputs)

    def _run(self, jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        def number(atom: jaxapi.Literal) -> Any:
            dtype = getattr(atom.aval, "dtype", None)
            return atom.val if dtype is None else np.asarray(atom.val, dtype).astype(dtype if self._keep else wide(dtype))

        return list(map(self._wide, evaluated(jaxpr, list(map(self._wide, consts)), inputs, self._apply, number)))

    def _wide(self, value: Any) -> Any:
        return value if self._keep else _widened(value)

    def _apply(self, eqn: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        called = inner(eqn)
        name = eqn.primitive.name
        if called is not None and not (self._keep is not None and name in RULE_PRIMITIVES and self._keep(eqn)):
            return self._evaluate(called, inputs)
        if self._keep is not None and name not in _SPECIAL:
            return jaxapi.bind(eqn.primitive, eqn.params, inputs)
        special = _SPECIAL.get(name)
        if special is not None:
            params = parameters.assumed(eqn.primitive, eqn.params)
            if stops_when_near(eqn):
                results: Sequence[Any] = _while(self._evaluate, params, inputs, most=self.most)
                return _while(self._evaluate, params, [*inputs[: -len(results)], *results], self.further) if self.further else results
            results = special(self._evaluate, params, inputs)
            return special(self._evaluate, params, [*inputs[: -len(results)], *results]) if self.twice and repeats(eqn) else results
        if not any(word in name for word in _OPAQUE):
            try:
                return [_widened(x) for x in jaxapi.bind(eqn.primitive, self._params(eqn), inputs)]
            except (TypeError, ValueError, NotImplementedError, KeyError, AssertionError, AttributeError):
                pass  # not known in double precision: as it stands, then
        self.opaque = self.opaque or name != "bitcast_convert_type" or jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.inexact)  # type: ignore[attr-defined]
        narrow = [_cast(x, v.aval) for x, v in zip(inputs, eqn.invars, strict=True)]
        return [_widened(x) for x in jaxapi.bind(eqn.primitive, eqn.params, narrow)]

    def _params(self, eqn: JaxprEqn) -> dict[str, Any]:
        """Return parameters that name a dtype, or hold a jaxpr over one, in their wide form."""
        changed = {}
        for key, value in eqn.params.items():
            if isinstance(value, (jaxapi.Jaxpr, jaxapi.ClosedJaxpr)):
                retraced = self._retraced(jaxapi.closed(value))
                changed[key] = retraced if isinstance(value, jaxapi.ClosedJaxpr) else retraced.jaxpr
            else:
                changed[key] = wide(value) if _is_float_dtype(value) else value
        return changed

    def _retraced(self, closed: ClosedJaxpr) -> Any:
        avals = [jax.ShapeDtypeStruct(v.aval.shape, wide(v.aval.dtype)) for v in closed.jaxpr.invars]
        return jax.make_jaxpr(lambda *xs: self._evaluate(closed, xs))(*avals)


def _is_float_dtype(value: object) -> bool:
    if not isinstance(value, (np.dtype, type)):
        return False
    try:
        return bool(jnp.issubdtype(np.dtype(value), jnp.inexact))
    except TypeError:
        return False


def _cast(value: Any, aval: Any) -> Any:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or not hasattr(value, "dtype") or value.dtype == dtype or not jnp.issubdtype(dtype, jnp.inexact):
        return value
    return jnp.asarray(value).astype(dtype)


def _cond(evaluate: Callable[..., Any], params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
    index, *operands = inputs
    branches = [lambda *xs, b=b: tuple(evaluate(b, xs)) for b in params["branches"]]
    return tuple(jax.lax.switch(jnp.asarray(index, jnp.int32), branches, *operands))


def _scan(evaluate: Callable[..., Any], params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
    n_consts, n_carry = params["num_consts"], params["num_carry"]
    consts, carry, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]

    def body(state: Sequence[jax.Array], x: Sequence[jax.Array]) -> Any:
        results = evaluate(params["jaxpr"], [*consts, *state, *x])
        return tuple(results[:n_carry]), tuple(results[n_carry:])

    carry = [jnp.asarray(c) for c in carry]
    state, ys = jax.lax.scan(body, tuple(carry), tuple(xs), length=params["length"], reverse=params["reverse"])
    return (*state, *ys)


def _while(
    evaluate: Callable[..., Any], params: dict[str, Any], inputs: list[Any], turns: int | None = None, most: int = 0
) -> Sequence[Any]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body = inputs[:n_cond], inputs[n_cond : n_cond + n_body]
    state = tuple(jnp.asarray(s) for s in inputs[n_cond + n_body :])

    def going(s: Sequence[jax.Array]) -> jax.Array:
        return evaluate(params["cond_jaxpr"], [*of_cond, *s])[0]  # type: ignore[no-any-return]

    def body(s: Sequence[jax.Array]) -> Any:
        return tuple(evaluate(params["body_jaxpr"], [*of_body, *s]))

    def batched(s: Sequence[jax.Array]) -> Any:  # what has arrived waits for the others
        p = going(s)
        return tuple(
            jnp.where(jnp.reshape(p, p.shape + (1,) * (jnp.ndim(new) - p.ndim)), new, old) for new, old in zip(body(s), s, strict=True)
        )

    last: Sequence[Any]
    turn = batched if jaxapi.closed(params["cond_jaxpr"]).out_avals[0].ndim else body
    if turns is not None:
        last = jax.lax.fori_loop(0, turns, lambda _, s: body(s), state)
    elif most:
        _, last = jax.lax.while_loop(lambda c: (c[0] < most) & jnp.any(going(c[1])), lambda c: (c[0] + 1, turn(c[1])), (0, state))
    else:
        last = jax.lax.while_loop(lambda s: jnp.any(going(s)), turn, state)
    return last


def _linear_solve(evaluate: Callable[..., Any], params: dict[str, Any], inputs: list[Any]) -> Sequence[Any]:
    consts: dict[str, list[Any]] = {}
    start = 0
    for field in ("matvec", "vecmat", "solve", "transpose_solve"):
        size = getattr(params["const_lengths"], field)
        consts[field] = inputs[start : start + size]
        start += size

    def part(field: str) -> Callable[..., Any] | None:
        jaxpr = getattr(params["jaxprs"], field)
        return None if jaxpr is None else lambda xs: evaluate(jaxpr, [*consts[field], *xs])

    solve, back, matvec = part("solve"), part("transpose_solve"), part("matvec")
    assert solve is not None
    assert matvec is not None
    solution: Sequence[Any] = jax.lax.custom_linear_solve(
        matvec, inputs[start:], lambda _, xs: solve(xs), None if back is None else lambda _, xs: back(xs)
    )
    return solution


_SPECIAL: dict[str, Any] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "custom_linear_solve": _linear_solve,
    "reduce_precision": lambda evaluate, params, inputs: inputs,  # noqa: ARG005 - it rounds, and here nothing is rounded
}
