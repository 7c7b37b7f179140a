"""What users call to sweep: :func:`backward` and :func:`gradients`.

This module checks arguments, makes seeds, and hands gradients out; the sweep itself is :mod:`tape.sweep`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from tape import boundary, emission, record
from tape.accumulation import additions, assign, awaited
from tape.configuration import sixty_four_bits
from tape.errors import (
    SeedDtypeError,
    SeedError,
    TapeTypeError,
    TapeValueError,
    UnconnectedError,
    UnrecordedGradientError,
)
from tape.jaxapi import X64
from tape.kernel import Op
from tape.program import run_pending
from tape.recall import call_of
from tape.replay import remember, replayed
from tape.segment import LOCAL, Handle, in_mode
from tape.sweep import Sweep, target_of
from tape.trie import RECORD, SWEEP

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["backward", "gradients"]


def backward(
    outputs: Any,
    grad_outputs: Any = None,
    *,
    inputs: Any = None,
    ignore: Any = (),
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> None:
    """Sweep back from ``outputs`` and add the gradients to the ``.grad`` of the leaves.

    Args:
        outputs: the roots: a Variable or a sequence of them, of any shapes.
        grad_outputs: one seed per root, of its root's shape; None (as a whole or for a root) is the default: ones for a root of
            size 1, or the gradient assigned to the root's ``.grad``.
        inputs: Variables that receive ``.grad``, leaves or not; None for all leaves that require grad.
        ignore: Variables for which nothing is computed or propagated.
        retain_graph: keep what was swept, so that it can be swept again; None means ``create_graph``.
        create_graph: record the sweep, so that gradients can be differentiated.

    Raises:
        SeedError: a seed is missing or has the wrong shape, or their number differs from the roots'.
        SeedDtypeError: a complex seed for a real root.
        TapeValueError: a root does not require grad.
        ReleasedTapeError: an earlier sweep released a part that this one needs.
        UnrecordedGradientError: a gradient taken without ``create_graph`` would be differentiated.

    Example:
        >>> import tape
        >>> x = tape.Variable([1.0, 2.0])
        >>> tape.backward((x * x).sum())
        >>> x.grad.numpy()
        array([2., 4.], dtype=float32)

    """
    plain = (
        isinstance(outputs, Handle)
        and grad_outputs is None
        and inputs is None
        and ignore.__class__ is tuple
        and not ignore
        and not retain_graph
        and not create_graph
    )
    if plain and replayed(outputs):
        return
    pending = LOCAL.segment()
    start = None if pending is None else pending.state
    entered = 0 if pending is None else len(pending.leaves)
    roots = _variables("backward", "outputs", outputs)
    with contextlib.ExitStack() as settings:
        if _need_sixty_four_bits(roots):
            settings.enter_context(sixty_four_bits())
        seeds, consumed = _seeds("backward", roots, grad_outputs)
        targets = None if inputs is None else _variables("backward", "inputs", inputs)
        ignored = _variables("backward", "ignore", ignore)
        if targets is not None:
            for target in targets:
                _require_grad("backward", "inputs", target)
        sweep = Sweep(None if targets is None else map(target_of, targets), map(target_of, ignored), create_graph)
        sweep.run(roots, seeds, settings)
        made = in_mode(RECORD if create_graph else SWEEP, additions, sweep.gradients, targets)
        for addition in made:
            boundary.check_no_leak("backward", addition.variable, addition.total)
        if plain and pending is not None and start is not None and outputs._segment is pending and not consumed:
            remember(outputs, pending, start, entered, sweep, made)
        retain = create_graph if retain_graph is None else retain_graph
        waits = plain and pending is not None and outputs._segment is pending and not pending.released and awaited(made)
        with contextlib.nullcontext() if retain else sweep.releasing():
            segment = LOCAL.segment()
            if segment is not None and not waits:
                run_pending(segment, "backward")
            assign(made, consumed, recorded=create_graph)
    for variable, *_ in made:
        hooks = variable._extra.post_hooks
        for key in list(hooks):
            if key in hooks:
                hooks[key](variable)


def gradients(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    unconnected: str = "raise",
    retain_graph: bool | None = None,
    create_graph: bool = False,
) -> Any:
    """Gradients of ``outputs`` with respect to ``inputs``; no ``.grad`` is touched.

    Args:
        outputs: the roots: a Variable or a sequence of them, of any shapes.
        inputs: a Variable or a sequence of them, leaves or not.
        grad_outputs: one seed per root, as for :func:`backward`.
        unconnected: what to do about an input on which no output depends: ``"raise"``, ``"zero"`` or ``"none"``.
        retain_graph: keep what was swept, so that it can be swept again; None means ``create_graph``.
        create_graph: record the sweep, so that the results can be differentiated.

    Returns:
        One gradient, of its input's shape and dtype, for one Variable; a tuple of them for a sequence.

    Raises:
        UnconnectedError: no differentiable path leads to an input, and ``unconnected`` is ``"raise"``.
        SeedError, SeedDtypeError, TapeValueError, ReleasedTapeError, UnrecordedGradientError: as for :func:`backward`.

    Example:
        >>> import tape
        >>> x = tape.Variable(3.0)
        >>> g = tape.gradients(x**3, x, create_graph=True)
        >>> float(g), float(tape.gradients(g, x))
        (27.0, 18.0)

    """
    if unconnected not in ("raise", "zero", "none"):
        msg = f"gradients: unconnected must be 'raise', 'zero' or 'none', got {unconnected!r}"
        raise TapeValueError(msg)
    retain = create_graph if retain_graph is None else retain_graph
    call = call_of(outputs, inputs, grad_outputs, bool(create_graph), bool(retain))
    if call is not None:
        found = call.recalled()
        if found is not None:
            return found[0] if isinstance(inputs, Handle) else tuple(found)
        leaves = len(call.segment.leaves)
    roots = _variables("gradients", "outputs", outputs)
    wanted = _variables("gradients", "inputs", inputs)
    with contextlib.ExitStack() as settings:
        if _need_sixty_four_bits(roots):
            settings.enter_context(sixty_four_bits())
        seeds, _ = _seeds("gradients", roots, grad_outputs, required=unconnected == "raise")
        able = [v for v in wanted if v._place.kind.requires_grad]
        if unconnected == "raise":
            for v in wanted:
                _require_grad("gradients", "inputs", v)
        rooted = [(r, s) for r, s in zip(roots, seeds, strict=True) if r._place.kind.requires_grad]
        sweep = Sweep(map(target_of, able), (), create_graph)
        sweep.run([r for r, _ in rooted], [s for _, s in rooted], settings)
        results = []
        for i, v in enumerate(wanted):
            gradient = sweep.gradients.get(target_of(v)) if v._place.kind.requires_grad else None
            if gradient is None:
                if unconnected == "raise":
                    msg = (
                        f"gradients: inputs[{i}] ({describe(v)}) is not connected to any of the outputs by differentiable operations; "
                        'use it in the computation, or pass unconnected="zero" or unconnected="none"'
                    )
                    raise UnconnectedError(msg)
                gradient = record.leaf(jnp.zeros(v._place.kind.aval.shape, v._place.kind.aval.dtype)) if unconnected == "zero" else None
            else:
                gradient = emission.share(gradient)
            results.append(gradient)
        if not retain:
            with sweep.releasing():
                pass
        if call is not None:
            call.remember(sweep, results, leaves)
    return results[0] if isinstance(inputs, Handle) else tuple(results)


def _need_sixty_four_bits(roots: Sequence[Any]) -> bool:
    """Tell whether cotangents of the roots have dtypes that JAX's configuration does not allow now, as it did when they were recorded."""
    return not X64.value and any(root._place.kind.aval.dtype in _WIDE for root in roots)


