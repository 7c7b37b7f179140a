"""Complex numbers and their parts: a VJP is the transpose of the JVP as a real-linear map under Re(a b), nothing is conjugated."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.rules.registry import Example, elementwise

_SHAPE = (2, 3)
_PLANE = ((-2.0, 2.0), (-2.0, 2.0))


def _curved(part: Any) -> Any:
    """Part of a number of the plane that both arguments move, so that the transposed map is seen through curvature."""
    return lambda x, y: part(lax.complex(lax.sin(x) * y, x * lax.cos(y)))


elementwise(
    "complex",
    lambda ct, out, x, y, **_: (lambda: lax.real(ct), lambda: -lax.imag(ct)),
    domain=_PLANE,
    source="z = x + i y: Re(ct (dx + i dy)) = Re(ct) dx - Im(ct) dy",
    examples=[
        Example(lax.complex, (_SHAPE, _SHAPE)),
        Example(lambda x, y: lax.square(lax.complex(x, y)), (_SHAPE, _SHAPE), "squared"),
    ],
)
elementwise(
    "real",
    lambda ct, out, z, **_: (lax.complex(ct, lax.full_like(ct, 0)),),
    domain=_PLANE,
    source="Re: ct Re(dz) = Re(ct dz)",
    examples=[Example(_curved(lax.real), (_SHAPE, _SHAPE))],
)
elementwise(
    "imag",
    lambda ct, out, z, **_: (lax.complex(lax.full_like(ct, 0), -ct),),
    domain=_PLANE,
    source="Im: ct Im(dz) = Re(-i ct dz)",
    examples=[Example(_curved(lax.imag), (_SHAPE, _SHAPE))],
)
elementwise(
    "conj",
    lambda ct, out, z, **_: (lax.conj(ct) if jnp.iscomplexobj(z) else lax.real(ct),),
    domain=_PLANE,
    source="conj: Re(ct conj(dz)) = Re(conj(ct) dz); of a real number it is the embedding into the plane",
    examples=[
        Example(_curved(lax.conj), (_SHAPE, _SHAPE), "complex"),
        Example(lambda x, y: lax.conj(x * y), (_SHAPE, _SHAPE), "real"),
    ],
)
