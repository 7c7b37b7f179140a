"""A ``tape.Function`` under ``jax.vmap``: its own ``vmap`` computes the outputs of a whole batch, in the place of a mapped forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from tape import jaxapi
from tape.errors import RuleError
from tape.functions.definitions import check_mapping
from tape.functions.returned import outputs_of
from tape.functions.tracking import dimensions, refilled
from tape.programs.program import look
from tape.recording import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["MapInfo", "mapped"]


class MapInfo:
    """What a ``vmap`` is told besides its arguments.

    Attributes:
        batch_size: how many calls the one call stands for.
        keyword_dims: by name, where the arrays of keyword arguments have their further axis: as ``in_dims`` for positional ones.

    """

    __slots__ = ("batch_size", "keyword_dims")

    def __init__(self, batch_size: int, keyword_dims: dict[str, Any]) -> None:
        self.batch_size = batch_size
        self.keyword_dims = keyword_dims

    def __repr__(self) -> str:
        return f"MapInfo(batch_size={self.batch_size}, keyword_dims={self.keyword_dims})"


def mapped(
    function: Any, single: Callable[..., list[Any]], stripped: Any, avals: Sequence[Any], tree: Any, arrays: Sequence[Any]
) -> list[Any]:
    """Return ``single(*arrays)``; where ``jax.vmap`` maps that, the function's own ``vmap`` computes it.

    Args:
        function: the ``tape.Function``.
        single: its forward, as a function of arrays that returns arrays.
        stripped: its arguments without their arrays.
        avals: shapes and dtypes of its outputs.
        tree: their tree.
        arrays: the arrays of its arguments.

    """
    if not any(isinstance(x, jaxapi.Tracer) for x in arrays):
        return single(*arrays)  # nobody maps it, and the forward may look at values
    one = jaxapi.custom_vmap(single)

    def rule(size: int, flags: Sequence[bool], *batch: Any) -> Any:
        args, kwargs = refilled(stripped, [record.leaf(x) for x in batch])
        in_dims, keyword_dims = dimensions(stripped, [0 if flag else None for flag in flags])
        given = (MapInfo(size, keyword_dims), in_dims, *args)
        check_mapping(function, given, kwargs)
        return _checked(function, function.vmap(*given, **kwargs), size, avals, tree)

    one.def_vmap(rule)
    return list(one(*arrays))


def _checked(function: Any, returned: Any, size: int, avals: Sequence[Any], tree: Any) -> tuple[list[Any], list[bool]]:
    """Return what a ``vmap`` gave as arrays with the further axis first, and which of them have it.

    Raises:
        RuleError: it is not a pair of outputs and their axes, or one of the outputs is not a batch of what the forward returns.

    """
    name = f"{function.__name__}.vmap"
    if not isinstance(returned, tuple) or len(returned) != len(("outputs", "out_dims")):
        what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
        msg = f"{name} must return (outputs, out_dims), got {what}; return the outputs, and for each the axis of the batch (None: it has none)"
        raise RuleError(msg)
    outputs, found = outputs_of(function, returned[0], "vmap")
    if found is None:
        found = _ONE
    if found != (_ONE if tree is None else tree):
        msg = f"{name} returned outputs of the structure {found}, but forward returns {_ONE if tree is None else tree}; return the same structure"
        raise RuleError(msg)
    try:
        dims = jax.tree.leaves(
            jax.tree.broadcast(returned[1], jax.tree.unflatten(found, range(len(outputs))), is_leaf=_is_none), is_leaf=_is_none
        )
    except ValueError:
        dims = []
    if len(dims) != len(outputs):
        msg = f"{name} returned out_dims {returned[1]!r} for {len(outputs)} outputs; return one axis per output, or one for all (None: no axis)"
        raise RuleError(msg)
    arrays = []
    for i, (v, dim, aval) in enumerate(zip(outputs, dims, avals, strict=True)):
        got = v._place.kind.aval
        if dim is not None and (dim.__class__ is not int or not -len(got.shape) <= dim < len(got.shape)):
            msg = f"{name} returned {dim!r} as the axis of output {i}, which has shape {got.shape}; return the axis of the batch, or None"
            raise RuleError(msg)
        at = None if dim is None else dim % len(got.shape)
        expected = aval.shape if at is None else (*aval.shape[:at], size, *aval.shape[at:])
        if (got.shape, got.dtype) != (expected, aval.dtype):
            msg = (
                f"{name} returned shape {got.shape}, dtype {got.dtype} as output {i} with the batch at axis {dim}, but {size} outputs of "
                f"forward there have shape {expected}, dtype {aval.dtype}"
            )
            raise RuleError(msg)
        arrays.append(look(v) if at is None else jnp.moveaxis(look(v), at, 0))
    return arrays, [dim is not None for dim in dims]


_ONE = jax.tree.structure(0)


def _is_none(x: Any) -> bool:
    return x is None