_WIDE = frozenset({np.dtype(np.float64), np.dtype(np.complex128)})


def describe(variable: Any) -> str:
    """Name, shape and dtype of a Variable, for messages."""
    aval = variable._place.kind.aval
    name = f"{variable._extra.name!r}, " if variable._extra is not None and variable._extra.name else ""
    return f"{name}shape {aval.shape}, dtype {aval.dtype}"


def _variables(function: str, argument: str, given: Any) -> list[Any]:
    """Return the Variables of an argument that takes one or a sequence."""
    if isinstance(given, Handle):
        return [given]
    if isinstance(given, (jax.Array, np.ndarray, str, bytes)) or not hasattr(given, "__iter__"):
        msg = f"{function}: {argument} must be a tape.Variable or a sequence of them, got {type(given).__name__}"
        raise TapeTypeError(msg)
    listed = list(given)
    for i, v in enumerate(listed):
        if not isinstance(v, Handle):
            msg = f"{function}: {argument}[{i}] must be a tape.Variable, got {type(v).__name__}"
            raise TapeTypeError(msg)
    return listed


def _require_grad(function: str, argument: str, variable: Any) -> None:
    kind = variable._place.kind
    if kind.requires_grad:
        return
    if kind.unrecorded:
        msg = (
            f"{function}: {argument} has a gradient ({describe(variable)}) that was taken without recording, so it has no derivative; "
            "pass create_graph=True where it was taken"
        )
        raise UnrecordedGradientError(msg)
    if argument == "inputs":
        msg = f"{function}: an input ({describe(variable)}) does not require grad; make it with tape.Variable(..., requires_grad=True)"
        raise UnconnectedError(msg)
    msg = (
        f"{function}: a root ({describe(variable)}) does not require grad: it depends on no Variable that does, or it was computed under "
        "no_grad(), detached, came out of a JAX transformation, or is of integer or boolean dtype; compute it from a tape.Variable with requires_grad=True"
    )
    raise TapeValueError(msg)


