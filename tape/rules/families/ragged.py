"""Products of ragged matrices: rows in groups, each group with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from tape.errors import RuleError
from tape.rules.registry import Cost, Example, register

_GROUP = -1  # the label of the groups' dimension


def _product(x: Any, y: Any, to: Sequence[int], like: Any, labels: tuple[list[int], list[int], int], sizes: Any, precision: Any) -> Any:
    """Multiply arrays whose dimensions have labels, of which the first has the ragged one; sum over what both have and ``to`` lacks."""
    of_x, of_y, ragged = labels
    both = [label for label in of_x if label in of_y]
    batch, contracted = [label for label in both if label in to], [label for label in both if label not in to]
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=tuple(
            (tuple(of_x.index(label) for label in part), tuple(of_y.index(label) for label in part)) for part in (contracted, batch)
        ),
        lhs_ragged_dimensions=(of_x.index(ragged),),
        rhs_group_dimensions=(of_y.index(_GROUP),) if _GROUP in of_y else (),
    )
    dtype = jnp.result_type(x, y)
    z = lax.ragged_dot_general(x.astype(dtype), y.astype(dtype), sizes, numbers, precision=precision)
    kept = [label for part in (of_x, of_y) for label in part if label not in both and label != _GROUP]
    order = [*([_GROUP] if ragged in contracted else []), *batch, *kept]
    return lax.transpose(z, [order.index(label) for label in to]).astype(like.dtype)


def _grouped(x: Any, y: Any) -> Any:
    return lax.ragged_dot(x, y, jnp.asarray([1, 3], "int32"))


def _along(x: Any, y: Any) -> Any:
    numbers = lax.RaggedDotDimensionNumbers((([0], [0]), ([], [])), [0], [])
    return lax.ragged_dot_general(x, y, jnp.asarray([2, 1], "int32"), numbers)


def _in_batches(x: Any, y: Any) -> Any:
    numbers = lax.RaggedDotDimensionNumbers((([2], [1]), ([0], [0])), [0], [])
    return lax.ragged_dot_general(x, y, jnp.asarray([1, 1], "int32"), numbers)


@register(
    "ragged_dot_general",
    source="each operand's cotangent is the ragged product of the result's with the other one: along the groups' rows, or over them",
    cost=Cost.HIGH,
    complex=False,
    examples=[
        Example(_grouped, ((4, 3), (2, 3, 2)), "rows"),
        Example(_along, ((3, 2), (3, 4)), "summed"),
        Example(_in_batches, ((2, 3, 2), (2, 2, 4)), "batches"),
    ],
)
def _ragged_dot_general(
    ct: Any,
    out: Any,
    x: Any,
    y: Any,
    sizes: Any,
    *,
    ragged_dot_dimension_numbers: Any,
    precision: Any = None,
    group_offset: Any = None,
    **_: Any,
) -> tuple[Any, ...]:
    """Product of two arrays, one dimension of the first being in groups: one that is kept, summed over, or of the batch."""
    if group_offset is not None:
        msg = "VJP rule of ragged_dot_general: products with a group_offset have no derivative here, nor in JAX"
        raise RuleError(msg)
    numbers = ragged_dot_dimension_numbers
    (over_x, over_y), (batch_x, batch_y) = numbers.dot_dimension_numbers
    of_x = list(range(x.ndim))
    of_y = [x.ndim + i for i in range(y.ndim)]
    for i, j in zip((*over_x, *batch_x), (*over_y, *batch_y), strict=True):
        of_y[j] = of_x[i]
    for j in numbers.rhs_group_dimensions:
        of_y[j] = _GROUP
    ragged = numbers.lhs_ragged_dimensions[0]
    kept = [label for part in (of_x, of_y) for label in part if (label in of_x) != (label in of_y) and label != _GROUP]
    of_ct = [*([_GROUP] if ragged in over_x else []), *batch_x, *kept]

    def first() -> Any:
        if ragged in over_x:
            return _product(y, ct, of_x, x, (of_y, of_ct, ragged), sizes, precision)
        return _product(ct, y, of_x, x, (of_ct, of_y, ragged), sizes, precision)

    return first, lambda: _product(x, ct, of_y, y, (of_x, of_ct, ragged), sizes, precision), None
