"""What a sweep starts from: its roots, and a seed for each of them, checked before anything is swept."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tape.configuration import sixty_four_bits
from tape.errors import (
    SeedDtypeError,
    SeedError,
    TapeTypeError,
    TapeValueError,
    UnconnectedError,
    UnrecordedGradientError,
)
from tape.graph import boundary
from tape.graph.kinds import why_unrecorded
from tape.graph.segment import Handle, itself, made_at
from tape.jaxapi import X64
from tape.ops.kernel import Op, intern_op
from tape.recording import record


def wide(roots: Sequence[Any]) -> contextlib.ExitStack:
    """Return a context that allows the dtypes of the roots, should JAX's configuration no longer do so; a sweep adds its other settings."""
    settings = contextlib.ExitStack()
    if not X64.value and any(root._place.kind.aval.dtype in _WIDE for root in roots):
        settings.enter_context(sixty_four_bits())
    return settings


_WIDE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})


def describe(value: object) -> str:
    """Name, shape and dtype of a Variable, for messages; of an array, shape and dtype, and of anything else its type.

    Example:
        >>> import tape.extend
        >>> tape.extend.describe(tape.Variable([1.0, 2.0], name="w"))
        "'w', shape (2,), dtype float32"

    """
    if not isinstance(value, Handle):
        given: Any = value
        return (
            f"shape {given.shape}, dtype {given.dtype}" if isinstance(value, (jax.Array, np.ndarray, np.generic)) else type(value).__name__
        )
    aval = value._place.kind.aval
    name = f"{value._extra.name!r}, " if value._extra is not None and value._extra.name else ""
    return f"{name}shape {aval.shape}, dtype {aval.dtype}"


def variables_of_tree(function: str, argument: str, given: object) -> tuple[list[Any], Any]:
    """Return the Variables of an argument that takes one, a sequence or a pytree of them, and the tree (None: one, or a flat sequence)."""
    if isinstance(given, Handle) or _is_flat(given):
        return variables(function, argument, given), None
    paths, tree = jax.tree_util.tree_flatten_with_path(given, is_leaf=lambda x: isinstance(x, Handle))
    for path, v in paths:
        if not isinstance(v, Handle):
            place = f"{argument}{jax.tree_util.keystr(path)}"
            msg = f"{function}: {place} must be a tape.Variable, or a pytree or sequence of them, got {type(v).__name__}"
            raise TapeTypeError(msg)
    return [itself(v) for _, v in paths], tree


def _is_flat(given: object) -> bool:
    """Tell whether an argument is a sequence of single things, or what is not a pytree at all."""
    if given.__class__ is list or given.__class__ is tuple:
        return all(isinstance(v, Handle) or jax.tree_util.all_leaves([v]) or v is None for v in given)
    return given is None or jax.tree_util.all_leaves([given])


def variables(function: str, argument: str, given: object) -> list[Any]:
    """Return the Variables of an argument that takes one or a sequence."""
    if isinstance(given, Handle):
        return [itself(given)]
    if isinstance(given, (jax.Array, np.ndarray, str, bytes)) or not hasattr(given, "__iter__"):
        msg = f"{function}: {argument} must be a tape.Variable or a sequence of them, got {type(given).__name__}{_repair(argument, given)}"
        raise TapeTypeError(msg)
    listed = list(given)
    for i, v in enumerate(listed):
        if not isinstance(v, Handle):
            repair = f"; pass its values: list({argument}.values())" if isinstance(given, dict) else _repair(argument, v)
            msg = f"{function}: {argument}[{i}] must be a tape.Variable, got {type(v).__name__}{repair}"
            raise TapeTypeError(msg)
    return [itself(v) for v in listed]


def _repair(argument: str, given: object) -> str:
    """Say what to write where something stands for a Variable."""
    if not isinstance(given, (jax.Array, np.ndarray, np.generic, float, int, complex)):
        return "; use tape.grad(f)(x) for the gradient of a function" if callable(given) and argument == "outputs" else ""
    if argument == "outputs":
        return "; pass what the ops returned, before .value, .numpy(), .item() or float()"
    return "; make it with tape.Variable(...) before the outputs are computed of it"


