"""Mapping: a function of one example becomes one of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax

from tape.callables.higher_order import invoke
from tape.errors import saying, taking
from tape.graph.trees import leaves_of, mapped, variables_in
from tape.programs.program import look
from tape.transforms.inputs import check_callable

P = ParamSpec("P")
R = TypeVar("R")


@taking("vmap")
def vmap(
    fun: Callable[P, R],
    in_axes: int | Sequence[Any] | None = 0,
    out_axes: object = 0,
    *,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | tuple[Hashable, ...] | None = None,
) -> Callable[P, R]:
    """Return a function that maps ``fun`` over an axis of its arguments; a call is one entry of the tape, through which gradients flow.

    Args:
        fun: a function of the tape over pytrees.  It is traced at every call (a module of :mod:`interop.equinox` once), so it may not look
            at values; Variables that it captures are not mapped, and get their gradients.  It may take gradients itself:
            ``tape.vmap(tape.grad(loss))`` gives one per example.
        in_axes: which axis of each positional argument is mapped: an int, None (not mapped), or a tuple of them or of trees of them, as for
            ``jax.vmap``.  Keyword arguments are mapped over their first axis.
        out_axes: where the mapped axis appears in the results: an int, None (for what is not mapped), or a tree of them.
        axis_name: what collectives (``tape.lax.psum``) call the axis.
        axis_size: how long the axis is, where no argument says it.
        spmd_axis_name: as for ``jax.vmap``.

    Returns:
        A function of the same arguments.  Arrays come back for arrays, unless Variables that ``fun`` captures require grad; otherwise
        Variables.

    Raises:
        TapeTypeError: ``fun`` cannot be called, or ``in_axes`` is not an int, tuple or list.
        TapeValueError: the axes to map differ in length, or are not there.
        ConcretizationError: ``fun`` looked at the value of a Variable.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> w = tape.Variable([1.0, 2.0])
        >>> x = tnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> tape.vmap(tape.grad(lambda w, x: (w @ x) ** 2), in_axes=(None, 0))(w, x).tolist()
        [[2.0, 0.0], [6.0, 6.0], [0.0, 4.0]]
        >>> tape.vmap(lambda x: w @ x)(x).sum().backward()
        >>> w.grad.tolist()
        [2.0, 2.0]

    """
    check_callable("vmap", fun)
    options: dict[str, Any] = {"axis_name": axis_name, "axis_size": axis_size, "spmd_axis_name": spmd_axis_name}
    if not (in_axes.__class__ is int is out_axes.__class__ and axis_name is axis_size is spmd_axis_name is None):
        saying(jax.vmap, "vmap")(fun, in_axes, out_axes, **options)  # it checks its options
    name = f"vmap({getattr(fun, '__name__', type(fun).__name__)})"

    def apply(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        return jax.vmap(body, in_axes, out_axes, **options)(*args, **kwargs)

    own = getattr(fun, "__tape_vmap__", None)  # of a bridge's module: an op that is traced once
    recorded = None if own is None else own(in_axes, out_axes, options)

    @functools.wraps(fun)
    def vectorized(*args: object, **kwargs: object) -> object:
        result = invoke(apply, name, (fun, args, kwargs), {}) if recorded is None else recorded(*args, **kwargs)
        given = variables_in((args, kwargs))
        if given or any(x._place.kind.requires_grad for x in leaves_of(result)):
            return result
        return mapped(look, result)

    return vectorized  # type: ignore[return-value]
