"""Export: what was written with the tape as StableHLO, which runs without this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from interop.lower import lower
from tape import jaxapi
from tape.errors import LeakedTracerError, TapeTypeError
from tape.graph.segment import Handle
from tape.ops.jaxprs import equations_in

_CALLBACKS = frozenset(("pure_callback", "io_callback", "debug_callback", "debug_print"))


def export(tape_fun: Callable[..., Any], *args: Any, platforms: Sequence[str] | None = None, **kwargs: Any) -> jax.export.Exported:
    """Compile a function of the tape, or what was recorded, to StableHLO by ``jax.export``.

    Args:
        tape_fun: a function of Variables, that of ``tape.jit`` too, or the function of arrays that a recorded tape gives for some of its
            inputs and outputs (``t.function(inputs, outputs)`` of ``tape.Tape``).  Variables that it captures are constants at their
            present values; parameters that are to stay inputs are arguments.
        args: pytrees of what it will be called with: arrays or Variables, whose shapes and dtypes count, or ``jax.ShapeDtypeStruct``.  A
            length of these may be symbolic (``jax.export.symbolic_shape("batch, 3")``), where the function can be recorded so: Python that
            branches on such a length, or a shape computed otherwise than by arithmetic, is an error of JAX.
        platforms: for what it is compiled, such as ``("cpu", "cuda")``; by default what this process runs on.
        kwargs: as ``args``, by name.

    Returns:
        JAX's ``Exported``: ``exported.call(...)`` runs it on arrays, ``exported.serialize(vjp_order=1)`` gives bytes that
        ``jax.export.deserialize`` reads where this library is not installed (both need the package flatbuffers), and with ``vjp_order``
        JAX's derivatives with them.  A derivative by the tape (``tape.gradients``) may as well be in the function.

    Raises:
        TapeTypeError: ``tape_fun`` cannot be called, or returns something that is not an array; an argument is none (bind others by
            ``functools.partial``); the function calls back to Python (``jax.pure_callback``, a torch module); or it assigns to Variables
            outside.

    Example:
        >>> import jax, jax.numpy as jnp, interop, tape.numpy as tnp
        >>> rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), jnp.float32)
        >>> exported = interop.export(lambda x, w: tnp.tanh(x @ w).mean(0), rows, jnp.ones((3, 2)))
        >>> exported.call(jnp.ones((5, 3)), jnp.zeros((3, 2)))
        Array([0., 0.], dtype=float32)

    """
    if not callable(tape_fun):
        msg = f"export: expected a function, got {type(tape_fun).__name__}; of recorded Variables take the function of a tape.Tape"
        raise TapeTypeError(msg)
    name = getattr(tape_fun, "__name__", type(tape_fun).__name__)
    given, named = jax.tree.map(lambda x: _shaped(name, x), (args, kwargs), is_leaf=lambda x: isinstance(x, Handle))
    jitted = jax.jit(lower(tape_fun))
    try:
        jaxpr = jitted.trace(*given, **named).jaxpr
    except LeakedTracerError as e:
        msg = (
            f"export: {name} assigns to a Variable outside of it, which the exported function could not; return the value instead, "
            "and pass what it is computed from as an argument"
        )
        raise TapeTypeError(msg) from e
    callback = next((eqn.primitive.name for eqn in equations_in(jaxpr.jaxpr) if eqn.primitive.name in _CALLBACKS), None)
    if callback is not None:
        msg = (
            f"export: {name} calls back to Python ({callback}), as torch modules and functions of NumPy do, and what is exported has "
            "none; write that part with tape.numpy, or export what comes before and after it"
        )
        raise TapeTypeError(msg)
    return jax.export.export(jitted, platforms=platforms)(*given, **named)


def _shaped(name: str, x: Any) -> Any:
    """Return the shape and dtype of an argument."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    if isinstance(x, Handle):
        aval = x._place.kind.aval
    elif isinstance(x, (jax.Array, np.ndarray, np.generic, float, complex, bool)) or type(x) is int:
        aval = jax.typeof(x) if isinstance(x, jaxapi.Tracer | jax.Array) else jax.typeof(jnp.asarray(x))
    else:
        msg = f"export: {name} is given {type(x).__name__}, which is not an array; bind it by functools.partial({name}, ...)"
        raise TapeTypeError(msg)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
