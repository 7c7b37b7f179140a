"""Optax on Variables: an optimizer that owns its state, with ``step()`` and ``zero_grad()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from interop.lift import lift
from tape import record
from tape.conversion import as_array
from tape.errors import TapeTypeError, TapeValueError
from tape.program import look, run_pending
from tape.seeds import describe
from tape.segment import LOCAL, Handle, extra_of, set_mode
from tape.trie import CONSTANT

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
        token = object()
        for p in self._leaves:
            extra_of(p).updater = token
        self._fitting: Any = None  # the place of the first result of an update that all Variables were seen to fit
        self._following: dict[Any, Any] = {}  # tree of a state -> tree of the next one
        self.state = transformation.init(self._values())
        extended = optax.with_extra_args_support(transformation)

        def update(
            gradients: list[Any], values: list[Any], state: list[Any], tree: Any, extra: dict[str, Any]
        ) -> tuple[list[Any], list[Any]]:
            before = jax.tree.unflatten(self._tree, values)
            updates, after = extended.update(jax.tree.unflatten(self._tree, gradients), jax.tree.unflatten(tree, state), before, **extra)
            leaves, self._following[tree] = jax.tree.flatten(after)
            return jax.tree.leaves(optax.apply_updates(before, updates)), leaves

        self._update = lift(update)

    @property
    def state(self) -> Any:
        """Optax's state, a pytree of arrays; assigning replaces it."""
        return jax.tree.unflatten(self._state_tree, [as_array(look(x)) if isinstance(x, Handle) else x for x in self._state])

    @state.setter
    def state(self, state: Any) -> None:
        leaves, self._state_tree = jax.tree.flatten(state, is_leaf=_is_handle)
        self._state = [_kept(x) for x in leaves]  # Variables, so that a compiled step finds them and writes to them

    def _values(self) -> Any:
        return jax.tree.unflatten(self._tree, [look(p) for p in self._leaves])

    def step(self, **extra: Any) -> None:
        """Apply one update from the ``.grad`` of every parameter.

        A backward pass to these parameters alone, of a structure met before, waits for it: both run as one program.

        Args:
            extra: extra arguments for transformations that take them (``value=loss`` for instance).

        Raises:
            TapeValueError: a parameter has no gradient.  Nothing is changed then.
            ExecutionError: an update could not be computed.  Nothing is changed then.

        """
        old = set_mode(CONSTANT)
        try:
            values, state = self._update(self._gradients(), self._leaves, self._state, self._state_tree, extra)
            segment = LOCAL.segment()
            if segment is not None:
                run_pending(segment, "step")
        finally:
            set_mode(old)
        self._assign(values, state)

    def _gradients(self) -> list[Any]:
        found = [p.grad for p in self._leaves]
        missing = [i for i, gradient in enumerate(found) if gradient is None]
        if missing:
            i = missing[0]
            msg = (
                f"Optimizer.step: {len(missing)} of {len(found)} parameters have no gradient, first parameter {i} "
                f"({describe(self._leaves[i])}); call backward() first, leave the parameter out, or set its .grad to zeros"
            )
            raise TapeValueError(msg)
        return found

    def _assign(self, values: list[Any], state: list[Any]) -> None:
        """Give the parameters and the Variables of the state their new values, once all of them are there."""
        made = [*values, *state]
        cells = [v._cell for v in made]
        known = LOCAL.captures is None and self._fitting is made[0]._place  # then nothing can differ from the last time
        if known and all(cell[0] is not None for cell in cells):
            for variable, cell in zip([*self._leaves, *self._state], cells, strict=True):
                variable._cell = cell
            return
        arrays = [look(v) for v in made]
        following = self._following[self._state_tree]
        same = following == self._state_tree and all(
            isinstance(a, Handle) and a._place.kind is b._place.kind for a, b in zip(self._state, state, strict=True)
        )
        for p, array in zip(self._leaves, arrays, strict=False):
            p.value = array
        if same:
            for a, array in zip(self._state, arrays[len(values) :], strict=True):
                a.value = array
            if LOCAL.captures is None and all(p._place.kind.aval == v._place.kind.aval for p, v in zip(self._leaves, values, strict=True)):
                self._fitting = made[0]._place
        else:  # the first step of some transformations changes a dtype
            self.state = jax.tree.unflatten(following, arrays[len(values) :])

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters (set them to None)."""
        for p in self._leaves:
            p.zero_grad()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._leaves)


def _kept(value: Any) -> Any:
    """Return a leaf of the state as the optimizer keeps it: arrays in constant Variables, anything else as it is."""
    if isinstance(value, Handle):
        value = look(value)
    return record.constant(value) if isinstance(value, (jax.Array, np.ndarray, np.generic)) else value


def _is_handle(x: Any) -> bool:
    return isinstance(x, Handle)