def require_grad(function: str, argument: str, variable: Handle) -> None:
    """Refuse a root or an input that no gradient can be computed of."""
    kind = variable._place.kind
    if kind.requires_grad:
        return
    if kind.unrecorded == boundary.CUT:
        msg = f"{function}: a root ({describe(variable)}) does not require grad: {boundary.CUT}"
        raise TapeValueError(msg)
    if kind.unrecorded:
        reason = why_unrecorded(kind.unrecorded, made_at(variable._place, variable._segment))
        msg = f"{function}: {argument} has a value ({describe(variable)}) that has no derivative on the tape: {reason}"
        raise UnrecordedGradientError(msg)
    if argument == "inputs":
        msg = f"{function}: an input ({describe(variable)}) does not require grad; make it with tape.Variable(..., requires_grad=True)"
        raise UnconnectedError(msg)
    msg = (
        f"{function}: a root ({describe(variable)}) does not require grad: it depends on no Variable that does, or it was computed under "
        "no_grad(), detached, came out of a JAX transformation (so does what ctx keeps of a forward inside one, a checkpoint or a loop), "
        "or is of integer or boolean dtype; compute it from a tape.Variable with requires_grad=True"
    )
    raise TapeValueError(msg)


def seeds_of(function: str, roots: list[Any], given: object, *, required: bool = True) -> tuple[list[Any], list[Any]]:
    """Check all roots and seeds; return one seed per root (None: ones) and the roots whose assigned ``.grad`` is used up."""
    if not roots:
        msg = f"{function}: outputs is empty; pass at least one Variable"
        raise TapeValueError(msg)
    if given is None:
        listed: list[Any] = [None] * len(roots)
    elif len(roots) == 1 and (isinstance(given, (Handle, jax.Array, np.ndarray, np.generic)) or not hasattr(given, "__len__")):
        listed = [given]
    elif not isinstance(given, (list, tuple)):
        msg = f"{function}: grad_outputs must be a sequence of {len(roots)} seeds, one per root, got {type(given).__name__}"
        raise SeedError(msg)
    else:
        listed = list(given)
    if len(listed) != len(roots):
        msg = f"{function}: {len(roots)} roots but {len(listed)} grad_outputs; pass one seed (or None) per root"
        raise SeedError(msg)
    seeds: list[Any] = []
    consumed: list[Any] = []
    for i, (root, seed) in enumerate(zip(roots, listed, strict=True)):
        if required or root._place.kind.unrecorded:
            require_grad(function, "outputs", root)
        extra = root._extra
        if seed is None and extra is not None and extra.assigned and root._segment is not None and all(root is not r for r in consumed):
            seed = extra.grad  # noqa: PLW2901
            consumed.append(root)
        seeds.append(seed_of(function, i, root, seed))
    return seeds, consumed


def seed_of(function: str, i: int, root: Handle, seed: Any) -> Any:
    """Check a seed; return it in the shape and dtype of its root (None: ones)."""
    aval = root._place.kind.aval
    if seed is None:
        if aval.size != 1:
            ones = "tape.numpy.ones_like(root)"
            repair = f"write root.backward({ones})" if function == "backward" else f"pass {ones} as its seed"
            msg = (
                f"{function}: root {i} has shape {aval.shape}, so it needs a seed; {repair} for the gradient of its sum, or reduce it to "
                "one number first"
            )
            raise SeedError(msg)
        return None
    scalar = isinstance(seed, (bool, int, float, complex))
    if not isinstance(seed, (Handle, jax.Array, np.ndarray, np.generic)) and not scalar:
        msg = f"{function}: the seed of root {i} must be a Variable, an array or a Python number, got {type(seed).__name__}"
        raise TapeTypeError(msg)
    if not isinstance(seed, Handle):
        seed = record.constant_from(f"{function}: the seed of root {i}", np.asarray(seed) if isinstance(seed, np.generic) else seed)
    given = seed._place.kind.aval
    if given.shape != aval.shape and not (scalar and aval.size == 1):
        shapes = f"has shape {given.shape}, but the root has shape {aval.shape}"
        msg = f"{function}: the seed of root {i} {shapes}; pass a seed of the root's shape"
        raise SeedError(msg)
    if jnp.issubdtype(given.dtype, jnp.complexfloating) and not jnp.issubdtype(aval.dtype, jnp.complexfloating):
        msg = f"{function}: the seed of root {i} has dtype {given.dtype}, but the root is real ({aval.dtype}); pass its real part"
        raise SeedDtypeError(msg)
    if not (jnp.issubdtype(given.dtype, jnp.number) or given.dtype == bool):
        msg = f"{function}: the seed of root {i} has dtype {given.dtype}; pass numbers"
        raise SeedDtypeError(msg)
    if given.dtype != aval.dtype or given.shape != aval.shape:
        seed = record.record(_cast(aval.shape, aval.dtype), (seed,))
    return seed


def _cast(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Op:
    return intern_op(("seed", shape, dtype), lambda: Op("seed", lambda x: jnp.reshape(x, shape).astype(dtype)))
