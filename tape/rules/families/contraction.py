"""Contraction: the general dot product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tape.rules.cotangents import cast
from tape.rules.registry import Cost, Example, register


class _Operand:
    """One operand with its axes: shared with the other one (batch, contracted), its own (free), and where those are in the result."""

    __slots__ = ("batch", "contracted", "free", "in_result", "value")

    def __init__(self, value: Any, contracted: Sequence[int], batch: Sequence[int], first: int) -> None:
        self.value = value
        self.contracted = contracted
        self.batch = batch
        self.free = [d for d in range(value.ndim) if d not in contracted and d not in batch]
        self.in_result = range(first, first + len(self.free))


def _dot(
    contract: tuple[Sequence[int], Sequence[int]], batch: tuple[Sequence[int], Sequence[int]] = ((), ()), **options: Any
) -> Callable[..., Any]:
    return lambda x, y: lax.dot_general(x, y, (contract, batch), **options)


def _widened(x: Any, y: Any) -> Any:
    return lax.dot(x, y, preferred_element_type=jnp.promote_types(x.dtype, jnp.float32))


@register(
    "dot_general",
    source="bilinear: d(x . y) = dx . y + x . dy",
    cost=Cost.HIGH,
    examples=[
        Example(jnp.matmul, ((2, 3), (3, 4)), "matrices"),
        Example(jnp.matmul, ((3,), (3,)), "vectors"),
        Example(jnp.matmul, ((2, 3, 2), (2, 2, 4)), "batch of matrices"),
        Example(_dot(((1, 2), (2, 0))), ((2, 3, 4), (4, 5, 3)), "two contracted, crossed"),
        Example(_dot(((3, 1), (1, 0)), ((2,), (3,))), ((2, 3, 4, 5), (3, 5, 2, 4)), "batch inside"),
        Example(_dot(((), ())), ((2,), (3, 2)), "outer product"),
        Example(_dot(((0,), (1,)), ((1, 2), (2, 0))), ((2, 3, 4), (4, 2, 3)), "batch only"),
        Example(lambda x, y: jnp.einsum("abc,cdb,ad->b", x, y, x[:, 0]), ((2, 3, 4), (4, 4, 3)), "einsum"),
        Example(_dot(((1,), (0,)), precision=lax.Precision.HIGHEST), ((2, 3), (3, 2)), "precision"),
        Example(_widened, ((2, 3), (3, 2)), "preferred type"),
        Example(lambda x, y: lax.dot(x, jnp.real(y)), ((2, 3), (3, 2)), "complex and real"),
    ],
)
def _dot_general(ct: Any, out: Any, lhs: Any, rhs: Any, *, dimension_numbers: Any, precision: Any = None, **_: Any) -> tuple[Any, ...]:
    """Contract the cotangent with the other operand, over the axes that only that one has."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = dimension_numbers
    left = _Operand(lhs, lhs_contracted, lhs_batch, len(lhs_batch))
    right = _Operand(rhs, rhs_contracted, rhs_batch, len(lhs_batch) + len(left.free))
    return lambda: _cotangent(ct, left, right, precision), lambda: _cotangent(ct, right, left, precision)


def _cotangent(ct: Any, mine: _Operand, other: _Operand, precision: Any) -> Any:
    """Cotangent of ``mine``: axes arrive as batch, free, contracted (in the other's order) and go back to their places."""
    numbers = ((other.in_result, other.free), (range(len(mine.batch)), other.batch))
    contracted = (axis for _, axis in sorted(zip(other.contracted, mine.contracted, strict=True)))
    arrived = [*mine.batch, *mine.free, *contracted]
    grad = lax.dot_general(ct, other.value, numbers, precision=precision, out_sharding=_placement(mine.value, arrived))
    places = [arrived.index(d) for d in range(len(arrived))]
    return cast(grad if places == sorted(places) else lax.transpose(grad, places), mine.value.dtype)


def _placement(x: Any, axes: Sequence[int]) -> NamedSharding | None:
    """Sharding of ``x``, its axes permuted, on a mesh with explicit axes: contracting sharded axes leaves open how its cotangent lies."""
    sharding = jax.typeof(x).sharding
    if AxisType.Explicit not in (sharding.mesh.axis_types or ()):
        return None
    spec: Any = PartitionSpec
    return NamedSharding(sharding.mesh, spec(*(sharding.spec[d] for d in axes)))
