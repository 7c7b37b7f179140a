"""Arithmetic: sums, products, quotients, powers, choices between values, changes of representation, and the parts of complex numbers.

Of complex numbers a VJP is the transpose of the JVP as a real-linear map under Re(a b): nothing is conjugated.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules import parameters, plane, slopes
from tape.rules.cotangents import cast, wide
from tape.rules.registry import LINE, Cost, Example, elementwise, register

_MATRIX = (2, 3)
_PAIR = (LINE, LINE)


def _keep(mask: Any, ct: Any) -> Any:
    """Cotangent where the mask holds, zero elsewhere; also an infinite one is cut off."""
    return lax.select(mask, ct, lax.full_like(ct, 0))


elementwise("add", lambda ct, out, x, y, **_: (ct, ct), source="d(x + y) = dx + dy", domain=_PAIR)
elementwise(
    "add_jaxvals",
    lambda ct, out, x, y, **_: (ct, ct),
    source="d(x + y) = dx + dy (the sum that JAX's own transposition writes)",
    examples=[Example(lambda x, y: parameters.apply("add_jaxvals", {}, x, y)[0], (_MATRIX, _MATRIX))],
)
elementwise("sub", lambda ct, out, x, y, **_: (ct, lambda: -ct), source="d(x - y) = dx - dy", domain=_PAIR)
elementwise("neg", lambda ct, out, x, **_: (-ct,), source="d(-x) = -dx")
elementwise("mul", lambda ct, out, x, y, **_: (lambda: ct * y, lambda: ct * x), source="d(x y) = y dx + x dy", domain=_PAIR)
elementwise(
    "div",
    lambda ct, out, x, y, **_: (lambda: ct / y, lambda: -(ct * out) / y),
    source="d(x / y) = dx / y - (x / y) dy / y",
    domain=(LINE, (0.5, 2.0)),
    kinks=(0.0, 1.0, -2.0),
)
elementwise(
    "rem",
    lambda ct, out, x, y, **_: (ct, lambda: -ct * lax.round((x - out) / y)),
    source="x rem y = x - y trunc(x / y), the truncated quotient constant between jumps; (x - out) / y is that quotient up to rounding",
    domain=((2.1, 2.9), (0.91, 0.99)),
    kinks=(1.0, -3.0),
    complex=False,
)


@elementwise(
    "abs",
    source="d|x| = sign(x) dx, with 1 at 0; d|z| = Re(conj(z) dz) / |z|, with 0 at 0",
    domain=((0.3, 2.0),),
    kinks=(0.0, -1.0),
    examples=[Example(lax.abs, (_MATRIX,)), Example(lambda x: lax.abs(-x), (_MATRIX,), "negative")],
)
def _abs(ct: Any, out: Any, x: Any, **_: Any) -> Any:
    if jnp.iscomplexobj(x):
        return ct * (lax.conj(x) / lax.select(out == 0, lax.full_like(out, 1), out))
    return lax.select(x >= 0, ct, -ct)


elementwise("square", lambda ct, out, x, **_: (ct * (2 * x),), source="d(x^2) = 2 x dx", kinks=(0.0,))


def _integer_pow(ct: Any, out: Any, x: Any, *, y: int, **_: Any) -> Any:
    """Power by a whole number; in single for half precisions, where a higher power is out of range before the product is."""
    if not y:
        return None
    if x.dtype.itemsize > 2:
        return ct * (float(y) * (plane.power(x, y - 1) if y < 0 and jnp.iscomplexobj(x) else lax.integer_pow(x, y - 1)))
    return lax.convert_element_type(wide(ct) * (float(y) * lax.integer_pow(wide(x), y - 1)), x.dtype)


elementwise(
    "integer_pow",
    _integer_pow,
    source="d(x^n) = n x^(n - 1) dx",
    domain=((0.5, 2.0),),
    kinks=(0.0,),
    examples=[Example(lambda x, n=n: lax.integer_pow(x, n), (_MATRIX,), f"power {n}") for n in (3, -1, -2, 7)],
)


@elementwise(
    "pow",
    source="d(x^y) = y x^(y - 1) dx + x^y log(x) dy, where the second term is 0 at x = 0, y >= 0, and the first at x = y = 0",
    domain=((0.5, 2.0), (0.3, 2.5)),
    kinks=(0.0, 1.0, -1.0, 2.0),
    cost=Cost.LOOPED,
    examples=[
        Example(lax.pow, (_MATRIX, _MATRIX)),
        Example(lambda x: lax.pow(x, jnp.arange(6, dtype="int32").reshape(2, 3) - 2), (_MATRIX,), "integer exponent"),
    ],
)
def _pow(ct: Any, out: Any, x: Any, y: Any, **_: Any) -> tuple[Any, ...]:
    """Power; an integer exponent carries no gradient, and zero as one gives no gradient to the base."""

    def base() -> Any:
        if jnp.issubdtype(jnp.result_type(y), jnp.inexact):
            return ct * (y * lax.pow(jnp.where((x == 0) & (y == 0), 1, x), y - 1))  # x^0 is 1 at 0, too
        factor = lax.convert_element_type(y, jnp.result_type(x))
        return ct * (factor * lax.pow(x, jnp.where(y == 0, 1, y) - 1))

    return base, lambda: ct * (lax.log(jnp.where(x == 0, 1, x)) * slopes.power(out, x, y))


def _share(ct: Any, out: Any, x: Any, y: Any) -> Any:
    """Share of ``x`` in the cotangent of the larger or smaller of two: all, half of it (a tie), or nothing."""
    mine = _keep(x == out, ct)
    return lax.select(x == y, mine * 0.5, mine)


for _name in ("max", "min"):
    elementwise(
        _name,
        lambda ct, out, x, y, **_: (lambda: _share(ct, out, x, y), lambda: _share(ct, out, y, x)),
        source="the chosen argument gets the cotangent; two equal ones get half of it each",
        domain=_PAIR,
        kinks=(0.0, 1.0, float("inf"), float("nan")),
        complex=False,
    )

elementwise(
    "clamp",
    lambda ct, out, low, x, high, **_: (
        lambda: _keep((low > x) & (low < high), ct),
        lambda: _keep((x > low) & (x < high), ct),
        lambda: _keep(high < x, ct),
    ),
    source="the bound that is exceeded gets the cotangent, or x strictly between the bounds; nobody at a bound",
    domain=((-1.0, 0.0), (-2.0, 3.0), (1.0, 2.0)),
    kinks=(0.0, 1.0, 2.0),
    complex=False,
    examples=[Example(lax.clamp, (_MATRIX, _MATRIX, _MATRIX)), Example(lax.clamp, ((), _MATRIX, ()), "scalar bounds")],
)


@register(
    "select_n",
    source="linear in the cases: each gets the cotangent where it was chosen",
    cost=Cost.FREE,
    examples=[
        Example(lambda x, y: lax.select_n(jnp.arange(6).reshape(2, 3) % 2 == 0, x, y), (_MATRIX, _MATRIX), "mask"),
        Example(lambda x, y: lax.select_n(jnp.asarray(True), x, y), (_MATRIX, _MATRIX), "scalar mask"),
        Example(lambda x, y, z: lax.select_n(jnp.arange(6, dtype="int32").reshape(2, 3) % 3, x, y, z), (_MATRIX,) * 3, "three cases"),
    ],
)
def _select_n(ct: Any, out: Any, which: Any, *cases: Any, **_: Any) -> tuple[Any, ...]:
    """Choice: every case gets the cotangent at the places where it was chosen."""
    nothing = lax.full_like(ct, 0)

    def share(number: int) -> Any:
        return lambda: lax.select_n(which, *[ct if i == number else nothing for i in range(len(cases))])

    return None, *map(share, range(len(cases)))


elementwise(
    "nextafter",
    lambda ct, out, x, y, **_: (ct, None),
    source="one unit in the last place from x: x to within rounding, whatever y is",
    domain=((1.1, 1.9), (-1.9, -1.1)),
    complex=False,
)


def _complex_like(x: Any) -> Any:
    return lax.convert_element_type(x, jnp.result_type(x, jnp.complex64))


elementwise(
    "convert_element_type",
    lambda ct, out, x, **_: (cast(ct, jnp.result_type(x)),),
    source="identity up to rounding; transposed into the dtype of the input",
    domain=((0.2, 0.8),),
    complex=False,
    examples=[
        Example(_complex_like, (_MATRIX,), "complex"),
        Example(lambda x: _complex_like(lax.square(_complex_like(x))), (_MATRIX,), "twice"),
        Example(lambda x: x * lax.convert_element_type(lax.convert_element_type(3 * x, "int32"), x.dtype), (_MATRIX,), "integer"),
    ],
)
elementwise(
    "reduce_precision",
    lambda ct, out, x, *, exponent_bits, mantissa_bits, **_: lax.reduce_precision(ct, exponent_bits, mantissa_bits),
    source="straight through: the identity, rounded as the value was",
    complex=False,
    examples=[Example(lambda x: lax.reduce_precision(x, exponent_bits=11, mantissa_bits=52), (_MATRIX,))],
)


def _curved(part: Any) -> Any:
    """Part of a number of the plane that both arguments move, so that the transposed map is seen through curvature."""
    return lambda x, y: part(lax.complex(lax.sin(x) * y, x * lax.cos(y)))


elementwise(
    "complex",
    lambda ct, out, x, y, **_: (lambda: lax.real(ct), lambda: -lax.imag(ct)),
    source="z = x + i y: Re(ct (dx + i dy)) = Re(ct) dx - Im(ct) dy",
    complex=False,
    examples=[Example(f, (_MATRIX, _MATRIX), name) for f, name in ((lax.complex, ""), (_curved(lax.square), "squared"))],
)
elementwise(
    "real",
    lambda ct, out, z, **_: (lax.complex(ct, lax.full_like(ct, 0)),),
    source="Re: ct Re(dz) = Re(ct dz)",
    complex=False,
    examples=[Example(_curved(lax.real), (_MATRIX, _MATRIX))],
)
elementwise(
    "imag",
    lambda ct, out, z, **_: (lax.complex(lax.full_like(ct, 0), -ct),),
    source="Im: ct Im(dz) = Re(-i ct dz)",
    complex=False,
    examples=[Example(_curved(lax.imag), (_MATRIX, _MATRIX))],
)
elementwise(
    "conj",
    lambda ct, out, z, **_: (lax.conj(ct) if jnp.iscomplexobj(z) else lax.real(ct),),
    source="conj: Re(ct conj(dz)) = Re(conj(ct) dz); of a real number it is the embedding into the plane",
    complex=False,
    examples=[Example(_curved(lax.conj), (_MATRIX, _MATRIX), "complex"), Example(lambda x, y: lax.conj(x * y), (_MATRIX, _MATRIX), "real")],
)
