"""A gradient clipper: bounds what each op, or each of some Variables, gets for a gradient."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tape.errors import TapeValueError
from tape.hooking.handles import RemovableHandle
from tape.hooking.observing import OpHook, SeenOp
from tape.ops.kernel import Op, intern_op
from tape.recording import record
from tape.sweeps.seeds import describe
from tape.sweeps.seeds import variables as listed


class GradientClipper(OpHook):
    """Clips gradients on their way: after each op, or with :meth:`GradientClipper.on` those of some Variables; give one of the bounds.

    As an op hook it clips what each op adds to the gradients of its inputs; ``norm`` bounds the norm over all inputs of the op together.
    It is compiled with functions of ``tape.jit``, and equal clippers share a trace; with ``create_graph`` the clipping is differentiated.

    Args:
        value: each element becomes at most so large (its modulus, where it is complex).
        norm: where the Euclidean norm is larger, it becomes this one.

    Raises:
        TapeValueError: no bound is given, or both, or it is not a positive number.

    Example:
        >>> import tape
        >>> x = tape.Variable([3.0, 4.0])
        >>> with tape.op_hooks.GradientClipper(norm=1.0):
        ...     (x * x).sum().backward()
        >>> handle, = tape.op_hooks.GradientClipper(value=5.0).on(x)
        >>> print(tape.gradients((x * x).sum(), x).numpy())
        [5. 5.]

    """

    traceable = True

    def __init__(self, *, value: float | None = None, norm: float | None = None) -> None:
        if (value is None) == (norm is None):
            msg = "GradientClipper: give one of value= and norm="
            raise TapeValueError(msg)
        bound = norm if value is None else value
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not 0 < bound < float("inf"):
            msg = f"GradientClipper: the bound must be a positive number, got {bound!r}"
            raise TapeValueError(msg)
        self.value = value
        self.norm = norm

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), self.value, self.norm))

    def __repr__(self) -> str:
        return f"GradientClipper(value={self.value})" if self.norm is None else f"GradientClipper(norm={self.norm})"

    def backward_postprocess(self, op: SeenOp, input_grads: tuple[Any, ...]) -> Sequence[Any]:  # noqa: ARG002 - as the base class
        """Clip what the op adds to the gradients of its inputs."""
        clipped = iter(self._clipped([g for g in input_grads if g is not None]))
        return [None if g is None else next(clipped) for g in input_grads]

    def on(self, *variables: Any) -> tuple[RemovableHandle, ...]:
        """Clip the total gradient of each of these Variables, in every sweep.

        Returns:
            A handle for each, whose ``remove()`` ends it.

        Raises:
            TapeTypeError: something is not a Variable.
            TapeValueError: one does not require grad.

        """
        clipped = listed("GradientClipper.on", "variables", variables)
        for v in clipped:
            if not v._place.kind.requires_grad:
                msg = f"GradientClipper.on: a Variable that does not require grad ({describe(v)}) gets no gradient"
                raise TapeValueError(msg)
        return tuple([v.register_hook(lambda gradient: self._clipped([gradient])[0]) for v in clipped])

    def _clipped(self, gradients: Sequence[Any]) -> Sequence[Any]:
        if self.norm is None:
            return [record.record(_by_value(float(self.value or 0)), (g,)) for g in gradients]
        return record.record(_by_norm(float(self.norm)), gradients) if gradients else ()


def _by_value(bound: float) -> Op:
    def clip(g: jax.Array) -> jax.Array:
        if not jnp.iscomplexobj(g):
            return jnp.clip(g, -bound, bound)
        large = jnp.abs(g) > bound
        return jnp.where(large, g / jnp.where(large, jnp.abs(g), 1) * bound, g).astype(g.dtype)

    return intern_op(("clip by value", bound), lambda: Op("clip_by_value", clip))


def _by_norm(bound: float) -> Op:
    def clip(*gradients: jax.Array) -> tuple[jax.Array, ...]:
        # In float32 at least, without the root of zero, whose derivative is infinite, and of shares of the largest: no square overflows.
        wide = [jnp.abs(g).astype(jnp.promote_types(jnp.abs(g).dtype, jnp.float32)) for g in gradients]
        largest = lax.stop_gradient(functools.reduce(jnp.maximum, [jnp.max(w, initial=1) for w in wide]))
        squared = sum((jnp.sum((w / largest) ** 2) for w in wide), jnp.zeros((), jnp.float32))
        large = squared > (bound / largest) ** 2
        scale = bound / jnp.sqrt(jnp.where(large, squared, 1))
        return tuple([jnp.where(large, g / largest * scale, g).astype(g.dtype) for g in gradients])

    return intern_op(("clip by norm", bound), lambda: Op("clip_by_norm", clip))
