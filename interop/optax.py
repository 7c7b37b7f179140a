"""Optax on Variables: an optimizer that owns its state, with ``step()`` and ``zero_grad()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import optax

from interop.lift import lift
from tape.differentiation import describe
from tape.errors import TapeTypeError, TapeValueError
from tape.modes import no_grad
from tape.program import look, run_pending
from tape.segment import LOCAL, Handle

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Optimizer"]


class Optimizer:
    """Update Variables by an optax transformation.

    Args:
        parameters: the leaves to train: a pytree of Variables (or one, or an iterator) that require grad.
        transformation: an ``optax.GradientTransformation``.

    Attributes:
        parameters: the pytree of Variables.
        state: optax's state, a pytree of arrays.

    Raises:
        TapeTypeError: something among the parameters is no Variable, or ``transformation`` is none of optax's.
        TapeValueError: a parameter is no leaf or does not require grad, or is given twice.

    Example:
        >>> import optax, interop.optax, tape
        >>> w = tape.Variable(1.0)
        >>> optimizer = interop.optax.Optimizer([w], optax.sgd(0.1))
        >>> (w * w).backward()
        >>> optimizer.step()
        >>> round(float(w), 3)
        0.8

    """

    def __init__(self, parameters: Any, transformation: Any) -> None:
        if hasattr(parameters, "__next__") or (not isinstance(parameters, (Handle, list, tuple, dict)) and hasattr(parameters, "__iter__")):
            parameters = list(parameters)
        self.parameters = parameters
        self._leaves, self._tree = jax.tree.flatten(parameters, is_leaf=_is_handle)
        if not self._leaves:
            msg = "Optimizer: no parameters were given; pass a pytree of Variables that require grad"
            raise TapeValueError(msg)
        seen: set[int] = set()
        for i, p in enumerate(self._leaves):
            if not isinstance(p, Handle):
                msg = f"Optimizer: parameter {i} must be a tape.Variable, got {type(p).__name__}; wrap it with tape.Variable"
                raise TapeTypeError(msg)
            if not (p._place.kind.requires_grad and p.is_leaf):  # type: ignore[attr-defined]
                msg = f"Optimizer: parameter {i} ({describe(p)}) must be a leaf that requires grad; pass the Variable that was made first"
                raise TapeValueError(msg)
            if id(p) in seen:
                msg = f"Optimizer: parameter {i} ({describe(p)}) is given twice"
                raise TapeValueError(msg)
            seen.add(id(p))
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            msg = f"Optimizer: transformation must be an optax.GradientTransformation, got {type(transformation).__name__}"
            raise TapeTypeError(msg)
        self.transformation = transformation
        self.state = transformation.init(self._values())
        extended = optax.with_extra_args_support(transformation)

        def update(gradients: Any, state: Any, values: Any, extra: dict[str, Any]) -> Any:
            updates, state = extended.update(gradients, state, values, **extra)
            return optax.apply_updates(values, updates), state

        self._update = lift(update)

    def _values(self) -> Any:
        return jax.tree.unflatten(self._tree, [look(p) for p in self._leaves])

    def step(self, **extra: Any) -> None:
        """Apply one update from the ``.grad`` of every parameter.

        Args:
            extra: extra arguments for transformations that take them (``value=loss`` for instance).

        Raises:
            TapeValueError: a parameter has no gradient.  Nothing is changed then.

        """
        missing = [i for i, p in enumerate(self._leaves) if p.grad is None]
        if missing:
            i = missing[0]
            msg = (
                f"Optimizer.step: {len(missing)} of {len(self._leaves)} parameters have no gradient, first parameter {i} "
                f"({describe(self._leaves[i])}); call backward() first, leave the parameter out, or set its .grad to zeros"
            )
            raise TapeValueError(msg)
        gradients = jax.tree.unflatten(self._tree, [p.grad for p in self._leaves])
        values = jax.tree.unflatten(self._tree, self._leaves)
        with no_grad():
            updated, state = self._update(gradients, self.state, values, extra)
        new = jax.tree.leaves(updated, is_leaf=_is_handle)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "step")
        arrays = [look(v) for v in new]
        self.state = jax.tree.map(look, state, is_leaf=_is_handle)
        for p, array in zip(self._leaves, arrays, strict=True):
            p.value = array

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters (set them to None)."""
        for p in self._leaves:
            p.grad = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._leaves)


def _is_handle(x: Any) -> bool:
    return isinstance(x, Handle)
