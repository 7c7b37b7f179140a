"""Elementwise arithmetic and elementary functions."""

from __future__ import annotations

from jax import lax

from tape.rules.registry import register

register(
    "sin",
    lambda ct, out, x, **_: (lambda: ct * lax.cos(x),),
    domain=((-3.0, 3.0),),
    source="d sin(x) = cos(x) dx",
    complex=True,
    elementwise=True,
)
register(
    "mul",
    lambda ct, out, x, y, **_: (lambda: ct * y, lambda: ct * x),
    domain=((-2.0, 2.0), (-2.0, 2.0)),
    source="product rule",
    complex=True,
    elementwise=True,
)