def _seeds(function: str, roots: list[Any], given: Any, *, required: bool = True) -> tuple[list[Any], list[Any]]:
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
            _require_grad(function, "outputs", root)
        extra = root._extra
        if seed is None and extra is not None and extra.assigned and root._segment is not None and all(root is not r for r in consumed):
            seed = extra.grad  # noqa: PLW2901
            consumed.append(root)
        seeds.append(_seed(function, i, root, seed))
    return seeds, consumed


def _seed(function: str, i: int, root: Any, seed: Any) -> Any:
    aval = root._place.kind.aval
    if seed is None:
        if aval.size != 1:
            msg = (
                f"{function}: root {i} has shape {aval.shape}, so it needs a seed; pass grad_outputs=tape.numpy.ones_like(root) for the "
                "gradient of its sum, or reduce it to one number first"
            )
            raise SeedError(msg)
        return None
    scalar = isinstance(seed, (bool, int, float, complex))
    if not isinstance(seed, (Handle, jax.Array, np.ndarray, np.generic)) and not scalar:
        msg = f"{function}: the seed of root {i} must be a Variable, an array or a Python number, got {type(seed).__name__}"
        raise TapeTypeError(msg)
    if not isinstance(seed, Handle):
        seed = record.constant(np.asarray(seed) if isinstance(seed, np.generic) else seed)
    given = seed._place.kind.aval
    if given.shape != aval.shape and not (scalar and aval.size == 1):
        msg = f"{function}: the seed of root {i} has shape {given.shape}, but the root has shape {aval.shape}; pass a seed of the root's shape"
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


_CASTS: dict[Any, Any] = {}


def _cast(shape: tuple[int, ...], dtype: Any) -> Any:
    key = (shape, dtype)
    found = _CASTS.get(key)
    if found is None:
        found = _CASTS[key] = Op("seed", lambda x: jnp.reshape(x, shape).astype(dtype))
    return found
