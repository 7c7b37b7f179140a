"""Optax on Variables: an optimizer that owns its state, with ``step()`` and ``zero_grad()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from interop.lift import lift
from tape import record
from tape.conversion import as_array
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
        self._state: Any = None
        self.state = transformation.init(self._values())
        extended = optax.with_extra_args_support(transformation)

        def update(gradients: Any, state: Any, values: Any, extra: dict[str, Any]) -> Any:
            updates, state = extended.update(gradients, state, values, **extra)
            return optax.apply_updates(values, updates), state

        self._update = lift(update)

    @property
    def state(self) -> Any:
        """Optax's state, a pytree of arrays; assigning replaces it."""
        return jax.tree.map(lambda x: as_array(look(x)) if isinstance(x, Handle) else x, self._state, is_leaf=_is_handle)

    @state.setter
    def state(self, state: Any) -> None:
        self._state = jax.tree.map(_kept, state, is_leaf=_is_handle)  # Variables, so that a compiled step finds them and writes to them

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
            updated, state = self._update(gradients, self._state, values, extra)
        new = jax.tree.leaves(updated, is_leaf=_is_handle)
        segment = LOCAL.segment()
        if segment is not None:
            run_pending(segment, "step")
        arrays = [look(v) for v in new]
        self._advance(state)
        for p, array in zip(self._leaves, arrays, strict=True):
            p.value = array

    def _advance(self, state: Any) -> None:
        """Give the Variables of the state the values of the new one."""
        new, tree = jax.tree.flatten(state, is_leaf=_is_handle)
        old, old_tree = jax.tree.flatten(self._state, is_leaf=_is_handle)
        pairs = list(zip(old, new, strict=False))
        if _same(tree, old_tree) and all(
            isinstance(a, Handle) and isinstance(b, Handle) and a._place.kind is b._place.kind for a, b in pairs
        ):
            for a, b in pairs:
                a.value = look(b)
        else:  # the first step of some transformations changes a dtype
            self.state = jax.tree.map(look, state, is_leaf=_is_handle)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters (set them to None)."""
        for p in self._leaves:
            p.grad = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._leaves)


def _same(tree: Any, other: Any) -> bool:
    return bool(tree == other)


def _kept(value: Any) -> Any:
    """Return a leaf of the state as the optimizer keeps it: arrays in constant Variables, anything else as it is."""
    if isinstance(value, Handle):
        value = look(value)
    return record.constant(value) if isinstance(value, (jax.Array, np.ndarray, np.generic)) else value


def _is_handle(x: Any) -> bool:
    return isinstance(x, Handle)
