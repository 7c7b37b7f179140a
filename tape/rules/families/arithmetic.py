"""Arithmetic: sums, products, quotients, powers, choices between values, and changes of representation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters
from tape.rules.cotangents import cast
from tape.rules.registry import Cost, Example, elementwise, register

_MATRIX = (2, 3)
_PAIR = ((-2.0, 2.0), (-2.0, 2.0))


def _keep(mask: Any, ct: Any) -> Any:
    """Cotangent where the mask holds, zero elsewhere; also an infinite one is cut off."""
    return lax.select(mask, ct, lax.full_like(ct, 0))


elementwise("add", lambda ct, out, x, y, **_: (ct, ct), domain=_PAIR, source="d(x + y) = dx + dy", complex=True)
elementwise(
    "add_jaxvals",
    lambda ct, out, x, y, **_: (ct, ct),
    domain=_PAIR,
    source="d(x + y) = dx + dy (the sum that JAX's own transposition writes)",
    examples=[Example(lambda x, y: parameters.apply("add_jaxvals", {}, x, y)[0], (_MATRIX, _MATRIX))],
    complex=True,
)
elementwise("sub", lambda ct, out, x, y, **_: (ct, lambda: -ct), domain=_PAIR, source="d(x - y) = dx - dy", complex=True)
elementwise("neg", lambda ct, out, x, **_: (-ct,), domain=((-2.0, 2.0),), source="d(-x) = -dx", complex=True)
elementwise(
    "mul",
    lambda ct, out, x, y, **_: (lambda: ct * y, lambda: ct * x),
    domain=_PAIR,
    source="d(x y) = y dx + x dy",
    complex=True,
)
elementwise(
    "div",
    lambda ct, out, x, y, **_: (lambda: ct / y, lambda: -(ct * out) / y),
    domain=((-2.0, 2.0), (0.5, 2.0)),
    source="d(x / y) = dx / y - (x / y) dy / y",
    complex=True,
    kinks=(0.0, 1.0, -2.0),
)
elementwise(
    "rem",
    lambda ct, out, x, y, **_: (ct, lambda: -ct * lax.round((x - out) / y)),
    domain=((2.1, 2.9), (0.91, 0.99)),
    source="x rem y = x - y trunc(x / y), with the truncated quotient constant between jumps; (x - out) / y is that quotient up to rounding",
    kinks=(1.0, -3.0),
)


def _abs(ct: Any, out: Any, x: Any, **_: Any) -> tuple[Any, ...]:
    """Modulus: the conjugate direction of x in the plane; on the line the sign, +1 at zero."""
    if jnp.iscomplexobj(x):
        return (ct * (lax.conj(x) / lax.select(out == 0, lax.full_like(out, 1), out)),)
    return (lax.select(x >= 0, ct, -ct),)


elementwise(
    "abs",
    _abs,
    domain=((0.3, 2.0),),
    source="d|x| = sign(x) dx, with 1 at 0; d|z| = Re(conj(z) dz) / |z|, with 0 at 0",
    examples=[Example(lax.abs, (_MATRIX,)), Example(lambda x: lax.abs(-x), (_MATRIX,), "negative")],
    complex=True,
    kinks=(0.0, -1.0),
)
elementwise(
    "square",
    lambda ct, out, x, **_: (ct * (2 * x),),
    domain=((-2.0, 2.0),),
    source="d(x^2) = 2 x dx",
    complex=True,
    kinks=(0.0,),
)
elementwise(
    "integer_pow",
    lambda ct, out, x, *, y, **_: (ct * (y * lax.integer_pow(x, y - 1)) if y else None,),
    domain=((0.5, 2.0),),
    source="d(x^n) = n x^(n - 1) dx",
    examples=[Example(lambda x, n=n: lax.integer_pow(x, n), (_MATRIX,), f"power {n}") for n in (3, -1, -2, 7)],
    complex=True,
    kinks=(0.0,),
)


def _pow(ct: Any, out: Any, x: Any, y: Any, **_: Any) -> tuple[Any, ...]:
    """Power; an integer exponent carries no gradient, and zero as one gives no gradient to the base."""

    def base() -> Any:
        if jnp.issubdtype(jnp.result_type(y), jnp.inexact):
            return ct * (y * lax.pow(x, y - 1))
        factor = lax.convert_element_type(y, jnp.result_type(x))
        return ct * (factor * lax.pow(x, jnp.where(y == 0, 1, y) - 1))

    return base, lambda: ct * (lax.log(jnp.where(x == 0, 1, x)) * out)


elementwise(
    "pow",
    _pow,
    domain=((0.5, 2.0), (0.3, 2.5)),
    source="d(x^y) = y x^(y - 1) dx + x^y log(x) dy, where the second term is 0 at x = 0, y >= 0",
    examples=[
        Example(lax.pow, (_MATRIX, _MATRIX)),
        Example(lambda x: lax.pow(x, jnp.arange(6, dtype="int32").reshape(2, 3) - 2), (_MATRIX,), "integer exponent"),
    ],
    complex=True,
    kinks=(0.0, 1.0, -1.0, 2.0),
    cost=Cost.LOOPED,
)


def _share(ct: Any, out: Any, x: Any, y: Any) -> Any:
    """Share of ``x`` in the cotangent of the larger or smaller of two: all, half of it (a tie), or nothing."""
    mine = _keep(x == out, ct)
    return lax.select(x == y, mine * 0.5, mine)


for _name in ("max", "min"):
    elementwise(
        _name,
        lambda ct, out, x, y, **_: (lambda: _share(ct, out, x, y), lambda: _share(ct, out, y, x)),
        domain=_PAIR,
        source="the chosen argument gets the cotangent; two equal ones get half of it each",
        kinks=(0.0, 1.0, float("inf"), float("nan")),
    )

elementwise(
    "clamp",
    lambda ct, out, low, x, high, **_: (
        lambda: _keep((low > x) & (low < high), ct),
        lambda: _keep((x > low) & (x < high), ct),
        lambda: _keep(high < x, ct),
    ),
    domain=((-1.0, 0.0), (-2.0, 3.0), (1.0, 2.0)),
    source="the bound that is exceeded gets the cotangent, or x strictly between the bounds; nobody at a bound",
    examples=[
        Example(lax.clamp, (_MATRIX, _MATRIX, _MATRIX)),
        Example(lax.clamp, ((), _MATRIX, ()), "scalar bounds"),
    ],
    kinks=(0.0, 1.0, 2.0),
)


def _select_n(ct: Any, out: Any, which: Any, *cases: Any, **_: Any) -> tuple[Any, ...]:
    """Choice: every case gets the cotangent at the places where it was chosen."""
    nothing = lax.full_like(ct, 0)

    def share(number: int) -> Any:
        return lambda: lax.select_n(which, *[ct if i == number else nothing for i in range(len(cases))])

    return None, *map(share, range(len(cases)))


register(
    "select_n",
    _select_n,
    domain=((-2.0, 2.0), (-2.0, 2.0), (-2.0, 2.0)),
    source="linear in the cases: each gets the cotangent where it was chosen",
    examples=[
        Example(lambda x, y: lax.select_n(jnp.arange(6).reshape(2, 3) % 2 == 0, x, y), (_MATRIX, _MATRIX), "mask"),
        Example(lambda x, y: lax.select_n(jnp.asarray(True), x, y), (_MATRIX, _MATRIX), "scalar mask"),
        Example(lambda x, y, z: lax.select_n(jnp.arange(6, dtype="int32").reshape(2, 3) % 3, x, y, z), (_MATRIX,) * 3, "three cases"),
    ],
    complex=True,
    cost=Cost.FREE,
)
elementwise(
    "nextafter",
    lambda ct, out, x, y, **_: (ct, None),
    domain=((1.1, 1.9), (-1.9, -1.1)),
    source="one unit in the last place from x: x to within rounding, whatever y is",
)


def _complex_like(x: Any) -> Any:
    return lax.convert_element_type(x, jnp.result_type(x, jnp.complex64))


elementwise(
    "convert_element_type",
    lambda ct, out, x, **_: (cast(ct, jnp.result_type(x)),),
    domain=((0.2, 0.8),),
    source="identity up to rounding; transposed into the dtype of the input",
    examples=[
        Example(_complex_like, (_MATRIX,), "complex"),
        Example(lambda x: _complex_like(lax.square(_complex_like(x))), (_MATRIX,), "twice"),
        Example(lambda x: x * lax.convert_element_type(lax.convert_element_type(3 * x, "int32"), x.dtype), (_MATRIX,), "integer"),
    ],
)
elementwise(
    "reduce_precision",
    lambda ct, out, x, *, exponent_bits, mantissa_bits, **_: (
        lax.reduce_precision(ct, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits),
    ),
    domain=((-2.0, 2.0),),
    source="straight through: the identity, rounded as the value was",
    examples=[Example(lambda x: lax.reduce_precision(x, exponent_bits=11, mantissa_bits=52), (_MATRIX,))],
)
